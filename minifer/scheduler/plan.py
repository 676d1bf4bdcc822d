"""What passes between the scheduler and whoever computes: plain values, nothing else.

    StepPlan    scheduler -> executor   which tokens of which requests run, and where their K and V go
    StepResult  executor  -> scheduler  a token, or an error, for every sequence that was to sample
    TokenEvent  engine    -> the world  one token of one answer, or its end

A plan can be printed (`str(plan)` is a sentence), recorded (trace.py), drawn and replayed; it holds no reference to
anything that changes later. Everything here is a named tuple, because it is made tens of
thousands of times per second.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from minifer.scheduler.request import Request


class ScheduledSeq(NamedTuple):
    """One request's part of a step: positions `start` to `start + len(tokens)`.

    Token i goes to position `start + i` and to slot `slots[i]`; attention reads positions 0 to `context` through
    `block_table`. `samples` is true when the last token of the sequence is the last one known, so that its logits
    give the next token; an unfinished prefill chunk samples nothing.
    """

    request_id: str
    tokens: tuple[int, ...]
    start: int
    slots: tuple[int, ...]
    block_table: tuple[int, ...]
    samples: bool
    phase: str  # "prefill" | "decode"

    @property
    def context(self) -> int:
        """Positions visible to the last token, itself included."""
        return self.start + len(self.tokens)


class StepPlan(NamedTuple):
    """The decision of one step. Blocks are copied first (`copies`, in order), then everything in `seqs` runs.

    >>> seq = ScheduledSeq("r1", (11, 12), 0, (32, 33), (2,), True, "prefill")
    >>> print(StepPlan(step=4, time=0.5, seqs=(seq,), admitted=(("r1", 0),), running=1, free_blocks=7))
    step 4: prefill r1[0:2]; tokens: 2; admitted r1; running: 1, waiting: 0, free blocks: 7
    """

    step: int
    time: float  # the `now` that step() was given, seconds
    seqs: tuple[ScheduledSeq, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()  # (source block, destination block)
    admitted: tuple[tuple[str, int], ...] = ()  # (id, tokens found in the prefix cache)
    preempted: tuple[tuple[str, str], ...] = ()  # (id, why)
    refused: tuple[tuple[str, str], ...] = ()  # (first in the queue that had to stay there, why)
    running: int = 0  # requests that hold blocks after this decision
    waiting: int = 0
    seats: int = 0  # places of the batch that are taken, busy or idle: static batching wastes the idle ones
    free_blocks: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that this step feeds in, over all sequences."""
        return sum(len(seq.tokens) for seq in self.seqs)

    def __str__(self) -> str:
        decodes = [seq.request_id for seq in self.seqs if seq.phase == "decode"]
        chunks = [f"{seq.request_id}[{seq.start}:{seq.context}]" for seq in self.seqs if seq.phase == "prefill"]
        work = [f"decode {' '.join(decodes)}"] * bool(decodes) + [f"prefill {' '.join(chunks)}"] * bool(chunks)
        parts = [" and ".join(work) or "nothing to run", f"tokens: {self.num_tokens}"]
        admitted = [f"{name} ({cached} tokens cached)" if cached else name for name, cached in self.admitted]
        parts += [f"admitted {', '.join(admitted)}"] * bool(admitted)
        parts += [f"preempted {name} ({why})" for name, why in self.preempted]
        parts += [f"{name} has to wait ({why})" for name, why in self.refused]
        parts += [f"copied {', '.join(f'block {a} to {b}' for a, b in self.copies)}"] * bool(self.copies)
        parts.append(f"running: {self.running}, waiting: {self.waiting}, free blocks: {self.free_blocks}")
        return f"step {self.step}: " + "; ".join(parts)


class SeqResult(NamedTuple):
    """What came out for one sequence: a token where the plan says `samples`, or an error that ends this request."""

    request_id: str
    token_id: int | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    error: str | None = None


class StepResult(NamedTuple):
    """One `SeqResult` per sequence that sampled; those of unfinished chunks may be left out."""

    results: tuple[SeqResult, ...] = ()

    @classmethod
    def failed(cls, plan: StepPlan, error: str) -> "StepResult":
        """The result of a step that broke down: every sequence of the plan gets the error."""
        return cls(tuple(SeqResult(seq.request_id, error=error) for seq in plan.seqs))


class TokenEvent(NamedTuple):
    """One token of one answer. With `finish_reason` it is the last event of this request, and may have no token."""

    request_id: str
    token_id: int | None
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    finish_reason: str | None
    time: float  # seconds on the engine's clock
    error: str | None = None


class Executor(Protocol):
    """Whoever turns a plan into tokens: the model, the fake of fake.py, or a simulator."""

    def run(self, plan: StepPlan, requests: Mapping[str, Request]) -> StepResult:
        """Copy blocks, feed the tokens in, sample. Raising ends every request of the plan, and nothing else."""
