"""The front door for Python programs: text in, text out.

    llm = LLM("smollm2-135m")
    outputs = llm.generate(["The capital of France is", "Once upon a time"], SamplingParams(max_tokens=32))
    for chunk in llm.stream("Once upon a time"):
        print(chunk.text, end="")

`LLM` loads a model and puts an engine around it; every request, alone or in a list, goes through the same engine. This
file is the seam between text and tokens: it encodes prompts, turns the engine's token events back into text that
never ends in half a character, and ends a request when its text reaches a stop string.
"""

import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from minifer import ops
from minifer.clock import Clock, MonotonicClock
from minifer.device import select_device
from minifer.engine import Engine
from minifer.errors import RequestError, UnsupportedError, UsageError
from minifer.executor import ModelExecutor
from minifer.formats.atomic import Progress, no_progress
from minifer.limits import EngineConfig
from minifer.meter import Meter
from minifer.metrics import RequestMetrics, from_request
from minifer.model.config import ModelConfig
from minifer.model.load import load_model
from minifer.sampling_params import SamplingParams
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.plan import TokenEvent
from minifer.scheduler.request import Request
from minifer.stop_strings import StopStrings
from minifer.tokenizer import Tokenizer
from minifer.tokenizer.stream import StreamDecoder
from minifer.trace import Recorder

KV_BUDGET_BYTES = 1 << 30
"""How much KV cache is set aside unless `num_blocks` says otherwise; the pages are only taken when they are used."""

