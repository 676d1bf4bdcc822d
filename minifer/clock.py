"""Time as a parameter, so that tests and the simulator can hand in their own.

Nothing in minifer reads a clock by itself: whoever needs the time is given a `Clock`. Times are float seconds on a
monotonic scale whose zero has no meaning; only differences do.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Anything with `now() -> seconds`."""

    def now(self) -> float:
        """The current time in seconds; never runs backwards."""


class MonotonicClock:
    """The machine's own monotonic clock, at nanosecond resolution."""

    def now(self) -> float:
        """Seconds since an arbitrary zero."""
        return time.perf_counter_ns() * 1e-9


class ManualClock:
    """A clock that stands still until it is told to move.

    >>> clock = ManualClock()
    >>> clock.advance(0.25)
    >>> clock.now()
    0.25
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s

    def now(self) -> float:
        """The time that was last set, in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`, which may not be negative."""
        if seconds < 0:
            raise ValueError(f"a clock cannot run backwards: advance({seconds})")
        self._now += seconds
