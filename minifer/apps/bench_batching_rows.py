"""What `minifer bench batching` measures in, and prints: sizes, rows, and what each part of the bench can do."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Advance = Callable[[str], None]
"""Says what is measured next, and moves the progress bar by one."""


@dataclass(frozen=True)
class Sizes:
    """How much each part measures. The parts that take whole workloads repeat less often than those that are cheap."""

    repeats: int = 5
    long_repeats: int = 3
    batch: int = 8
    # static against continuous: in slot-steps, which cost nothing to count, and in seconds
    requests: int = 2048
    mean_length: int = 32
    timed_requests: int = 64
    timed_mean_length: int = 10
    # a cached prefix
    shared: int = 512
    new: int = 64
    # a long prompt beside running answers
    streams: int = 4
    long_prompt: int = 2048
    chunks: tuple[int, ...] = (128, 512, 2048)
    # paged against contiguous
    context: int = 1024
    decode_steps: int = 4
    # the scheduler alone
    scheduler_batches: tuple[int, ...] = (1, 8, 64)
    scheduler_steps: int = 2000
    queue: int = 1000


QUICK = Sizes(
    repeats=3,
    long_repeats=2,
    requests=256,
    mean_length=16,
    timed_requests=16,
    timed_mean_length=4,
    shared=128,
    new=32,
    long_prompt=256,
    chunks=(32, 256),
    context=128,
    decode_steps=2,
    scheduler_batches=(1, 8),
    scheduler_steps=300,
    queue=100,
)
"""Enough to see that everything works; the figures mean little."""

BLOCK = 16
"""Tokens in a block of the pool, as in the engine."""


@dataclass(frozen=True)
class Row:
    """One figure: its samples in `unit`, what a law or a bound says, and whether the mark is met (None: there is none).

    >>> row = Row("paged", "fresh pool", "x", (0.97, 0.99, 0.98), mark="at least 0.9", met=True)
    >>> row.median, row.as_dict()["max"]
    (0.98, 0.99)
    """

    part: str
    test: str
    unit: str
    samples: tuple[float, ...]
    law: float | None = None
    mark: str = ""
    met: bool | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    def as_dict(self) -> dict[str, Any]:
        """The row of the JSON output."""
        return {
            "part": self.part,
            "test": self.test,
            "unit": self.unit,
            "median": self.median,
            "min": min(self.samples),
            "max": max(self.samples),
            "samples": list(self.samples),
            "law": self.law,
            "mark": self.mark,
            "met": self.met,
            **self.details,
        }


class Part(Protocol):
    """One question of the bench. `rows` and `words` may be asked at any time: of what was measured so far."""

    name: str

    @property
    def ticks(self) -> int:
        """How often `measure` will call `advance`."""

    def measure(self, advance: Advance) -> None:
        """Do it. Ctrl-C may come at any time."""

    def rows(self) -> list[Row]:
        """The figures."""

    def words(self) -> list[str]:
        """What they mean, a sentence a line."""


def number(value: float) -> str:
    """Three digits that count, and no exponents for large ones.

    >>> number(12.345), number(2604.4)
    ('12.3', '2,604')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(rows: Sequence[Row]) -> str:
    """The rows as text, a heading for each part."""
    width = max((len(row.test) for row in rows), default=0)
    lines = [f"{'':<{width + 2}}{'median (min .. max)':>28}  {'':<5}{'law':>6}  mark"]
    part = ""
    for row in rows:
        if row.part != part:
            part = row.part
            lines.append(part)
        spread = number(row.median)
        if len(row.samples) > 1:
            spread += f" ({number(min(row.samples))} .. {number(max(row.samples))})"
        law = "" if row.law is None else f"{row.law:.3g}"
        verdict = "" if row.met is None else (": met" if row.met else ": NOT met")
        lines.append(f"  {row.test:<{width}}{spread:>28}  {row.unit:<5}{law:>6}  {row.mark}{verdict}".rstrip())
    return "\n".join(lines)
