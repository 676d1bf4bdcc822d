"""From measured steps to a formula: least squares in which no time is negative.

Each measured step gives one equation, `what it should cost = what it took`, divided by what it took, so that a short
step counts as much as a long one: what matters is the error in percent. The unknowns are the points of the curve over
rows and the prices of `FittedTime`. A price below zero would mean that more work takes less time; where the best fit
has one, that term is left out and the rest fitted again.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minifer.apps.simulate.steptime import Curve, Features, FittedTime, chunk_work
from minifer.errors import UsageError

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Where a curve may bend; only those near which something was measured are used."""

PRICES = ("key_s", "decode_s", "logit_s", "chunk_s", "pair_s", "chunk_key_s")

SEEN_GROUP = 512
"""Decode steps whose contexts differ by less than this, all sequences together, are repetitions of one step."""


@dataclass(frozen=True)
class Sample:
    """A step that was run: what it had to do, and the seconds it took."""

    features: Features
    seconds: float


def fit(samples: Sequence[Sample], window: int) -> FittedTime:
    """The formula nearest to the samples. Raises UsageError unless decoding and reading prompts were both measured."""
    points = typical(samples)
    decoding = _nodes("decoding", {p.features.decodes for p in points if not p.features.chunks})
    rows = _nodes("reading prompts", {p.features.rows for p in points if p.features.chunks})
    matrix = np.array([_equation(point.features, decoding, rows, window) for point in points])
    seconds = np.array([point.seconds for point in points])
    found = [float(x) for x in nonnegative(matrix / seconds[:, None], np.ones(len(points)))]
    first, second = len(decoding), len(decoding) + len(rows)
    curves = Curve(tuple(decoding), tuple(found[:first])), Curve(tuple(rows), tuple(found[first:second]))
    return FittedTime(*curves, **dict(zip(PRICES, found[second:], strict=True)), window=window)  # type: ignore[arg-type]


def typical(samples: Sequence[Sample]) -> list[Sample]:
    """One sample for each kind of step: the mean of its repetitions without the slowest tenth.

    A median would leave out that some steps are a little slow, which a run pays for; a mean would take in an
    interruption, which has nothing to do with the step.

    >>> step = Features(1, 100, 1)
    >>> typical([Sample(step, t) for t in (0.02, 0.5, 0.03)])
    [Sample(features=Features(decodes=1, seen=100, logits=1, chunks=()), seconds=0.025)]
    """
    groups: dict[tuple, list[Sample]] = defaultdict(list)
    for sample in samples:
        f = sample.features
        groups[f.decodes, f.seen // SEEN_GROUP, f.logits, f.chunks].append(sample)
    found = []
    for group in groups.values():
        kept = sorted(group, key=lambda s: s.seconds)[: max(1, math.floor(0.9 * len(group)))]
        seen = round(sum(s.features.seen for s in kept) / len(kept))
        found.append(Sample(kept[0].features._replace(seen=seen), math.fsum(s.seconds for s in kept) / len(kept)))
    return found


def _nodes(what: str, sizes: set[int]) -> list[int]:
    """A curve's points: those of NODES between which something was measured, and the ends."""
    if not sizes:
        raise UsageError(f"no step of {what} was measured: a formula needs both decoding and prompts")
    inner = [n for n in NODES if min(sizes) < n < max(sizes) and _near(n, sizes)]
    return sorted({min(sizes), *inner, max(sizes)})


def _near(node: int, rows: set[int]) -> bool:
    """Whether a size was measured that only this point of the curve explains."""
    return any(0.85 * node <= r <= 1.15 * node for r in rows)


def _equation(features: Features, decoding: Sequence[int], rows: Sequence[int], window: int) -> np.ndarray:
    """One row: the weights of both curves' points, then what each price is paid for."""
    work = [chunk_work(length, context, window) for length, context in features.chunks]
    keys, pairs = sum(k for k, _ in work), sum(p for _, p in work)
    if work:
        hats = [*np.zeros(len(decoding)), *_hats(features.rows, rows)]
        return np.array([*hats, features.seen, features.decodes, features.logits, len(work), pairs, keys], float)
    return np.array([*_hats(features.decodes, decoding), *np.zeros(len(rows)), features.seen, 0, 0, 0, 0, 0], float)


def _hats(n: int, nodes: Sequence[int]) -> list[float]:
    """How much each point of a curve weighs at `n`."""
    return [float(np.interp(n, nodes, row)) for row in np.eye(len(nodes))]


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


def median_error(samples: Sequence[Sample], time: FittedTime) -> float:
    """How far the formula is off for half of the kinds of steps, at most, either way."""
    off = sorted(abs(e) for e in errors(samples, time))
    return off[len(off) // 2]


def errors(samples: Sequence[Sample], time: FittedTime) -> list[float]:
    """For each kind of step, by how much the formula is off: predicted over measured, minus 1."""
    return [time.seconds(point.features) / point.seconds - 1 for point in typical(samples)]