Prompt = str | Sequence[int]
"""Text, or token ids."""


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log-probability under the model, and the most likely `(id, logprob)` pairs at its place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class CompletionOutput:
    """One answer. `token_ids` includes the end-of-sequence token, `text` does not; `finish_reason` is `stop`,
    `length`, `abort` or `error`, and then `error` says what happened."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    error: str | None = None
    metrics: RequestMetrics = field(default_factory=RequestMetrics)


@dataclass
class RequestOutput:
    """A prompt and its `n` answers; `text`, `token_ids`, `finish_reason` and `metrics` are those of the first."""

    request_id: str
    prompt: str | None
    prompt_ids: tuple[int, ...]
    outputs: list[CompletionOutput]

    @property
    def text(self) -> str:
        """The text of the first answer."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """The token ids of the first answer."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        """Why the first answer ended."""
        return self.outputs[0].finish_reason

    @property
    def metrics(self) -> RequestMetrics:
        """Times of the first answer, in seconds."""
        return self.outputs[0].metrics


@dataclass(frozen=True)
class Chunk:
    """What one token brought: new `text` (which may be empty), and where this leaves the request.

    `finish_reason` is set in the last chunk of each answer; `output` is the request so far, complete in the last one.
    """

    index: int
    text: str
    token_id: int | None
    finish_reason: str | None
    output: RequestOutput


class LLM:
    """A model with an engine around it.

    `model` is a known name, a folder, a .gguf file, `tiny`, or `random:<name>`; `device` is `auto`, `cpu`, `cuda[:N]`
    or `strict`; `room` forces `reference` or a fast room; `dtype` is float32 except on a GPU, where `auto` is bfloat16.
    The other options have vLLM's names and meanings; by default the cache takes `KV_BUDGET_BYTES`, and a request may be
    as long as the model's context or the cache allows.
    Raises the errors of `load_model`, DeviceError, and UsageError for limits that contradict each other.
    """

    def __init__(
        self,
        model: str | Path = "smollm2-135m",
        *,
        device: str = "auto",
        room: str | None = None,
        dtype: str = "auto",
        num_blocks: int | None = None,
        block_size: int = 16,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 512,
        max_model_len: int | None = None,
        enable_prefix_caching: bool = True,
        enable_chunked_prefill: bool = True,
        download: bool = True,
        progress: Progress = no_progress,
        clock: Clock | None = None,
        trace: Recorder | None = None,
        meter: Meter | None = None,
        room_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Load everything; nothing is downloaded or computed before the arguments have been checked."""
        self.device = select_device(device)
        room = room or ops.default_room(self.device)
        room_options = dict(room_options or {})
        if room == "cuda":
            room_options["dtype"] = "bfloat16" if dtype == "auto" else dtype
        elif dtype not in ("auto", "float32"):
            raise UnsupportedError(f"dtype {dtype!r} is not supported by the room {room!r}: only float32")
        loaded = load_model(model, download=download, progress=progress)
        self.name, self.config = loaded.name, loaded.config
        self.tokenizer = Tokenizer.from_pretrained(loaded.tokenizer_path) if loaded.tokenizer_path else None
        self.limits = limits_of(
            self.config,
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_prefix_caching=enable_prefix_caching,
            enable_chunked_prefill=enable_chunked_prefill,
        )
        self.ops = ops.open_room(room, self.config, self.device, meter, **room_options)
        if hasattr(self.ops, "reserve"):  # a device whose memory ends: say so before anything is loaded onto it
            self.ops.reserve(loaded.weights.num_parameters, self.limits)
        self.weights = self.ops.prepare(loaded.weights)
        self.store = self.ops.new_store(self.limits.num_blocks, block_size)
        self.clock = clock or MonotonicClock()
        executor = ModelExecutor(self.weights, self.store, self.ops, self.device)
        self.engine = Engine(ContinuousScheduler(self.limits), executor, self.clock, trace)
        self._ids = itertools.count(1)

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what the room holds (worker processes, device memory). The object is of no use afterwards."""
        self.ops.close()

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The token ids of a prompt; text is encoded as plain text, with BOS where the vocabulary asks for one.

        Raises RequestError for an empty prompt or for ids outside the vocabulary.
        """
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError(f"{self.name} has no vocabulary: give token ids instead of text")
            ids = tuple(self.tokenizer.encode(prompt, add_special=True))
        else:
            ids = tuple(prompt)
        if not ids:
            raise RequestError("the prompt is empty: it has no tokens")
        bad = next(
            (i for i in ids if isinstance(i, bool) or not isinstance(i, Integral) or not 0 <= i < self.vocab_size), None
        )
        if bad is not None:
            raise RequestError(f"token id {bad!r} is not in the vocabulary of {self.vocab_size} tokens")
        return ids

    @property
    def vocab_size(self) -> int:
        """How many tokens the model knows."""
        return self.config.vocab_size

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """The token ids of a conversation in the model's chat template, ready for the assistant's turn."""
        if self.tokenizer is None:
            raise RequestError(f"{self.name} has no vocabulary, and so no chat template")
        return tuple(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: Progress = no_progress,
    ) -> list[RequestOutput]:
        """Answer all prompts, in the order given, as many at a time as the engine has seats for.

        `prompts` may be one prompt or many, text or token ids; `params` one for all or one for each.
        Raises RequestError or CapacityError for a prompt that can't be served, before any is started. An answer that
        breaks down on the way ends with `finish_reason` `error`, and the others go on.
        """
        many = _as_prompts(prompts)
        answers = self._start(many, _as_params(params, len(many)))
        done = 0
        for chunk in self._chunks(answers):
            if chunk.finish_reason is not None:
                done += 1
                progress("generating", done, sum(len(a.output.outputs) for a in answers))
        return [answer.output for answer in answers]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """Answer one prompt token by token. Leaving the loop early aborts the request."""
        return self._chunks(self._start([prompt], [params or SamplingParams()]))

    def chat(self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None) -> RequestOutput:
        """Answer the last message of a conversation (`[{"role": "user", "content": "..."}]`)."""
        return self.generate([self.encode_chat(messages)], params)[0]

    def _start(self, prompts: Sequence[Prompt], params: Sequence[SamplingParams]) -> list["_Answer"]:
        """Check every request, then queue them all. Time counts from before the text is encoded."""
        answers = []
        for prompt, wanted in zip(prompts, params, strict=True):
            arrival = self.clock.now()
            ids, name = self.encode(prompt), f"r{next(self._ids)}"
            room_left = self.limits.fit(name, len(ids), wanted.max_tokens)
            seed = secrets.randbits(63) if wanted.seed is None else wanted.seed
            wanted = replace(wanted, max_tokens=room_left, seed=seed)
            request = Request(name, ids, wanted, arrival, eos_ids=self.config.eos_token_ids)
            answers.append(_Answer(request, prompt if isinstance(prompt, str) else None, self.tokenizer))
        for answer in answers:
            if answer.request.params.max_tokens:
                self.engine.add(answer.request)
        return answers

    def _chunks(self, answers: list["_Answer"]) -> Iterator[Chunk]:
        """Step the engine until all of `answers` are finished; whatever happens, none of them is left behind."""
        parts = {request.id: (answer, request) for answer in answers for request in answer.requests}
        open_ids = {name for name, (_, request) in parts.items() if request.params.max_tokens}
        try:
            yield from (
                chunk for answer in answers if not answer.request.params.max_tokens for chunk in answer.nothing()
            )
            while open_ids:
                for event in self.engine.step():
                    if event.request_id not in open_ids:
                        continue
                    answer, request = parts[event.request_id]
                    chunk = answer.take(event, request, self.engine)
                    if chunk.finish_reason is not None:
                        open_ids.discard(event.request_id)
                    yield chunk
        finally:
            for name in open_ids:
                self.engine.abort(name)


