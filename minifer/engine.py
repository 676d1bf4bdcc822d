"""The engine: plan -> forward -> sample -> emit, over and over.

Everything that decides is in the scheduler, everything that computes is in the executor, and the time comes from a
clock that is handed in. What is left is the loop between them, and what happens when the executor fails: an error for
one sequence ends that request, an exception ends the requests of that plan; the blocks come back and the rest go on.

    engine.add(request)
    while engine.has_work:
        for event in engine.step():
            ...                       # one token of one answer, or its end

The engine knows token ids only. Text, stop strings and prompts are the business of `llm.py`, which ends a request from
outside with `finish(id, "stop")`. It is not thread-safe: one thread calls `step`, and whoever wants to add or abort
meanwhile hands it to that thread (an abort that arrives while the executor runs is fine: the result is then ignored).
"""

from typing import Any

from minifer.clock import Clock, MonotonicClock
from minifer.errors import InvariantError
from minifer.scheduler.base import Scheduler
from minifer.scheduler.plan import Executor, StepPlan, StepResult, TokenEvent
from minifer.scheduler.request import Request
from minifer.trace import Recorder


class Engine:
    """A scheduler, an executor and a clock, put together.

    >>> from types import SimpleNamespace
    >>> from minifer.limits import EngineConfig
    >>> from minifer.scheduler.continuous import ContinuousScheduler
    >>> from minifer.scheduler.fake import FakeExecutor, fake_tokens
    >>> engine = Engine(ContinuousScheduler(EngineConfig(num_blocks=4, block_size=4)), FakeExecutor(4, 4))
    >>> engine.add(Request("r1", (5, 6, 7), SimpleNamespace(n=1, max_tokens=3, ignore_eos=False, stop_token_ids=())))
    >>> events = engine.run()
    >>> [event.token_id for event in events] == fake_tokens([5, 6, 7], 3), events[-1].finish_reason
    (True, 'length')
    """

    def __init__(
        self, scheduler: Scheduler, executor: Executor, clock: Clock | None = None, trace: Recorder | None = None
    ) -> None:
        self.scheduler, self.executor, self.trace = scheduler, executor, trace
        self.clock = clock or MonotonicClock()
        self._empty_steps = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished."""
        return bool(self.scheduler.requests)

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError or CapacityError if it can never run; nothing has changed then."""
        self.scheduler.add(request)
        if self.trace is not None:
            self.trace.added(request, self.clock.now())

    def abort(self, request_id: str) -> list[TokenEvent]:
        """Give a request up and its blocks back; nothing happens if the id is unknown or finished."""
        return self.finish(request_id, "abort")

    def finish(self, request_id: str, reason: str) -> list[TokenEvent]:
        """End a request from outside. The events that `step` will now not report are returned."""
        events = self.scheduler.finish(request_id, reason, self.clock.now())
        if self.trace is not None and events:
            self.trace.ended(events)
        return events

    def step(self) -> list[TokenEvent]:
        """One step: decide, compute, note down. Returns one event per new token or ended request."""
        plan = self.scheduler.step(self.clock.now())
        result = self._compute(plan)
        now = self.clock.now()
        events = self.scheduler.commit(plan, result, now)
        if self.trace is not None:
            self.trace.stepped(plan, events, now)
        # A step may be empty (the only answer gave its blocks up), but never two in a row: that would be a hang.
        self._empty_steps = 0 if plan.seqs else self._empty_steps + 1
        if self._empty_steps > 1 and self.has_work:
            raise InvariantError(f"{len(self.scheduler.requests)} requests wait and nothing can run: {plan}")
        return events

    def run(self) -> list[TokenEvent]:
        """Step until every request is finished, and return all events in order."""
        events: list[TokenEvent] = []
        while self.has_work:
            events += self.step()
        return events

    def _compute(self, plan: StepPlan) -> StepResult:
        if not plan.seqs:
            return StepResult()
        requests: dict[str, Any] = dict(self.scheduler.in_flight or {})  # a copy: an abort may shorten the original
        try:
            return self.executor.run(plan, requests)
        except Exception as error:
            return StepResult.failed(plan, f"{type(error).__name__}: {error}")
        except BaseException as error:  # Ctrl-C: leave the books in order for whoever catches it
            self.scheduler.commit(plan, StepResult.failed(plan, type(error).__name__), self.clock.now())
            raise
