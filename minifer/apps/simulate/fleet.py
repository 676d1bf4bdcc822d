"""The virtual clock: arrivals are routed, replicas take their steps, and time jumps from one to the next.

A replica is an `Engine` like any other, with its scheduler, pool and prefix cache; its executor computes nothing and
moves the replica's own clock forward by the time that the step would take. So nothing about scheduling is simulated:
it is done. The fleet only sees to it that things happen in the order of time:

    whoever is furthest behind goes next: an arrival at time A is routed before any step that starts at A or later

The router sees what a router would see at that moment: how many requests are unfinished on each replica, where a step
that is still under way has not finished any.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from minifer.apps.simulate.leap import leap, steps_ahead
from minifer.apps.simulate.policies import Policy, make_router
from minifer.apps.simulate.steptime import Features, StepTime, features_of
from minifer.apps.simulate.tally import Tally
from minifer.apps.workloads import Arrival
from minifer.clock import ManualClock
from minifer.engine import Engine
from minifer.errors import RequestError, UsageError
from minifer.limits import EngineConfig
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.plan import SeqResult, StepPlan, StepResult
from minifer.scheduler.request import Request
from minifer.trace import Recorder

TOKEN = 0
"""What every simulated token is. Nobody reads it."""

NEVER = float("inf")


class VirtualClock(ManualClock):
    """A clock that can also be told what time it is."""

    def move_to(self, now: float) -> None:
        """Move forward to a time, to the last bit."""
        self._now = now


class RooflineExecutor:
    """An executor that only lets time pass: `clock` moves by what the plan would take, and every answer is `TOKEN`."""

    def __init__(self, time: StepTime, clock: VirtualClock, window: int) -> None:
        self.time, self.clock, self.window = time, clock, window
        self.busy_s = 0.0

    def run(self, plan: StepPlan, requests: Mapping[str, Request]) -> StepResult:  # noqa: ARG002
        """Let the time of this step pass."""
        self.spend(features_of(plan.seqs, self.window))
        return StepResult(tuple([SeqResult(seq.request_id, TOKEN) for seq in plan.seqs if seq.samples]))

    def spend(self, features: Features) -> None:
        """Let the time of a step with these features pass."""
        seconds = self.time.seconds(features)
        self.clock.advance(seconds)
        self.busy_s += seconds

    def spend_many(self, decodes: int, seen: int, more: int, count: int, horizon: float) -> list[float]:
        """Let at most `count` steps pass that only decode, as long as they start before `horizon`; when each ended.

        `seen` keys are seen in the first of them and `more` in each one after it.
        """
        seconds_of, now, busy = self.time.decoding(decodes), self.clock.now(), self.busy_s
        stamps: list[float] = []
        while len(stamps) < count and now < horizon:
            seconds = seconds_of(seen)
            now += seconds
            busy += seconds
            seen += more
            stamps.append(now)
        self.clock.move_to(now)
        self.busy_s = busy
        return stamps


@dataclass
class Replica:
    """One engine on its own virtual clock. `leaps` says whether it may take many decode steps at once."""

    config: EngineConfig
    time: StepTime
    window: int
    trace: Recorder | None = None
    leaps: bool = True
    order: Callable[[Request], tuple] | None = None
    requests: dict[str, Request] = field(default_factory=dict)  # unfinished ones
    finishing: deque[float] = field(default_factory=deque)  # when those ended that the router still has to hear of
    unfinished: int = 0  # as far as the router has heard
    num_steps: int = 0
    num_leapt: int = 0

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        scheduler = ContinuousScheduler(self.config, self.order) if self.order else ContinuousScheduler(self.config)
        self.executor = RooflineExecutor(self.time, self.clock, self.window)
        self.engine = Engine(scheduler, self.executor, self.clock, self.trace)
        self.leaps = self.leaps and self.trace is None  # a trace wants to see every step

    @property
    def next_step(self) -> float:
        """When this replica wants to start a step: now, or never if it has nothing to do."""
        return self.clock.now() if self.requests else NEVER

    def load(self, now: float) -> int:
        """Unfinished requests, as seen from outside at `now`."""
        while self.finishing and self.finishing[0] <= now:
            self.finishing.popleft()
            self.unfinished -= 1
        return self.unfinished

    def add(self, request: Request) -> None:
        """Take a request in. Raises RequestError if it can never run here."""
        if not self.requests and request.arrival > self.clock.now():
            self.clock.advance(request.arrival - self.clock.now())
        self.engine.add(request)
        self.requests[request.id] = request
        self.unfinished += 1

    def step(self, horizon: float) -> list[Request]:
        """One step, or as many at once as are certain and start before `horizon`; returns the requests that ended."""
        if self.leaps and (ahead := steps_ahead(self.engine.scheduler)) > 1:
            self._leap(ahead, horizon)
            return []
        self.num_steps += 1
        ended = [self.requests.pop(e.request_id) for e in self.engine.step() if e.finish_reason]
        self.finishing.extend([self.clock.now()] * len(ended))
        return ended

    def _leap(self, ahead: int, horizon: float) -> None:
        running = self.engine.scheduler.running
        contexts = [request.num_computed + 1 for request in running]
        growing = [context for context in contexts if context < self.window]
        if growing:
            ahead = min(ahead, self.window - max(growing))  # until the next of them fills its window
        seen = sum(growing) + self.window * (len(contexts) - len(growing))
        stamps = self.executor.spend_many(len(running), seen, len(growing), ahead, horizon)
        leap(self.engine.scheduler, stamps, TOKEN)
        self.num_steps += len(stamps)
        self.num_leapt += len(stamps)


class Fleet:
    """Replicas behind a router.

    `make_replica(i)` makes each of them; all start at time 0. `on_choice(arrival, replica, reason)` hears where each
    request went and why. `policy` is the name of one, or a function of your own (policies.py).
    """

    def __init__(
        self,
        make_replica: Callable[[int], Replica],
        num_replicas: int,
        policy: str | Policy = "round-robin",
        on_choice: Callable[[Arrival, int, str], None] | None = None,
    ) -> None:
        if num_replicas < 1:
            raise UsageError(f"a fleet has at least one replica, not {num_replicas}")
        self.replicas = [make_replica(i) for i in range(num_replicas)]
        self.router = make_router(policy, num_replicas, block_size=self.replicas[0].config.block_size)
        self.on_choice = on_choice
        self.tally = Tally()

    def run(self, arrivals: Iterable[Arrival], progress: Callable[[int], None] | None = None) -> Tally:
        """Serve all arrivals, which come in the order of time, to their last token.

        `progress(n)` is told now and then how many requests have ended.
        """
        coming = iter(arrivals)
        arrival = next(coming, None)
        heap: list[tuple[float, int]] = []  # (start of the next step, replica), one entry for each that has work
        while arrival is not None or heap:
            if arrival is not None and (not heap or arrival.at <= heap[0][0]):
                started = self._route(arrival)
                if started is not None:
                    heapq.heappush(heap, (self.replicas[started].next_step, started))
                arrival = _in_order(arrival, next(coming, None))
                continue
            _, index = heap[0]
            self._step(index, arrival.at if arrival is not None else NEVER)
            if progress is not None:
                progress(len(self.tally.finished))
            if self.replicas[index].requests:
                heapq.heapreplace(heap, (self.replicas[index].next_step, index))
            else:
                heapq.heappop(heap)
        return self.tally

    def _step(self, index: int, horizon: float) -> None:
        for request in self.replicas[index].step(horizon):
            self.tally.note(request)

    def _route(self, arrival: Arrival) -> int | None:
        """Send an arrival where the router says; returns the replica if that had nothing to do before."""
        if self.tally.first_arrival is None:
            self.tally.first_arrival = arrival.at
        choice = self.router.choose(arrival.prompt_ids, [replica.load(arrival.at) for replica in self.replicas])
        replica = self.replicas[choice.replica]
        was_idle = not replica.requests
        try:
            replica.add(request_of(arrival))
        except RequestError as error:
            self.tally.refused.append((arrival.index, str(error)))
            return None
        if self.on_choice is not None:
            self.on_choice(arrival, choice.replica, choice.reason)
        return choice.replica if was_idle else None


def request_of(arrival: Arrival) -> Request:
    """The request that an arrival makes: it generates exactly `output_len` tokens."""
    params: Any = SimpleNamespace(n=1, max_tokens=arrival.output_len, ignore_eos=True, stop_token_ids=())
    return Request(f"r{arrival.index}", arrival.prompt_ids, params, arrival.at)


def _in_order(before: Arrival, after: Arrival | None) -> Arrival | None:
    if after is not None and after.at < before.at:
        raise UsageError(
            f"time runs backwards: arrival {after.index} comes at {after.at} s, after one at {before.at} s"
        )
    return after
