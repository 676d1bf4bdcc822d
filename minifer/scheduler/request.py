"""A request, from its arrival to its last token.

    add() -> WAITING --admitted--> RUNNING --last token, abort, error--> FINISHED
                ^                     |
                +------ PREEMPTED <---+      (its blocks were needed by an older request: it computes everything again)

The scheduler owns every field below the line in `Request`; others read them. Two counts tell where a request stands:
`len(token_ids)` is what is known (prompt and answer so far), `num_computed` is what the KV cache holds. In prefill the
gap between them is the rest of the prompt, in decode it is one: the token that was sampled last and not yet fed in.

This file decides nothing and computes nothing; see `continuous.py` for who runs when.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from minifer.kv_cache.prefix import BlockKey

if TYPE_CHECKING:
    from minifer.sampling import SamplingParams


class State(Enum):
    """Where a request is in its life; the arrows are drawn in the module docstring."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Request:
    """One prompt and the answer that grows behind it.

    `params.n > 1` asks for n answers: the request itself is answer 0, and `siblings` are made at once with the ids
    "r1.1", "r1.2" ...; the scheduler forks them when the prompt has been computed, so that the prompt is paid for once.

    >>> from types import SimpleNamespace
    >>> params = SimpleNamespace(n=2, max_tokens=8, ignore_eos=False, stop_token_ids=(7,))
    >>> request = Request("r1", (5, 6), params, arrival=0.5, eos_ids=(2,))
    >>> [sibling.id for sibling in request.siblings], sorted(request.stop_ids), request.state.value
    (['r1.1'], [2, 7], 'waiting')
    """

    # Given by whoever makes the request, valid from the start.
    id: str
    prompt_ids: tuple[int, ...]
    params: "SamplingParams"
    arrival: float = 0.0  # seconds on the engine's clock; tokenization counts, so take it before
    priority: int = 0  # lower runs earlier; read only by the order `by_priority`
    eos_ids: tuple[int, ...] = ()  # the model's end-of-sequence ids
    index: int = 0  # which of the n answers this is; samplers mix it into the seed

    # ---- written by the scheduler --------------------------------------------------------------------------------
    state: State = State.WAITING
    token_ids: list[int] = field(default_factory=list)  # prompt + output; from the start
    output_ids: list[int] = field(default_factory=list)  # grows by one per commit that samples; keeps EOS
    stop_ids: frozenset[int] = frozenset()  # ids that end the answer; from the start
    siblings: tuple["Request", ...] = ()  # answers 1 .. n-1; from the start
    max_tokens: int = 0  # params.max_tokens, or what there is room for; from add()
    rank: tuple = ()  # place in the order of admission, smallest first; from add()
    block_table: tuple[int, ...] = ()  # physical blocks in order; while RUNNING, else ()
    num_computed: int = 0  # positions whose K and V are in the cache; while RUNNING, else 0
    num_registered: int = 0  # leading blocks offered to the prefix cache; while RUNNING, else 0
    num_cached: int | None = None  # prompt tokens that the first admission found in the cache; from then on
    chain: list[BlockKey] = field(default_factory=list)  # keys of the full blocks, made when first needed
    num_preemptions: int = 0
    first_scheduled: float | None = None  # the step in which its first tokens ran
    token_times: list[float] = field(default_factory=list)  # one stamp per output id
    finished: float | None = None  # from FINISHED on, as are the next two
    finish_reason: str | None = None  # "stop" | "length" | "abort" | "error"
    error: str | None = None  # only with "error"

    def __post_init__(self) -> None:
        self.prompt_ids = tuple(map(int, self.prompt_ids))
        self.token_ids = list(self.prompt_ids)
        eos = () if self.params.ignore_eos else self.eos_ids
        self.stop_ids = frozenset(eos).union(self.params.stop_token_ids)
        if self.index == 0:
            self.siblings = tuple(self._sibling(i) for i in range(1, self.params.n))

    def _sibling(self, index: int) -> "Request":
        name = f"{self.id}.{index}"
        return Request(name, self.prompt_ids, self.params, self.arrival, self.priority, self.eos_ids, index)

    @property
    def num_slots(self) -> int:
        """KV slots of the whole life at its longest: the last token is sampled and never fed in, so it needs none."""
        return len(self.prompt_ids) + max(self.max_tokens, 1) - 1

    @property
    def remaining(self) -> int:
        """Tokens known but not yet in the cache: the rest of the prompt, or 1 in decode."""
        return len(self.token_ids) - self.num_computed
