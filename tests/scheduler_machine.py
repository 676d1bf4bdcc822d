"""A state machine over everything that can happen to a scheduler, for hypothesis to search.

Rules: add (also with n > 1, which forks), abort, finish, step, preempt (anybody, not only the victim that the policy
would choose). After every step the books are checked; at the end everybody must be done within a bounded number of
steps, and every answer must equal its solo run. `steps_taken` says how many engine steps a search has made.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from scheduling import World, alone, check_books, make_request

from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.request import State
from minifer.scheduler.static import StaticScheduler

steps_taken = 0


class SchedulerMachine(RuleBasedStateMachine):
    """One run: a small pool, and whatever hypothesis thinks of."""

    @initialize(
        num_blocks=st.integers(1, 8),
        block_size=st.sampled_from([1, 2, 3, 4, 8, 16]),
        seats=st.integers(1, 4),
        extra_budget=st.integers(0, 12),
        caching=st.booleans(),
        static=st.booleans(),
    )
    def start(
        self, num_blocks: int, block_size: int, seats: int, extra_budget: int, caching: bool, static: bool
    ) -> None:
        """Choose the limits."""
        self.world = World(
            num_blocks,
            block_size,
            kind=StaticScheduler if static else ContinuousScheduler,
            max_num_seqs=seats,
            max_num_batched_tokens=seats + extra_budget,
            enable_prefix_caching=caching,
        )
        self.capacity = num_blocks * block_size
        self.count = 0

    @rule(data=st.data(), common=st.integers(0, 40), own=st.integers(1, 12), n=st.sampled_from([1, 1, 1, 2, 4]))
    def add(self, data: Any, common: int, own: int, n: int) -> None:
        """A prompt that begins like others, and maybe stops early."""
        prompt = ([5, 6, 7, 8] * 10)[: min(common, self.capacity - 1)]
        prompt += [(self.count + i) % 3 for i in range(min(own, self.capacity - len(prompt)))]
        most = min(self.capacity - len(prompt) + 1, 24)
        max_tokens = data.draw(st.integers(0, most))
        request = make_request(f"r{self.count}", prompt, max_tokens, n=n, arrival=self.world.clock.now())
        if data.draw(st.booleans()) and max_tokens > 2:
            request.max_tokens = max_tokens
            request.stop_ids = frozenset(alone(request)[max_tokens // 2 :])
        self.world.add(request)
        self.count += 1

    @rule(times=st.integers(1, 16))
    def step(self, times: int) -> None:
        """Some steps in a row."""
        for _ in range(times):
            self._step()

    @precondition(lambda self: self.world.scheduler.requests)
    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        """End anybody, in whatever state."""
        name = data.draw(st.sampled_from(sorted(self.world.scheduler.requests)))
        self.world.finish(name)

    @precondition(lambda self: self.world.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data: Any) -> None:
        """Take the blocks from anybody, between two steps."""
        scheduler = self.world.scheduler
        victim = data.draw(st.sampled_from([r.id for r in scheduler.running]))
        keep, scheduler.victim = scheduler.victim, lambda running: next(r for r in running if r.id == victim)
        scheduler._preempt("the test wanted it")
        scheduler.victim = keep
        check_books(scheduler)

    def teardown(self) -> None:
        """Nobody starves, and every answer is the right one."""
        if not hasattr(self, "world"):
            return
        work = sum(len(r.prompt_ids) + r.max_tokens + 2 for r in self.world.asked if r.state is not State.FINISHED)
        for _ in range(3 * work + 2):
            if not self.world.engine.has_work:
                break
            self._step()
        self.world.finish_all(most_steps=0)

    def _step(self) -> None:
        global steps_taken
        steps_taken += 1
        self.world.step()
