"""The replicas together: started, watched, restarted, and asked.

    with fleet.ask(jobs) as group:     the router chooses a replica for each
        async for batch in group.batches():     what they have brought
            ...                         leaving early gives the blocks back

What can go wrong, and what happens then:

* *A replica dies.* Its jobs start again on another one if nothing of them was passed on yet, once; the others end with
  an error. It is started anew, at once the first time and then more and more patiently. The other replicas never know.
* *No replica is alive.* Jobs wait for the first one that is, as they would in a queue.
* *A replica is silent* though it has work, for `silence_s`: it is killed, and then has died.
* *Too much is asked.* Beyond `max_queue` unfinished answers a job is refused with `QueueFull`, before it costs much.

All of it runs in the event loop, so there is nothing to lock.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minifer.apps.serve.answers import Group, Stream
from minifer.apps.serve.messages import ABORT, QUIT, Failed, Job, Load, Piece, Ready, Report
from minifer.apps.serve.replica import Replica
from minifer.apps.serve.router import Router
from minifer.apps.serve.vllm_metrics import Gauges
from minifer.errors import DeviceError, MiniferError

MAX_TRIES = 2
PATIENCE_S = (0.0, 0.5, 2.0, 5.0, 15.0, 30.0)
"""How long to wait before the first, second ... restart in a row."""
STEADY_S = 60.0
"""A replica that has lived this long has recovered: its next death is again a first one."""


class QueueFull(MiniferError):
    """More unfinished answers than `max_queue`: come back in `retry_s` seconds."""

    def __init__(self, unfinished: int, most: int, retry_s: int) -> None:
        super().__init__(f"{unfinished} answers are unfinished and at most {most} may be: try again later")
        self.retry_s = retry_s


@dataclass
class Seat:
    """What the fleet knows of one replica."""

    replica: Replica
    alive: bool = False
    since: float = 0.0  # when it became ready
    heard: float = 0.0  # when it last said something
    deaths: int = 0  # in a row
    load: Load = field(default_factory=Load)
    before: Counter[str] = field(default_factory=Counter)  # counters of the processes that have died
    error: str = ""


class Fleet:
    """Replicas of one model behind a router."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        route: str = "least-loaded",
        max_queue: int = 512,
        silence_s: float = 300.0,
        on_trace: Callable[[int, list[str]], None] | None = None,
    ) -> None:
        """Nothing is started yet; see `start`."""
        self.seats = [Seat(replica) for replica in replicas]
        self.route, self.max_queue, self.silence_s = route, max_queue, silence_s
        self.router = Router(route, len(replicas))
        self.streams: dict[str, Stream] = {}  # all that the replicas have not finished
        self.homeless: dict[str, Stream] = {}  # those of them that wait for a replica
        self.gauges = Gauges()
        self.ready: Ready | None = None  # what the first replica said of the model
        self.closing = False
        self.restarts = 0
        self._on_trace = on_trace
        self._started: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> Ready:
        """Start all replicas and wait for them. Raises DeviceError with the reason if one can't."""
        self._started = asyncio.get_running_loop().create_future()
        for seat in self.seats:
            seat.replica.start(self._on_message)
        await self._started
        assert self.ready is not None
        self._spawn(self._watch())
        return self.ready

    async def close(self) -> None:
        """Tell every replica to quit, and end those that don't within some seconds."""
        self.closing = True
        for task in self._tasks:
            task.cancel()
        for stream in list(self.streams.values()):
            self._fail(stream, "the server shuts down")
        for seat in self.seats:
            seat.replica.send((QUIT,))
        for seat in self.seats:
            if not await asyncio.to_thread(seat.replica.join, 5.0):
                seat.replica.kill()
                await asyncio.to_thread(seat.replica.join, 5.0)

    @property
    def num_alive(self) -> int:
        """How many replicas can take a job now."""
        return sum(seat.alive for seat in self.seats)

    @property
    def unfinished(self) -> int:
        """Answers that have not ended, waiting or running."""
        return sum(len(stream.open) for stream in self.streams.values())

    # ---- jobs --------------------------------------------------------------------------------------------------------

    def ask(self, jobs: Sequence[Job]) -> Group:
        """Send jobs to replicas, all of them or none. Raises QueueFull (see `check_room`)."""
        self.check_room(sum(job.params.n for job in jobs))
        return Group(jobs, self._submit, self.drop)

    def _submit(self, stream: Stream) -> None:
        self.streams[stream.job.id] = stream
        self._place(stream)

    def check_room(self, answers: int) -> None:
        """Raise QueueFull unless so many more answers may be asked for."""
        unfinished = self.unfinished
        if unfinished + answers > self.max_queue:
            self.gauges.refused += 1
            raise QueueFull(unfinished, self.max_queue, retry_s=1 + unfinished // (16 * len(self.seats)))

    def drop(self, stream: Stream) -> None:
        """Nobody waits for this job any more. Nothing happens if it is over."""
        stream.gone = True
        stream.pieces.clear()
        if stream.job.id not in self.streams:
            return
        if stream.replica is None:
            self._end(stream, "abort")
        else:
            self.seats[stream.replica].replica.send((ABORT, stream.job.id))

    def abort_all(self) -> None:
        """The deadline of a shutdown has come: every answer ends where it is."""
        for stream in list(self.streams.values()):
            self._fail(stream, "the server shuts down", reason="abort")

    def _place(self, stream: Stream) -> None:
        """Choose a replica and send the job there, or let it wait for one."""
        if not self.num_alive:
            stream.replica = None
            self.homeless[stream.job.id] = stream
            return
        alive, load = [seat.alive for seat in self.seats], self._unfinished_by_replica()
        choice = self.router.choose(stream.job.prompt_ids, load, alive)
        stream.replica, stream.reason = choice.replica, choice.reason
        route = {"replica": choice.replica, "route": choice.reason, "matched_tokens": choice.matched_tokens}
        self.seats[choice.replica].replica.send(stream.job._replace(route=route))

    def _unfinished_by_replica(self) -> list[int]:
        load = [0] * len(self.seats)
        for stream in self.streams.values():
            if stream.replica is not None:
                load[stream.replica] += len(stream.open)
        return load

    def _fail(self, stream: Stream, error: str, reason: str = "error") -> None:
        """End every open answer of a job with an error, here and in its replica."""
        if stream.replica is not None and self.seats[stream.replica].alive:
            self.seats[stream.replica].replica.send((ABORT, stream.job.id))
        now = time.perf_counter()
        for index in sorted(stream.open):
            stream.push(Piece(stream.job.id, index, "", None, None, (), now, reason, error))
            self.gauges.finished(stream.job, reason, None)
        self._forget(stream)

    def _end(self, stream: Stream, reason: str) -> None:
        for _ in stream.open:
            self.gauges.finished(stream.job, reason, None)
        stream.open.clear()
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        self.streams.pop(stream.job.id, None)
        self.homeless.pop(stream.job.id, None)

    # ---- what replicas say -------------------------------------------------------------------------------------------

    def _on_message(self, replica: Replica, message: Any) -> None:
        seat = self.seats[replica.index]
        seat.heard = time.monotonic()
        if isinstance(message, Report):
            self._on_report(seat, message)
        elif isinstance(message, Ready):
            self._on_ready(seat, message)
        elif isinstance(message, Failed):
            seat.error = message.error
        else:
            self._on_death(seat)

    def _on_report(self, seat: Seat, report: Report) -> None:
        seat.load = report.load
        self.gauges.stepped(report.load.step_tokens)
        for piece in report.pieces:
            stream = self.streams.get(piece.id)
            if stream is None or stream.replica != seat.replica.index:
                continue
            self.gauges.piece(stream, piece)
            stream.push(piece)
            if not stream.open:
                self._forget(stream)
        if report.trace and self._on_trace:
            self._on_trace(seat.replica.index, report.trace)

    def _on_ready(self, seat: Seat, ready: Ready) -> None:
        seat.alive, seat.since, seat.error = True, time.monotonic(), ""
        self.ready = self.ready or ready
        waiting, self.homeless = self.homeless, {}
        for stream in waiting.values():
            self._place(stream)
        if self._started and not self._started.done() and self.num_alive == len(self.seats):
            self.router = Router(self.route, len(self.seats), block_size=ready.limits.block_size)
            self._started.set_result(None)

    def _on_death(self, seat: Seat) -> None:
        """Its process has ended. Move or end its jobs, and start it anew."""
        lived = time.monotonic() - seat.since if seat.alive else 0.0
        index, seat.alive = seat.replica.index, False
        seat.before.update(_counters(seat.load))
        seat.load = Load()
        self.router.forget(index)
        if self.closing:
            return
        if seat.deaths >= len(PATIENCE_S) and not self.num_alive:
            for stream in list(self.homeless.values()):
                self._fail(stream, f"no replica can be started: {seat.error or 'they die at once'}")
        if self._started and not self._started.done():
            why = seat.error or "its process ended while it was loading"
            self._started.set_exception(DeviceError(f"replica {index} did not start: {why}"))
            return
        seat.deaths = 1 if lived > STEADY_S else seat.deaths + 1
        for stream in [s for s in self.streams.values() if s.replica == index]:
            self._rescue(stream)
        self._spawn(self._restart(seat))

    def _rescue(self, stream: Stream) -> None:
        """The replica of this job is dead: do it again if nobody can tell, else end it."""
        stream.replica = None
        if stream.gone:
            self._end(stream, "abort")
        elif stream.sealed or stream.tries >= MAX_TRIES:
            self._fail(stream, "the replica that worked on this request has died; please try again")
        else:
            stream.again()
            self._place(stream)

    async def _restart(self, seat: Seat) -> None:
        await asyncio.sleep(PATIENCE_S[min(seat.deaths, len(PATIENCE_S)) - 1])
        self.restarts += 1
        await asyncio.to_thread(seat.replica.join, 5.0)
        seat.heard = time.monotonic()
        seat.replica.start(self._on_message)

    async def _watch(self) -> None:
        """Kill a replica that has work and says nothing."""
        while True:
            await asyncio.sleep(min(5.0, self.silence_s / 2))
            busy = {stream.replica for stream in self.streams.values()}
            for seat in self.seats:
                silent = time.monotonic() - max(seat.heard, self._oldest(seat.replica.index))
                if seat.alive and seat.replica.index in busy and silent > self.silence_s:
                    seat.error = f"silent for {silent:.0f} s"
                    seat.replica.kill()

    def _oldest(self, index: int) -> float:
        """When the first job that this replica has was sent, on the monotonic clock."""
        offset = time.monotonic() - time.perf_counter()
        return min((s.job.arrival + offset for s in self.streams.values() if s.replica == index), default=0.0)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _counters(load: Load) -> dict[str, int]:
    return {"queries": load.prefix_queries, "hits": load.prefix_hits, "preemptions": load.preemptions}
