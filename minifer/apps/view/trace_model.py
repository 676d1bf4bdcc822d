"""A trace as numbers to draw from: the life of every request, and what each step did.

    trace = load("run.jsonl")                 or build(records) with the lines as dictionaries
    trace.lives[0].metrics().ttft             a request: arrival, work, admissions, preemptions, tokens, end
    trace.steps[3].tokens                     a step: who ran, who waited, what came out
    trace.stays()                             who sat in which slot of the batch, from step to step
    trace_blocks.history(trace)               the KV blocks over time, in the next file

Requests and steps are counted from 0 in the order of the file, and refer to each other by these numbers: `Work.step`,
`Step.ran`. Times are seconds after `trace.zero`, the earliest arrival. Figures, the text on the terminal and the page
in the browser all read this one form, so they cannot disagree.

What this file does not do: it estimates nothing. What a trace does not say (the time of one request inside a step) is
not made up; what contradicts itself is a FormatError that names the step.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from minifer.errors import FormatError
from minifer.formats.trace_lines import read_trace
from minifer.metrics import RequestMetrics, from_stamps

BLOCK_SIZE = 16
"""Tokens in a block, where a trace's header does not say."""


@dataclass(frozen=True, slots=True)
class Work:
    """One request's part of one step: `count` tokens from position `first` on; `samples` if a token came out."""

    step: int
    phase: str  # "prefill" | "decode"
    first: int
    count: int
    samples: bool

    @property
    def computed(self) -> int:
        """Positions that are in the KV cache after this step."""
        return self.first + self.count


class Stay(NamedTuple):
    """A request in a seat of the batch, from one step to another, both included."""

    life: int
    slot: int
    first: int
    last: int


@dataclass(slots=True)
class Life:
    """One request, from its arrival to its end. Lists are in the order of time; `None` is what has not happened.

    `cached` prompt tokens were found in the KV cache at the first admission, or came with the fork of `parent`.
    `tables` holds every change of the block table as (step, blocks); an empty table gives everything back.
    """

    index: int
    id: str
    arrival: float
    queued: float
    prompt: list[int]
    max_tokens: int
    priority: int = 0
    parent: int | None = None
    siblings: int = 0
    work: list[Work] = field(default_factory=list)
    admitted: list[tuple[int, int]] = field(default_factory=list)  # (step, tokens found in the prefix cache)
    preempted: list[tuple[int, str]] = field(default_factory=list)  # (step, why)
    refused: list[tuple[int, str]] = field(default_factory=list)  # (step, why it had to wait)
    token_ids: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    token_steps: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    tables: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    scheduled: float | None = None
    finished: float | None = None
    last_step: int | None = None  # the step after which it was gone
    reason: str | None = None
    error: str | None = None

    @property
    def cached(self) -> int:
        """Prompt tokens that nobody had to compute for this request."""
        if self.work:
            return self.work[0].first
        return self.admitted[0][1] if self.admitted else 0

    @property
    def computed(self) -> int:
        """Positions that this request had in the KV cache at its last step."""
        return self.work[-1].computed if self.work else 0

    def metrics(self) -> RequestMetrics:
        """TTFT, ITL and the rest, by the same formulas as everywhere (`metrics.py`)."""
        stamps, scheduled = self.token_times, self.scheduled
        return replace(
            from_stamps(self.arrival, stamps, len(stamps)),
            prompt_tokens=len(self.prompt),
            queue_time=None if scheduled is None else scheduled - self.arrival,
            prefill_time=stamps[0] - scheduled if stamps and scheduled is not None else None,
            decode_time=stamps[-1] - stamps[0] if stamps else None,
            cached_tokens=self.cached,
            num_preemptions=len(self.preempted),
            error=(self.error or "error") if self.reason == "error" else None,
        )

    def works(self, phase: str) -> list[Work]:
        """The parts of one phase, `prefill` or `decode`."""
        return [work for work in self.work if work.phase == phase]


@dataclass(slots=True)
class Step:
    """One step of the engine: `ran` pairs a request with its work. `running`, `waiting`, `seats` and `free_blocks` are
    those after the decision, while the step computed."""

    index: int
    number: int
    start: float
    end: float
    ran: list[tuple[int, Work]]
    running: int
    waiting: int
    seats: int
    free_blocks: int
    sampled: int = 0
    admitted: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[tuple[int, str]] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    counts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start

    @property
    def batch(self) -> int:
        """Sequences that ran in it."""
        return len(self.ran)

    @property
    def idle_seats(self) -> int:
        """Seats that are paid for while their answer is done: static batching."""
        return max(0, self.seats - self.running)

    @property
    def cached(self) -> int:
        """Tokens that its admissions found in the prefix cache."""
        return sum(found for _, found in self.admitted)

    def tokens(self, phase: str | None = None) -> int:
        """Tokens that were fed in, all of them or those of one phase."""
        return sum(work.count for _, work in self.ran if phase in (None, work.phase))


