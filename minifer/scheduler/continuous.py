"""Continuous batching: who runs in the next step, decided anew before every step.

Static batching (static.py) waits until the longest answer of a batch is done. Here a seat is given to the next request
the moment it is free, so a step is a mixture: the next token of every running answer, and pieces of new prompts.

    waiting --admit--> running --finish-->        step:  1 decodes   2 prompts under way   3 new requests
       ^                  |                              |<--------- max_num_batched_tokens --------->|
       +---- preempt -----+

The policy, in the order in which a step spends its token budget:

1. *Decodes first.* Every running answer gets its token, so nobody's stream stalls behind somebody's long prompt.
2. *Prompts in chunks.* What is left goes to prompts under way, oldest first, then to new requests. If a prompt is too
   long to end in this step, new ones that fit whole into half of the rest go before it: short questions are answered
   while a long document is read, and the document still moves on.
3. *Admission in strict order*, by seats and by blocks. A request gets the blocks of all it knows, and is let in only
   if one more is free to grow into (or if it will never need one more). Who does not fit makes all behind him wait:
   nobody is overtaken for ever.
4. *Preemption by recompute.* If a running answer needs a block and none is free, the newest request gives all of its
   blocks back and later computes prompt and answer again, in silence. The oldest is never the victim, so somebody
   always makes progress; and a step that preempted admits no one, so nobody is let in just to be thrown out.

`step` decides and `commit` takes note of what came out. Nothing here computes, prints or reads a clock. The two
functions to change for another policy are `fcfs` (or `by_priority`) and `newest`. Sources: Yu et al. 2022, "Orca"
(iteration-level scheduling); Agrawal et al. 2024, "Sarathi-Serve" (chunked prefill beside decodes); vLLM.
"""

from bisect import insort
from collections.abc import Callable

from minifer.errors import InvariantError
from minifer.limits import EngineConfig
from minifer.scheduler.base import Scheduler, by_rank
from minifer.scheduler.plan import ScheduledSeq, StepPlan
from minifer.scheduler.request import Request, State


def fcfs(request: Request) -> tuple:
    """PLACE TO CHANGE, the order of admission: first come, first served. The smallest value goes first."""
    return (request.arrival,)


def by_priority(request: Request) -> tuple:
    """Another order: the lowest `priority` first, the earliest among equals. A flood of urgent ones starves others."""
    return (request.priority, request.arrival)


def newest(running: list[Request]) -> Request:
    """PLACE TO CHANGE, the victim of preemption: the last in the order of admission, who has the least to lose."""
    return running[-1]


class _Draft:
    """A plan in the making. `seqs` is keyed by request, because a preemption may take one out again."""

    def __init__(self, budget: int, now: float) -> None:
        self.budget, self.now = budget, now
        self.seqs: dict[str, ScheduledSeq] = {}
        self.copies: dict[str, tuple[int, int]] = {}
        self.admitted: list[tuple[str, int]] = []
        self.preempted: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []


