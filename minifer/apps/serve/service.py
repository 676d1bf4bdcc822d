"""What the three languages have in common: a prompt becomes ids, ids become a job, a job finds a replica.

Text is encoded here and not in the replica, because the router wants to see ids, and because a request that can't be
served should not reach an engine. Short texts are encoded at once; a long one goes to a thread, so that a megabyte of
prompt does not stop everybody's stream. A text that can't fit whatever its tokens are is refused without being encoded.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from minifer.apps.serve.answers import Group
from minifer.apps.serve.fleet import Fleet, QueueFull
from minifer.apps.serve.messages import Job, Ready
from minifer.apps.serve.protocol import ApiError, is_integer
from minifer.apps.serve.tape import Tape
from minifer.errors import CapacityError, MiniferError, RequestError
from minifer.sampling_params import SamplingParams
from minifer.tokenizer import Tokenizer

SHORT = 2000
"""Characters that are encoded in the event loop: about a millisecond."""

BODIES = 16
"""Bodies of the largest size that may be read at once; small ones count for what they are."""

T = TypeVar("T")

Prompt = str | tuple[int, ...]


@dataclass(frozen=True)
class Settings:
    """How a server behaves; `minifer serve --help` explains each."""

    model_name: str
    api_keys: tuple[str, ...] = ()
    cors: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()  # accepted in Host; empty: any
    max_body: int = 4 << 20
    max_connections: int = 4096
    max_prompts: int = 128
    read_timeout_s: float = 30.0
    send_timeout_s: float = 120.0
    live: bool = True
    log: Any = None  # a callable that takes one line, or None


class Service:
    """A fleet, the model's vocabulary, and the settings."""

    def __init__(self, fleet: Fleet, settings: Settings, tape: Tape | None = None) -> None:
        """Not started yet."""
        self.fleet, self.settings, self.tape = fleet, settings, tape
        self._bytes = 0  # of bodies that are being read
        self.draining = False  # a shutdown has begun: nothing new is taken
        self.tokenizer: Tokenizer | None = None
        self.started = int(time.time())
        self._encoder = ThreadPoolExecutor(1, "encode")

    async def start(self) -> None:
        """Start the replicas and learn the model's vocabulary from the first."""
        ready = await self.fleet.start()
        self.tokenizer = Tokenizer(ready.vocabulary) if ready.vocabulary is not None else None
        self._longest = max(map(len, self.tokenizer.vocabulary.token_bytes.values())) if self.tokenizer else 1

    async def close(self) -> None:
        """End the replicas."""
        self._encoder.shutdown(wait=False, cancel_futures=True)
        await self.fleet.close()
        if self.tape is not None:
            self.tape.close()

    @property
    def model(self) -> Ready:
        """What is known of the model."""
        assert self.fleet.ready is not None
        return self.fleet.ready

    @property
    def max_model_len(self) -> int:
        """Longest prompt and answer together, in tokens."""
        return self.model.limits.max_model_len or self.model.limits.capacity

    def names(self) -> tuple[str, ...]:
        """The model names that requests may give."""
        return (self.settings.model_name,)

    def check_model(self, name: str | None) -> None:
        """Raise ApiError 404 unless this is the model (or no name was given)."""
        if name is not None and name not in self.names():
            shown = name if len(name) <= 80 else f"{name[:77]}..."
            what = f"the model {shown!r} does not exist; this server has {', '.join(self.names())}"
            raise ApiError(404, what, code="model_not_found", param="model")

    async def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The ids of a prompt: text is plain text, ids are checked. Raises ApiError 400."""
        if not isinstance(prompt, str):
            self._check_length(len(prompt), 1)
            bad = next((i for i in prompt if not is_integer(i) or not 0 <= i < self.model.vocab_size), None)
            if bad is not None:
                what = f"token id {bad} is not in the vocabulary of {self.model.vocab_size} tokens"
                raise ApiError(400, what, param="prompt", code="invalid_value")
            return prompt
        tokenizer = self.vocabulary()
        self._check_length(len(prompt))
        return tuple(await self.in_time(len(prompt), lambda: tokenizer.encode(prompt, add_special=True)))

    async def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """The ids of a conversation in the model's chat template. Raises ApiError 400."""
        tokenizer, length = self.vocabulary(), sum(len(m["content"]) for m in messages)
        self._check_length(length)
        return tuple(await self.in_time(length, lambda: tokenizer.apply_chat_template(messages)))

    def check_open(self) -> None:
        """Refuse before anything is encoded. Raises ApiError 503 while shutting down, 429 if the queue is full."""
        if self.draining:
            raise ApiError(503, "the server shuts down", code="unavailable", headers={"Retry-After": "5"})
        self._room(1)

    def _room(self, answers: int) -> None:
        most = self.fleet.max_queue
        if answers > most:
            raise ApiError(400, f"{answers} answers in one request; at most {most} may be unfinished", param="n")
        try:
            self.fleet.check_room(answers)
        except QueueFull as error:
            headers = {"Retry-After": str(error.retry_s)}
            raise ApiError(429, str(error), code="queue_full", kind="rate_limit_error", headers=headers) from None

    def vocabulary(self) -> Tokenizer:
        """The model's tokenizer. Raises ApiError 400 if it has none."""
        if self.tokenizer is None:
            raise ApiError(400, "this model has no vocabulary: give the prompt as token ids", param="prompt")
        return self.tokenizer

    def _check_length(self, length: int, longest: int | None = None) -> None:
        """Refuse what can't fit even if every token were the longest one."""
        least = -(-length // (longest or self._longest))
        if least > self.max_model_len:
            what = f"the prompt has at least {least} tokens; the model takes {self.max_model_len}, answer included"
            raise ApiError(400, what, code="context_length_exceeded", param="prompt")

    async def in_time(self, length: int, work: Callable[[], T]) -> T:
        """The result of `work`, here if `length` is short, else in a thread. Errors become ApiError 400."""
        try:
            if length <= SHORT:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._encoder, work)
        except MiniferError as error:
            raise ApiError(400, str(error), param="prompt") from None

    @contextlib.contextmanager
    def bytes_taken(self, count: int) -> Iterator[None]:
        """Room for a body while it is read and parsed. Raises ApiError 429 if there is none."""
        if self._bytes + count > BODIES * self.settings.max_body:
            raise ApiError(
                429, "too many large requests at once", kind="rate_limit_error", headers={"Retry-After": "1"}
            )
        self._bytes += count
        try:
            yield
        finally:
            self._bytes -= count

    def job(
        self, name: str, ids: tuple[int, ...], params: SamplingParams, arrival: float, score: int | None = None
    ) -> Job:
        """A job with its length and its seed fixed, so that it could be done twice. Raises ApiError 400."""
        if not ids:
            raise ApiError(400, "the prompt is empty: it has no tokens", param="prompt", code="invalid_value")
        try:
            room = self.model.limits.fit(name, len(ids), params.max_tokens)
        except CapacityError as error:
            raise ApiError(400, str(error), code="context_length_exceeded", param="prompt") from None
        seed = secrets.randbits(63) if params.seed is None else params.seed
        return Job(name, ids, replace(params, max_tokens=room, seed=seed), arrival, score)

    def ask(self, jobs: Sequence[Job]) -> Group:
        """Send the jobs off, all or none. Raises the errors of `check_open`."""
        self.check_open()
        self._room(sum(job.params.n for job in jobs))
        return self.fleet.ask(jobs)


def sampling(**values: Any) -> SamplingParams:
    """SamplingParams, with its complaints as ApiError 400."""
    try:
        return SamplingParams(**values)
    except RequestError as error:
        raise ApiError(400, str(error), param=str(error).partition(" ")[0], code="invalid_value") from None
