"""What is kept of a simulated run: a few numbers per request, and all gaps between tokens as counts.

An hour of traffic has millions of gaps. Rounded to a microsecond they take few different values, so a count of each is
exact to that microsecond, in memory that does not grow with the run.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from minifer.apps.summary import SLO_SERVER, summarise
from minifer.metrics import RequestMetrics, from_request
from minifer.scheduler.request import Request

RESOLUTION = 1e-6
"""Seconds to which gaps are rounded."""


@dataclass
class Gaps:
    """Gaps between tokens, counted by their length in microseconds.

    >>> gaps = Gaps()
    >>> gaps.add([0.010, 0.020, 0.020, 0.040])
    >>> gaps.describe([50, 99])
    {'mean': 22.5, 'median': 20.0, 'std': 10.897247, 'p50': 20.0, 'p99': 39.4}
    """

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, gaps: Sequence[float]) -> None:
        """Count gaps given in seconds."""
        self.counts.update([round(gap / RESOLUTION) for gap in gaps])

    def describe(self, percents: Sequence[float]) -> dict[str, float | None]:
        """Mean, median, standard deviation and percentiles in milliseconds; all None if there is no gap."""
        names = {f"p{percent:g}": percent for percent in percents}
        if not self.counts:
            return dict.fromkeys(["mean", "median", "std", *names])
        total = self.counts.total()
        mean = sum(value * count for value, count in self.counts.items()) / total
        variance = sum((value - mean) ** 2 * count for value, count in self.counts.items()) / total
        found = {"mean": mean, "median": self.percentile(50), "std": math.sqrt(variance)}
        found |= {name: self.percentile(percent) for name, percent in names.items()}
        return {name: round(value * RESOLUTION * 1e3, 6) for name, value in found.items()}

    def percentile(self, percent: float) -> float:
        """As `metrics.percentile` on the list of all gaps, in microseconds."""
        place, beyond = divmod((self.counts.total() - 1) * percent, 100)
        below, above = self._at(int(place)), self._at(min(int(place) + 1, self.counts.total() - 1))
        return below + (above - below) * beyond / 100

    def _at(self, place: int) -> int:
        for value in sorted(self.counts):
            place -= self.counts[value]
            if place < 0:
                return value
        raise IndexError(place)


@dataclass
class Tally:
    """The outcome of a run: metrics of each finished request (without their gaps), all gaps, and who was refused."""

    finished: list[RequestMetrics] = field(default_factory=list)
    gaps: Gaps = field(default_factory=Gaps)
    refused: list[tuple[int, str]] = field(default_factory=list)  # (index of the arrival, why)
    first_arrival: float | None = None
    last_token: float = 0.0

    def note(self, request: Request) -> None:
        """Take the metrics of a request that has ended."""
        self.add(from_request(request), request.finished or 0.0)

    def add(self, metrics: RequestMetrics, ended: float) -> None:
        """Take the metrics of a request that ended at this time, in seconds."""
        self.gaps.add(metrics.itl)
        self.finished.append(replace(metrics, itl=()))
        self.last_token = max(self.last_token, ended)

    @property
    def duration(self) -> float:
        """First arrival to last token, in seconds."""
        return max(0.0, self.last_token - (self.first_arrival or 0.0))

    def summary(
        self, slo_ms: dict[str, float] | None = None, percents: Sequence[float] = (50, 90, 95, 99)
    ) -> dict[str, Any]:
        """The run in vLLM's keys (apps/summary.py), times in milliseconds; `refused` is counted apart."""
        found = summarise(self.finished, self.duration, slo_ms=slo_ms or SLO_SERVER, percents=percents)
        found |= {f"{what}_itl_ms": value for what, value in self.gaps.describe(percents).items()}
        return found | {"refused": len(self.refused)}
