"""What passes through the pipe between the server and a replica: plain tuples, many in one message.

    server  -> replica    Job, (ABORT, id), (QUIT,)
    replica -> server     Ready once, then one Report after every step and after every change while it is idle

A pipe costs a system call and a pickle per message, so a step sends *one* message with everything it brought: a token
of each running answer, the ends, the load, the lines of the trace.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from minifer.limits import EngineConfig
from minifer.sampling_params import SamplingParams

ABORT, QUIT = "abort", "quit"

Top = tuple[tuple[int, float], ...]
"""The most likely `(id, logprob)` pairs at one place."""


class Job(NamedTuple):
    """A request for a replica. `arrival` is on the machine's monotonic clock, which all its processes share."""

    id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    arrival: float
    score: int | None = None  # report the prompt's own log-probabilities, with as many of the likeliest beside each
    route: Mapping[str, Any] | None = None  # what the router said, for the trace


class Piece(NamedTuple):
    """What one token brought, or the end of an answer: then `finish_reason` and `costs` are set."""

    id: str  # of the job
    answer: int  # which of its n
    text: str
    token_id: int | None
    logprob: float | None
    top: Top
    time: float  # of the token, same clock as `Job.arrival`
    finish_reason: str | None = None
    error: str | None = None
    costs: "Costs | None" = None
    prompt_logprobs: tuple[tuple[float, Top], ...] | None = None  # with the first piece of a job that asked to score


class Costs(NamedTuple):
    """What an answer took, in seconds and tokens; None where it never got that far."""

    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Load(NamedTuple):
    """A replica's state, as /metrics reports it. Counters count from the start of this process."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    step_tokens: int = 0  # computed by this step; 0 if there was none


class Report(NamedTuple):
    """Everything that happened in one step."""

    pieces: list[Piece]
    load: Load
    trace: list[str]


class Ready(NamedTuple):
    """The model is loaded. `vocabulary` is a VocabFile, or None for a model without one."""

    name: str
    limits: EngineConfig
    vocab_size: int
    vocabulary: Any
    about: Mapping[str, Any]


class Failed(NamedTuple):
    """The replica could not start, and why."""

    error: str