class ContinuousScheduler(Scheduler):
    """The four rules above. `order` and `victim` are functions, so that a policy can be handed in.

    >>> from types import SimpleNamespace
    >>> from minifer.scheduler.plan import SeqResult, StepResult
    >>> params = SimpleNamespace(n=1, max_tokens=2, ignore_eos=False, stop_token_ids=())
    >>> scheduler = ContinuousScheduler(EngineConfig(num_blocks=4, block_size=4))
    >>> scheduler.add(Request("r1", (5, 6, 7), params))
    >>> plan = scheduler.step(now=0.0)
    >>> print(plan)
    step 1: prefill r1[0:3]; tokens: 3; admitted r1; running: 1, waiting: 0, free blocks: 3
    >>> events = scheduler.commit(plan, StepResult((SeqResult("r1", token_id=8),)), now=0.1)
    >>> events[0].token_id, scheduler.running[0].token_ids
    (8, [5, 6, 7, 8])
    """

    def __init__(
        self,
        config: EngineConfig,
        order: Callable[[Request], tuple] = fcfs,
        victim: Callable[[list[Request]], Request] = newest,
    ) -> None:
        super().__init__(config, order)
        self.victim = victim
        self._draft = _Draft(0, 0.0)

    # ---- the decision ------------------------------------------------------------------------------------------------

    def step(self, now: float) -> StepPlan:
        """Decide who runs next. The plan has to be committed before the next step."""
        if self.in_flight is not None:
            raise InvariantError(f"step {self.num_steps} has not been committed")
        self.num_steps += 1
        self._draft = draft = _Draft(self.config.max_num_batched_tokens, now)
        self._run([r for r in self.running if r.output_ids and r.remaining == 1])
        prompts = [r for r in self.running if r.id not in draft.seqs]
        if sum(r.remaining for r in prompts) > draft.budget:
            self._admit(draft.budget // 2, whole=True)
            self._run(prompts)
        else:
            self._run(prompts)
            self._admit(draft.budget, whole=not self.config.enable_chunked_prefill)
        return self._plan()

    def _run(self, requests: list[Request]) -> None:
        """`_schedule` for each what it can use of `_draft.budget`; some may be preempted by others before that."""
        for request in requests:
            count = min(request.remaining, self._draft.budget)
            if count and request.state is State.RUNNING and self._make_room(request):
                self._schedule(request, count)

    def _schedule(self, request: Request, count: int) -> None:
        """Put the next `count` tokens of a request into the plan."""
        start, known = request.num_computed, request.token_ids
        stop = start + count
        if request.first_scheduled is None:
            request.first_scheduled = self._draft.now
        self._draft.budget -= count
        tokens, slots = tuple(known[start:stop]), self.pool.slots(request.block_table, start, stop)
        phase = "decode" if request.output_ids and start == len(known) - 1 else "prefill"
        self._draft.seqs[request.id] = ScheduledSeq(
            request.id, tokens, start, slots, request.block_table, stop == len(known), phase
        )

    # ---- admission ---------------------------------------------------------------------------------------------------

    def _admit(self, budget: int, whole: bool) -> None:
        """Let requests in, in order, until one does not fit; `whole` if their prompts must fit into what is left."""
        while self.waiting and not self._draft.preempted:
            request = self.waiting[0]
            why, hit = self._why_not(request, budget, whole)
            if why:
                self._draft.refused.append((request.id, why))
                return
            del self.waiting[0]
            self._enter(request, self.pool.allocate(self._blocks(request)[0] - len(hit), hit), self._tokens(hit))
            self._draft.admitted.append((request.id, request.num_computed))
            self.prefix_queries += len(request.token_ids)
            self.prefix_hits += request.num_computed
            count = min(request.remaining, budget)
            if count:
                self._schedule(request, count)
                budget -= count

    def _why_not(self, request: Request, budget: int, whole: bool) -> tuple[str, tuple[int, ...]]:
        """Why a request cannot be admitted in this step, or "" and the blocks that hold its beginning already."""
        if len(self.running) >= self.config.max_num_seqs:
            return f"all {self.config.max_num_seqs} seats are taken", ()
        hit = self.pool.find(request.chain, request.token_ids)
        rest = request.remaining - self._tokens(hit)
        need, room = self._blocks(request)[1] - len(hit), self.pool.room_beside(hit)
        if need > room:
            return f"blocks needed: {need}, free: {room}", ()
        if budget < (rest if whole else 1):
            return f"tokens to compute: {rest}, left in this step: {budget}", ()
        return "", hit

    def _blocks(self, request: Request) -> tuple[int, int]:
        """How many blocks an admission takes, and how many it wants to see: one more to grow into, if it can grow."""
        take = self.pool.blocks_for(len(request.token_ids))
        return take, min(take + 1, self.pool.blocks_for(request.num_slots))

    def _tokens(self, hit: tuple[int, ...]) -> int:
        return len(hit) * self.pool.block_size

    # ---- preemption --------------------------------------------------------------------------------------------------

    def _make_room(self, request: Request) -> bool:
        """See to it that the next token's block exists and is the request's own; False if that cost it its place.

        Only a decode grows: the blocks of a prompt came with the admission. Only a fork meets a shared block.
        """
        index = request.num_computed // self.pool.block_size
        while index == len(request.block_table) or self.pool.is_shared(request.block_table[index]):
            if not self.pool.num_free:
                if self._preempt(f"{request.id} needed a block") is request:
                    return False
            elif index == len(request.block_table):
                request.block_table = self.pool.grow(request.block_table)
            else:
                request.block_table, self._draft.copies[request.id] = self.pool.own(request.block_table, index)
        return True

    def _preempt(self, why: str) -> Request:
        """Send the victim back to the queue, and take out of the plan what it was to do in this step."""
        victim, draft = self.victim(self.running), self._draft
        self._leave(victim, State.PREEMPTED)
        insort(self.waiting, victim, key=by_rank)
        victim.num_preemptions += 1
        self.num_preemptions += 1
        draft.preempted.append((victim.id, why))
        draft.copies.pop(victim.id, None)
        if victim.id in draft.seqs:
            draft.budget += len(draft.seqs.pop(victim.id).tokens)
        return victim

    def _plan(self) -> StepPlan:
        draft = self._draft
        self.in_flight = {name: self.requests[name] for name in draft.seqs}
        seqs, copies = tuple(draft.seqs.values()), tuple(draft.copies.values())
        decisions = tuple(draft.admitted), tuple(draft.preempted), tuple(draft.refused)
        load = len(self.running), len(self.waiting), self.seats, self.pool.num_free
        return StepPlan(self.num_steps, draft.now, seqs, copies, *decisions, *load)
