"""What every scheduler has in common: requests come, results are noted down, requests go.

The question *who runs next* is left to `step`, which continuous.py and static.py answer. Everything that must hold
whatever they answer is here: who can never run is refused at once; whoever leaves a queue gives his blocks back; a
block may be found by others only after the step that filled it was committed; each token is reported once.
"""

from bisect import insort
from collections.abc import Callable
from operator import attrgetter

from minifer.errors import InvariantError, RequestError
from minifer.kv_cache.pool import BlockPool
from minifer.limits import EngineConfig
from minifer.scheduler.plan import ScheduledSeq, SeqResult, StepPlan, StepResult, TokenEvent
from minifer.scheduler.request import Request, State

by_rank = attrgetter("rank")


class Scheduler:
    """Call `step`, run the plan, `commit` its result, and so on; `add` and `finish` are allowed at any time between."""

    def __init__(self, config: EngineConfig, order: Callable[[Request], tuple]) -> None:
        """`order` is the order of admission: the request with the smallest value goes first."""
        self.config, self.order = config, order
        self.pool = BlockPool(config.num_blocks, config.block_size, config.enable_prefix_caching)
        self.requests: dict[str, Request] = {}  # all that are not finished
        self.waiting: list[Request] = []  # both in the order of admission
        self.running: list[Request] = []
        self.unborn: dict[str, tuple[Request, ...]] = {}  # siblings that wait for the prompt of answer 0
        self.in_flight: dict[str, Request] | None = None  # what the uncommitted plan runs
        self.num_steps = self.num_added = self.num_preemptions = 0
        self.prefix_queries = self.prefix_hits = 0  # tokens asked for and found at admissions

    def step(self, now: float) -> StepPlan:
        """Decide who runs next. The plan has to be committed before the next step."""
        raise NotImplementedError

    @property
    def seats(self) -> int:
        """Places of the batch that are taken, busy or not."""
        return len(self.running)

    # ---- coming and going --------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request, or refuse it now if it can never run: RequestError, CapacityError with both numbers."""
        family = (request, *request.siblings)
        if any(answer.id in self.requests for answer in family):
            raise RequestError(f"a request with the id {request.id!r} is still running: give it another id")
        max_tokens = self.config.fit(request.id, len(request.prompt_ids), request.params.max_tokens)
        self.num_added += 1
        for answer in family:
            answer.max_tokens = max_tokens
            answer.rank = (*self.order(answer), self.num_added, answer.index)
            self.requests[answer.id] = answer
        if request.siblings:
            self.unborn[request.id] = request.siblings
        insort(self.waiting, request, key=by_rank)

    def finish(self, request_id: str, reason: str, now: float, error: str | None = None) -> list[TokenEvent]:
        """End a request in whatever state it is, with its unborn siblings; one that is not there is a no-op."""
        request = self.requests.get(request_id)
        if request is None:
            return []
        self._end(request, reason, now, error)
        events = [TokenEvent(request_id, None, None, (), reason, now, error)]
        for sibling in self.unborn.pop(request_id, ()):
            events += self.finish(sibling.id, reason, now, error)
        return events

    def abort(self, request_id: str, now: float) -> list[TokenEvent]:
        """`finish` for whoever no longer wants the answer."""
        return self.finish(request_id, "abort", now)

    def _end(self, request: Request, reason: str, now: float, error: str | None = None) -> None:
        del self.requests[request.id]
        if self.in_flight:
            self.in_flight.pop(request.id, None)  # what the running step says about it will be ignored
        self._leave(request, State.FINISHED)
        request.finish_reason, request.finished, request.error = reason, now, error

    def _leave(self, request: Request, state: State) -> None:
        """Take a request out of its queue, and its blocks from it."""
        queue = self.running if request.state is State.RUNNING else self.waiting
        if request in queue:  # an unborn sibling is in neither
            queue.remove(request)
        self.pool.free(request.block_table)
        request.block_table, request.num_computed, request.num_registered = (), 0, 0
        request.state = state

    def _enter(self, request: Request, table: tuple[int, ...], num_computed: int) -> None:
        """Seat a request on blocks whose first `num_computed` tokens are in the cache."""
        request.block_table, request.num_computed = table, num_computed
        request.num_registered = num_computed // self.pool.block_size
        if request.num_cached is None:
            request.num_cached = num_computed
        request.state = State.RUNNING
        insort(self.running, request, key=by_rank)

    # ---- taking note -------------------------------------------------------------------------------------------------

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]:
        """Take in what a plan's run has given: one event per new token or ended request.

        A sequence without a result, with an error or with a NaN ends its own request and no other.
        """
        if self.in_flight is None or plan.step != self.num_steps:
            raise InvariantError(f"step {plan.step} is not the one that waits for its commit")
        in_flight, self.in_flight = self.in_flight, None
        results = {outcome.request_id: outcome for outcome in result.results}
        events: list[TokenEvent] = []
        for seq in plan.seqs:
            request = in_flight.get(seq.request_id)
            outcome = results.get(seq.request_id, _NOTHING)
            if request is None:
                continue
            if error := _error_of(seq, outcome):
                events += self.finish(request.id, "error", now, error)
                continue
            self._advance(request, seq)
            if seq.samples:
                events.append(self._emit(request, outcome, now))
        return events

    def _advance(self, request: Request, seq: ScheduledSeq) -> None:
        """The tokens of this step are in the cache: count them, let full blocks be found, wake the siblings."""
        request.num_computed = seq.start + len(seq.tokens)
        full = request.num_computed // self.pool.block_size
        if full > request.num_registered:
            self.pool.register(request.block_table, request.chain, request.token_ids, request.num_registered, full)
            request.num_registered = full
        if seq.samples and request.id in self.unborn:
            self._fork(request)

    def _fork(self, request: Request) -> None:
        """Start the siblings on the blocks of the prompt, all but its last token: its logits give each a first token.

        A sibling without a seat waits like any other request, and will find the full blocks in the prefix cache.
        """
        for sibling in self.unborn.pop(request.id):
            if sibling.state is State.FINISHED:
                continue
            sibling.chain = list(request.chain)
            if self.seats < self.config.max_num_seqs:
                self._enter(sibling, self.pool.fork(request.block_table), request.num_computed - 1)
            else:
                insort(self.waiting, sibling, key=by_rank)

    def _emit(self, request: Request, outcome: SeqResult, now: float) -> TokenEvent:
        """Append a token, and end the request if that was its last one."""
        token, reason = outcome.token_id, None
        if request.max_tokens == 0:  # only the prompt was wanted
            outcome, reason = _NOTHING, "length"
        elif token is not None:
            request.output_ids.append(token)
            request.token_ids.append(token)
            request.token_times.append(now)
            reason = "length" if len(request.output_ids) == request.max_tokens else None
            reason = "stop" if token in request.stop_ids else reason
        if reason:
            self._end(request, reason, now)
        return TokenEvent(request.id, outcome.token_id, outcome.logprob, outcome.top, reason, now)


_NOTHING = SeqResult("")


def _error_of(seq: ScheduledSeq, outcome: SeqResult) -> str | None:
    """What is wrong with the result of a sequence, if anything is."""
    if outcome.error is not None or not seq.samples:
        return outcome.error
    if outcome.token_id is None:
        return "the executor returned no token"
    is_nan = outcome.logprob is not None and outcome.logprob != outcome.logprob
    return "the log-probability of the token is NaN" if is_nan else None
