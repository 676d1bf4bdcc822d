"""Made-up step times for tests of the simulator: one curve for both kinds of steps."""

from minifer.apps.simulate.steptime import Curve, FittedTime


def fitted(at: tuple[int, ...], seconds: tuple[float, ...], **prices: float) -> FittedTime:
    """Step times along one curve over rows, decoding or not, and `prices` per key, pair, chunk ..."""
    curve = Curve(at, seconds)
    return FittedTime(curve, curve, **prices)
