"""What the tests of phases 07 and 08 share: a small world in which a scheduler runs on the fake model.

`World` checks the books after every step, bounds the number of steps (a hang is a failed test) and compares answers
with `alone`, the answer of the fake model to one request that has the machine to itself and no cache at all.
"""

from typing import Any

from minifer.clock import ManualClock
from minifer.engine import Engine
from minifer.limits import EngineConfig
from minifer.sampling import SamplingParams
from minifer.scheduler.base import Scheduler
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.fake import FakeExecutor, fake_salt, fake_tokens
from minifer.scheduler.plan import StepPlan, StepResult, TokenEvent
from minifer.scheduler.request import Request, State

VOCABULARY = 1000


def make_request(name: str, prompt: Any, max_tokens: int | None = 4, **options: Any) -> Request:
    """A request; `prompt` is a list of ids, or a length."""
    ids = (
        [(7 * i + 3 * len(name) + ord(name[-1])) % VOCABULARY for i in range(prompt)]
        if isinstance(prompt, int)
        else prompt
    )
    mine = {key: options.pop(key) for key in ("arrival", "priority", "eos_ids") if key in options}
    return Request(name, tuple(ids), SamplingParams(max_tokens=max_tokens, **options), **mine)


def alone(request: Request) -> list[int]:
    """The answer to a request that has the machine to itself."""
    tokens = fake_tokens(request.prompt_ids, request.max_tokens, fake_salt(request), VOCABULARY)
    for place, token in enumerate(tokens):
        if token in request.stop_ids:
            return tokens[: place + 1]
    return tokens


def check_books(scheduler: Scheduler) -> None:
    """Blocks are conserved, and queues, tables and requests agree with one another."""
    scheduler.pool.check(request.block_table for request in scheduler.running)
    unborn = [s for family in scheduler.unborn.values() for s in family if s.state is not State.FINISHED]
    everyone = [*scheduler.running, *scheduler.waiting, *unborn]
    assert sorted(r.id for r in everyone) == sorted(scheduler.requests)
    assert len(scheduler.running) <= scheduler.config.max_num_seqs
    for request in scheduler.running:
        assert request.state is State.RUNNING
        assert request.num_computed <= len(request.block_table) * scheduler.pool.block_size
        assert request.num_computed < len(request.token_ids)
    for request in scheduler.waiting:
        assert request.state in (State.WAITING, State.PREEMPTED)
        assert request.block_table == ()
    for queue in (scheduler.running, scheduler.waiting):
        assert queue == sorted(queue, key=lambda request: request.rank)


def check_plan(plan: StepPlan, config: EngineConfig) -> None:
    """A plan keeps the token budget, and writes no slot twice."""
    assert plan.num_tokens <= config.max_num_batched_tokens
    written = [slot for seq in plan.seqs for slot in seq.slots]
    assert len(written) == len(set(written)), "two tokens go to the same slot"
    for seq in plan.seqs:
        places = range(seq.start, seq.context)
        size = config.block_size
        assert seq.slots == tuple(seq.block_table[p // size] * size + p % size for p in places)
        assert len(seq.tokens) == len(seq.slots) > 0


class World:
    """An engine on the fake model that keeps every plan and every event."""

    def __init__(
        self,
        num_blocks: int = 8,
        block_size: int = 4,
        kind: type = ContinuousScheduler,
        policy: dict | None = None,
        **limits: Any,
    ) -> None:
        self.config = EngineConfig(num_blocks, block_size, **limits)
        self.scheduler: ContinuousScheduler = kind(self.config, **(policy or {}))
        self.executor = FakeExecutor(num_blocks, block_size, VOCABULARY)
        self.clock = ManualClock()
        self.engine = Engine(self.scheduler, self, self.clock)
        self.plans: list[StepPlan] = []
        self.events: list[TokenEvent] = []
        self.asked: list[Request] = []

    def run(self, plan: StepPlan, requests: Any) -> StepResult:
        """The executor's side: every step takes a second, and every plan is looked at."""
        check_plan(plan, self.config)
        self.clock.advance(1.0)
        return self.executor.run(plan, requests)

    def add(self, *requests: Request) -> None:
        """Queue requests, in this order."""
        for request in requests:
            self.engine.add(request)
            self.asked += [request, *request.siblings]

    def step(self) -> StepPlan:
        """One step, with everything checked behind it."""
        before = self.scheduler.step

        def step(now: float) -> StepPlan:
            self.plans.append(before(now))
            return self.plans[-1]

        self.scheduler.step = step  # type: ignore[method-assign]
        try:
            self.events += self.engine.step()
        finally:
            del self.scheduler.step
        check_books(self.scheduler)
        return self.plans[-1]

    def finish_all(self, most_steps: int = 12_000) -> list[StepPlan]:
        """Step until everyone is done, and compare every answer that was not cut short."""
        for _ in range(most_steps):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, f"not done after {most_steps} steps: a hang"
        assert self.scheduler.pool.num_free == self.config.num_blocks
        for request in self.asked:
            self.check_answer(request)
        return self.plans

    def check_answer(self, request: Request) -> None:
        """An answer equals its solo run, or its beginning if it was cut short; every token was reported once."""
        right = alone(request) if request.max_tokens else []
        if request.finish_reason in ("abort", "error"):
            right = right[: len(request.output_ids)]
        assert request.output_ids == right, f"{request.id} differs from its solo run"
        reported = [e.token_id for e in self.events if e.request_id == request.id and e.token_id is not None]
        assert reported == right
        assert len(request.token_times) == len(right)
        assert request.finish_reason is not None
        ends = [e for e in self.events if e.request_id == request.id and e.finish_reason]
        assert len(ends) == 1

    def finish(self, name: str, reason: str = "abort") -> None:
        """End a request from outside, as the engine's owner does."""
        self.events += self.engine.finish(name, reason)
        check_books(self.scheduler)


def phases(plan: StepPlan) -> dict[str, tuple[str, int]]:
    """What a plan does, in short: request -> (phase, tokens)."""
    return {seq.request_id: (seq.phase, len(seq.tokens)) for seq in plan.seqs}
