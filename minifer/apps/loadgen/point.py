"""One point of a measurement: a rate, its workload, and warm-up requests that are in no figure.

Every point of a sweep has prompts of its own, or the second would find the first one's in the server's prefix cache.
Warm-up prompts belong to no point for the same reason. (A data set `custom` has the lines that it has: its prompts do
come again, and the result says how many tokens the server had cached.) Warm-ups are answered before the clock of the
run starts, so neither the first call of a kernel nor the tail of the warm-up is in the figures.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minifer.apps.loadgen.client import Server
from minifer.apps.loadgen.protocols import Ask
from minifer.apps.loadgen.record import Record
from minifer.apps.loadgen.run import Run, Watch, nobody, run_load
from minifer.apps.loadgen.wire import WireError
from minifer.apps.workloads import Arrival, make_workload
from minifer.errors import UsageError


@dataclass(frozen=True)
class Plan:
    """A sweep over rates: `options` are those of `make_workload`."""

    rates: tuple[float, ...]
    seed: int = 0
    burstiness: float = 1.0
    num_warmups: int = 1
    max_concurrency: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def arrivals(self, point: int) -> list[Arrival]:
        """The workload of a point; that of the first point depends on the seed alone."""
        seed = str(self.seed) if point == 0 else f"{self.seed}/{point}"
        return make_workload(request_rate=self.rates[point], burstiness=self.burstiness, seed=seed, **self.options)

    def warmups(self, point: int) -> list[Arrival]:
        """Requests like those of the point, all at once, with other prompts."""
        if self.num_warmups < 1:
            return []
        few = {"num_prompts": self.num_warmups, "prefix_repetition_num_prefixes": 1}
        return make_workload(seed=f"{self.seed}/{point}/warm-up", **{**self.options, **few})


def parse_rates(words: str) -> tuple[float, ...]:
    """`"0.5,1,inf"` as numbers. Raises UsageError.

    >>> parse_rates("0.5,2,inf")
    (0.5, 2.0, inf)
    """
    try:
        rates = tuple(float(word) for word in words.split(","))
    except ValueError:
        raise UsageError(
            f"{words!r} is not a rate: write requests per second, or several with commas (1,2,inf)"
        ) from None
    if any(math.isnan(rate) or rate <= 0 for rate in rates):
        raise UsageError(f"a request rate must be above 0 (or inf), not {words}")
    return rates


async def measure(server: Server, ask: Ask, arrivals: Sequence[Arrival], *, warmups: Sequence[Arrival] = (),
                  max_concurrency: int | None = None, watch: Watch = nobody) -> tuple[Run, float | None]:  # fmt: skip
    """Warm up, run, and ask the server how many prompt tokens it found in its cache meanwhile (None: it doesn't say).

    Raises WireError if a warm-up request fails: then nothing else would work either.
    """

    async def send(arrival: Arrival, record: Record, now: Callable[[], float]) -> None:
        await server.send(arrival, ask, record, now)

    if warmups:
        warm = await run_load(warmups, send)
        broken = next((r.error for r in warm.records if r.error is not None), None)
        if broken is not None:
            raise WireError(f"{server.address.authority}: the warm-up failed: {broken}")
        if warm.interrupted:
            raise asyncio.CancelledError
    before = await server.cache_hits()
    run = await run_load(arrivals, send, max_concurrency=max_concurrency, watch=watch, now=time.perf_counter)
    after = None if run.interrupted else await server.cache_hits()
    return run, after - before if after is not None and before is not None else None
