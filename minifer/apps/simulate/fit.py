"""From measured steps to a formula: least squares in which no time is negative.

Each measured step gives one equation, `what it should cost = what it took`, divided by what it took, so that a short
step counts as much as a long one: what matters is the error in percent. The unknowns are the points of the curve over
rows and the prices of `FittedTime`. A price below zero would mean that more work takes less time; where the best fit
has one, that term is left out and the rest fitted again.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from minifer.apps.simulate.steptime import Features, FittedTime, chunk_work
from minifer.errors import UsageError

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Where the curve over rows may bend; only those near which something was measured are used."""

TERMS = ("logit_s", "decode_s", "key_s", "chunk_s", "pair_s", "chunk_key_s")

SEEN_GROUP = 512
"""Decode steps whose contexts differ by less than this, all sequences together, are repetitions of one step."""


@dataclass(frozen=True)
class Sample:
    """A step that was run: what it had to do, and the seconds it took."""

    features: Features
    seconds: float


def fit(samples: Sequence[Sample], window: int) -> FittedTime:
    """The formula nearest to the samples. Raises UsageError if they are of fewer than two sizes."""
    points = typical(samples)
    nodes = _nodes({point.features.rows for point in points})
    matrix = np.array([_equation(point.features, nodes, window) for point in points])
    seconds = np.array([point.seconds for point in points])
    found = nonnegative(matrix / seconds[:, None], np.ones(len(points)))
    curve, prices = found[: len(nodes)], found[len(nodes) :]
    terms = dict(zip(TERMS, map(float, prices), strict=True))
    return FittedTime(tuple(nodes), tuple(map(float, curve)), window=window, **terms)


def typical(samples: Sequence[Sample]) -> list[Sample]:
    """One sample for each kind of step: the median of its repetitions, so that an interruption counts for nothing.

    >>> step = Features(1, 100, 1)
    >>> typical([Sample(step, t) for t in (0.02, 0.5, 0.03)])
    [Sample(features=Features(decodes=1, seen=100, logits=1, chunks=()), seconds=0.03)]
    """
    groups: dict[tuple, list[Sample]] = defaultdict(list)
    for sample in samples:
        f = sample.features
        groups[f.decodes, f.seen // SEEN_GROUP, f.logits, f.chunks].append(sample)
    found = []
    for group in groups.values():
        seen = round(sum(s.features.seen for s in group) / len(group))
        found.append(Sample(group[0].features._replace(seen=seen), median(s.seconds for s in group)))
    return found


def _nodes(rows: set[int]) -> list[int]:
    """The curve's points: those of NODES between which something was measured, and the ends."""
    if len(rows) < 2:
        raise UsageError(f"steps of {len(rows)} sizes are too few to say what a step costs: measure at least two")
    inner = [n for n in NODES if min(rows) < n < max(rows) and _near(n, rows)]
    return [min(rows), *inner, max(rows)]


def _near(node: int, rows: set[int]) -> bool:
    """Whether a size was measured that only this point of the curve explains."""
    return any(0.85 * node <= r <= 1.15 * node for r in rows)


def _equation(features: Features, nodes: Sequence[int], window: int) -> np.ndarray:
    """One row: the weights of the curve's points, then what each price is paid for."""
    work = [chunk_work(length, context, window) for length, context in features.chunks]
    keys, pairs = sum(k for k, _ in work), sum(p for _, p in work)
    tail = [features.logits, features.decodes, features.seen, len(work), pairs, keys]
    hats = [float(np.interp(features.rows, nodes, np.eye(len(nodes))[i])) for i in range(len(nodes))]
    return np.array([*hats, *tail], dtype=np.float64)


def nonnegative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """`x >= 0` with `matrix @ x` near `target` `[M]`; `matrix` is `[M, N]`. Terms that would be negative are 0.

    >>> nonnegative(np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([2.0, 1.0])).round(3).tolist()
    [1.5, 0.0]
    """
    used = np.ones(matrix.shape[1], dtype=bool)
    # Columns of like size, so that the tolerance of the solver means the same for each.
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    while True:
        x = np.zeros(matrix.shape[1])
        x[used] = np.linalg.lstsq(matrix[:, used] / scale[used], target, rcond=1e-10)[0] / scale[used]
        worst = int(np.argmin(x * scale))
        if x[worst] >= 0:
            return x
        used[worst] = False


def errors(samples: Sequence[Sample], time: FittedTime) -> list[float]:
    """For each kind of step, by how much the formula is off: predicted over measured, minus 1."""
    return [time.seconds(point.features) / point.seconds - 1 for point in typical(samples)]
