"""Requests sent at absolute times, answers collected.

The schedule is a list of moments on a monotonic clock, fixed before the first request. The client sleeps until the next
moment, not for the next gap: if it wakes up late once, the request after it is not late too, and the rate is kept.

With `max_concurrency`, a request that is due waits for a free slot and is sent then; its record has both times.

Ctrl-C cancels what is under way; those requests are marked `unfinished`, and the rest is a result. Nothing here knows
HTTP: `send` is any function that fills a record.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from minifer.apps.loadgen.record import Record
from minifer.apps.workloads import Arrival

Send = Callable[[Arrival, Record, Callable[[], float]], Awaitable[None]]
"""Sends a request and fills its record; the third argument gives the time since the start of the run."""

Watch = Callable[[Sequence[Record], int], None]
"""Called with all records and the number of finished requests whenever that has changed, and every TICK_S."""


@dataclass
class Run:
    """What a run gave: a record of every arrival, seconds from the start to the last answer."""

    records: list[Record] = field(default_factory=list)
    duration: float = 0.0
    interrupted: bool = False


TICK_S = 1.0
"""How often whoever watches is told although nothing has ended."""


def nobody(records: Sequence[Record], done: int) -> None:
    """The default: nobody is watching."""


async def run_load(
    arrivals: Sequence[Arrival],
    send: Send,
    *,
    max_concurrency: int | None = None,
    watch: Watch = nobody,
    now: Callable[[], float] = time.perf_counter,
) -> Run:
    """Send every arrival when it is due and wait for all answers.

    A request that fails has the reason in its record and disturbs no other. If this task is cancelled (by Ctrl-C under
    `asyncio.run`), what has come so far is returned, marked as interrupted.
    """
    load = _Load(send, max_concurrency, watch, now)
    return await load.run(arrivals)


class _Load:
    def __init__(self, send: Send, limit: int | None, watch: Watch, now: Callable[[], float]) -> None:
        self._send, self._watch, self._now = send, watch, now
        self._slots = asyncio.Semaphore(limit) if limit is not None else contextlib.nullcontext()
        self._run, self._start, self._done = Run(), 0.0, 0

    async def run(self, arrivals: Sequence[Arrival]) -> Run:
        self._run.records = [Record(a.index, a.at, len(a.prompt_ids), a.output_len) for a in arrivals]
        tasks: list[asyncio.Task[None]] = []
        ticks = asyncio.create_task(self._tick()) if self._watch is not nobody else None
        self._start = self._now()
        try:
            for arrival, record in zip(arrivals, self._run.records, strict=True):
                await self._until(arrival.at)
                tasks.append(asyncio.create_task(self._one(arrival, record)))
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            self._run.interrupted = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._run.duration = self._time()
        if ticks is not None:
            ticks.cancel()
        return self._run

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._watch(self._run.records, self._done)

    def _time(self) -> float:
        return self._now() - self._start

    async def _until(self, at: float) -> None:
        while (left := at - self._time()) > 0:  # a timer may ring a little early
            await asyncio.sleep(left)

    async def _one(self, arrival: Arrival, record: Record) -> None:
        record.unfinished = True
        async with self._slots:
            record.sent = self._time()
            try:
                await self._send(arrival, record, self._time)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # whatever it was, it is this request's failure and nobody else's
                record.error = f"{type(error).__name__}: {error}"
            record.unfinished = False
        self._done += 1
        self._watch(self._run.records, self._done)
