"""Counting what was really done: calls, FLOPs, bytes, from the shapes that met at the ops boundary.

The meter never asks `model/cost.py`. That file *predicts* the same numbers from the configuration, and because the two
are written apart, a test can hold one against the other.
"""

from dataclasses import dataclass, field


@dataclass
class Count:
    """Totals of one kind of operation.

    `flops` counts a multiply and an add as two. `bytes` is memory traffic: each operand read once, each result
    written once. `positions` is how many tokens went through.
    """

    calls: int = 0
    flops: int = 0
    bytes: int = 0
    positions: int = 0


@dataclass
class Meter:
    """A dictionary of `Count`s by the name of the operation.

    >>> meter = Meter()
    >>> meter.add("linear", flops=2 * 3 * 4, bytes=48, positions=1)
    >>> meter.add("linear", flops=2 * 3 * 4, bytes=48, positions=1)
    >>> meter.counts["linear"].calls, meter.total().flops
    (2, 48)
    """

    counts: dict[str, Count] = field(default_factory=dict)

    def add(self, name: str, *, flops: int = 0, bytes: int = 0, positions: int = 0, calls: int = 1) -> None:
        """Add one operation (or `calls` of them) to the totals of `name`."""
        count = self.counts.get(name)
        if count is None:
            count = self.counts[name] = Count()
        count.calls += calls
        count.flops += flops
        count.bytes += bytes
        count.positions += positions

    def total(self) -> Count:
        """The sum over all names."""
        parts = self.counts.values()
        return Count(
            calls=sum(c.calls for c in parts),
            flops=sum(c.flops for c in parts),
            bytes=sum(c.bytes for c in parts),
            positions=sum(c.positions for c in parts),
        )

    def reset(self) -> None:
        """Forget everything counted so far."""
        self.counts.clear()