@dataclass(slots=True)
class Trace:
    """A whole run. `zero` is the engine's time of the earliest arrival; all other times count from it."""

    config: Mapping[str, Any]
    about: Mapping[str, Any]
    lives: list[Life]
    steps: list[Step]
    zero: float = 0.0

    @property
    def seconds(self) -> float:
        """From zero to the end of the last step, or of the last request."""
        ends = [step.end for step in self.steps[-1:]]
        ends += [life.finished or life.arrival for life in self.lives]
        return max(ends, default=0.0)

    @property
    def block_size(self) -> int:
        """Tokens in a block of the KV cache."""
        return _whole(self.config.get("block_size")) or BLOCK_SIZE

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool: what the header says, or else all that appear."""
        return _whole(self.config.get("num_blocks")) or 1 + max(_blocks(self.lives), default=-1)

    @property
    def model(self) -> str:
        """The name of the model, if the trace says it."""
        return str(self.about.get("model", "a model"))

    def life(self, request_id: str) -> Life:
        """The request of that name (the last one, if a name was used again). Raises FormatError for an unknown one."""
        found = [life for life in self.lives if life.id == request_id]
        if not found:
            names = ", ".join(life.id for life in self.lives[:8]) + (", ..." if len(self.lives) > 8 else "")
            raise FormatError(f"the trace has no request {request_id!r}; it has {names or 'none'}")
        return found[-1]

    def piece(self, token_id: int) -> str | None:
        """The text of a token, where the trace brings it along (`about.pieces`, by id)."""
        pieces = self.about.get("pieces")
        text = pieces.get(str(token_id)) if isinstance(pieces, dict) else None
        return text if isinstance(text, str) else None

    def stays(self) -> list[Stay]:
        """Who sat in which slot of the batch and when. Whoever comes takes the lowest free slot."""
        spans = sorted((first, life.index, last) for life in self.lives for first, last in self._spans(life))
        stays: list[Stay] = []
        taken: list[tuple[int, int]] = []  # heap of (last step, slot)
        free: list[int] = []  # heap of slots
        slots = 0
        for first, index, last in spans:
            while taken and taken[0][0] < first:
                heapq.heappush(free, heapq.heappop(taken)[1])
            if not free:
                free, slots = [slots], slots + 1
            slot = heapq.heappop(free)
            heapq.heappush(taken, (last, slot))
            stays.append(Stay(index, slot, first, last))
        return stays

    def _spans(self, life: Life) -> Iterator[tuple[int, int]]:
        """The first and last step of each of a request's stays in the batch."""
        starts = [step for step, _ in life.admitted]
        if life.work and (not starts or life.work[0].step < starts[0]):
            starts.insert(0, life.work[0].step)
        end = len(self.steps) - 1 if life.last_step is None else life.last_step
        for start in starts:
            gone = next((step - 1 for step, _ in life.preempted if step > start), end)
            yield start, max(start, gone)

    def idle_spans(self) -> list[tuple[int, int, int]]:
        """Seats that were paid for and empty, as (slot, first step, last step): the waste of static batching."""
        until = [
            step.index for step in self.steps
        ]  # the last step of the row of steps with idle seats that starts here
        for step in reversed(self.steps[:-1]):
            if step.idle_seats and self.steps[step.index + 1].idle_seats:
                until[step.index] = until[step.index + 1]
        after = ((stay.slot, stay.last + 1) for stay in self.stays() if stay.last + 1 < len(self.steps))
        return [(slot, first, until[first]) for slot, first in after if self.steps[first].idle_seats]


def load(file: str | Path | TextIO) -> Trace:
    """Read a trace file. Raises FormatError for what is no trace, or contradicts itself."""
    return build(read_trace(file))


def build(records: Iterable[Mapping[str, Any]], *, partial: bool = False) -> Trace:
    """Put the lines of a trace together, each already in the form of the schema (`read_trace` sees to that).

    With `partial`, the record may begin in the middle of a run: a request that was never announced is taken to have
    arrived in the step in which it first ran, with an unknown prompt. Raises FormatError otherwise.

    >>> header = {"kind": "header", "minifer_trace": 1, "config": {"block_size": 4}, "about": {"model": "tiny"}}
    >>> asked = {"kind": "request", "time": 5.0, "id": "a", "arrival": 5.0, "prompt": [7, 8], "max_tokens": 1,
    ...          "priority": 0, "siblings": 0}
    >>> step = {"kind": "step", "step": 1, "start": 5.25, "end": 6.0, "seqs": [["a", "prefill", 0, 2, True]],
    ...         "tables": {"a": [0]}, "copies": [], "admitted": [["a", 0]], "preempted": [], "refused": [],
    ...         "load": [1, 0, 1, 3], "tokens": [["a", 9, -0.5, "length", None]], "counts": {}}
    >>> trace = build([header, asked, step])
    >>> trace.lives[0].metrics().ttft, trace.lives[0].reason, trace.steps[0].tokens(), trace.stays()
    (1.0, 'length', 2, [Stay(life=0, slot=0, first=0, last=0)])
    """
    from minifer.apps.view.trace_build import Builder  # which needs the classes above

    builder = Builder(partial)
    for record in records:
        builder.take(record)
    return builder.finish()


def _whole(value: Any) -> int:
    """A positive whole number of a header, which the schema leaves open; 0 for everything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53 else 0


def _blocks(lives: list[Life]) -> Iterator[int]:
    return (block for life in lives for _, table in life.tables for block in table)