class _Answer:
    """The text side of one request: a decoder and a stop-string watch for each of its n answers."""

    def __init__(self, request: Request, prompt: str | None, tokenizer: Tokenizer | None) -> None:
        self.request, self.requests = request, (request, *request.siblings)
        wants = request.params.logprobs is not None
        outputs = [CompletionOutput(i, logprobs=[] if wants else None) for i in range(len(self.requests))]
        self.output = RequestOutput(request.id, prompt, request.prompt_ids, outputs)
        self._decoders = [StreamDecoder(tokenizer) if tokenizer else None for _ in outputs]
        self._watches = [StopStrings(request.params.stop) for _ in outputs]

    def take(self, event: TokenEvent, request: Request, engine: Engine) -> Chunk:
        """Note one event; ends the request in the engine if its text has reached a stop string."""
        part, watch = self.output.outputs[request.index], self._watches[request.index]
        reason, text = event.finish_reason, ""
        if event.token_id is not None:
            self._note_token(part, event)
            if event.token_id not in request.stop_ids:
                text = watch.push(self._decode(request.index, event.token_id))
        if watch.stopped is not None:
            if request.finished is None:
                engine.finish(request.id, "stop")
            reason = "stop"
        elif reason is not None:
            text += watch.push(self._flush(request.index)) + ("" if watch.stopped else watch.finish())
        return self._chunk(part, request, event, text, reason)

    def nothing(self) -> Iterator[Chunk]:
        """For `max_tokens=0`: every answer ends at once, without a token."""
        for part in self.output.outputs:
            part.finish_reason = "length"
            yield Chunk(part.index, "", None, "length", self.output)

    def _chunk(
        self, part: CompletionOutput, request: Request, event: TokenEvent, text: str, reason: str | None
    ) -> Chunk:
        part.text += text
        if reason is not None:
            part.finish_reason, part.error = reason, event.error
            part.metrics = from_request(request)
        return Chunk(part.index, text, event.token_id, reason, self.output)

    @staticmethod
    def _note_token(part: CompletionOutput, event: TokenEvent) -> None:
        assert event.token_id is not None
        part.token_ids.append(event.token_id)
        if part.logprobs is not None and event.logprob is not None:
            part.logprobs.append(TokenLogprob(event.token_id, event.logprob, event.top))

    def _decode(self, index: int, token_id: int) -> str:
        decoder = self._decoders[index]
        return decoder.push(token_id) if decoder else ""

    def _flush(self, index: int) -> str:
        decoder = self._decoders[index]
        return decoder.finish() if decoder else ""


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, told apart by what is inside: a list of ints is one prompt of token ids."""
    if isinstance(prompts, str):
        return [prompts]
    many = list(prompts)
    return [many] if many and isinstance(many[0], int) else many  # type: ignore[list-item, return-value]


def _as_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(f"{len(params)} sampling parameters do not fit {count} prompts: give one, or one for each")
    return list(params)


def limits_of(config: ModelConfig, **options: Any) -> EngineConfig:
    """Fill in what was left open: the pool from the memory budget, the longest request from context and pool.

    Values below 1 pass through to EngineConfig, which names them.
    """
    context, size, seats = (
        config.max_position_embeddings,
        max(1, options["block_size"]),
        max(1, options["max_num_seqs"]),
    )
    longest = options["max_model_len"] or context
    if longest > context:
        raise UsageError(f"max_model_len={longest} exceeds the model's context of {context} tokens")
    if options["num_blocks"] is None:
        affordable = max(1, KV_BUDGET_BYTES // (config.kv_bytes_per_token * size))
        options["num_blocks"] = min(affordable, seats * -(-longest // size))
    if options["max_model_len"] is None:
        options["max_model_len"] = min(context, options["num_blocks"] * size)
    return EngineConfig(**options)
