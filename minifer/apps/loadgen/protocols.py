"""What a server is asked, and what the events of its answer mean: OpenAI's two APIs, and Ollama's.

A stream is lines. OpenAI's are server-sent events (`data: {...}`, a blank line behind each, comments that keep the
connection alive, `[DONE]` at the end), Ollama's are one JSON object each. What differs between APIs is turned into
`Event`s here, and nothing behind this file knows which API it was.

Ollama has no option to ignore the end of a text, and is sent text only (with `raw`, so that no template is added).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from minifer.apps.workloads import Arrival
from minifer.errors import UsageError


@dataclass(frozen=True)
class Event:
    """One event of a stream: new text, or news about the request. None is what the event does not say."""

    text: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    last: bool = False


class Lines:
    """Cuts bytes into lines, wherever they were cut before.

    >>> lines = Lines()
    >>> lines.feed(b'{"a": "\\xc3'), lines.feed(b'\\xa4"}\\r\\n{}\\n{"b"'), lines.feed(b": 1}"), lines.rest()
    ([], ['{"a": "ä"}', '{}'], [], ['{"b": 1}'])
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now, without their ends."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.rstrip(b"\r").decode("utf-8", errors="replace") for line in whole]

    def rest(self) -> list[str]:
        """A last line that had no end."""
        rest, self._rest = self._rest, b""
        return [rest.decode("utf-8", errors="replace")] if rest.strip() else []


class Framing(Protocol):
    """From lines to the texts of messages."""

    def take(self, line: str) -> str | None:
        """A message that this line completes, or None."""

    def rest(self) -> str | None:
        """What is complete only because the stream has ended."""


class Sse:
    """Server-sent events: the `data` lines up to a blank line are one message; comments and other fields are not."""

    def __init__(self) -> None:
        self._data: list[str] = []

    def take(self, line: str) -> str | None:
        """The message that a blank line completes."""
        if not line:
            return self.rest()
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        return None

    def rest(self) -> str | None:
        """The data collected so far, if there is any."""
        data, self._data = self._data, []
        return "\n".join(data) if data else None


class NdJson:
    """A JSON object in each line."""

    def take(self, line: str) -> str | None:
        """The line, unless it is blank."""
        return line if line.strip() else None

    def rest(self) -> str | None:
        """Nothing: every line was complete."""
        return None


@dataclass(frozen=True)
class Ask:
    """What is the same for all requests of a run: the model's name, sampling, and whether ids or text are sent.

    `sampling` has OpenAI's and vLLM's names; `extra` goes into the body as it is.
    """

    model: str
    ignore_eos: bool = False
    as_ids: bool = False
    temperature: float | None = 0.0
    sampling: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


class Api(Protocol):
    """One way to ask for text and to understand the answer."""

    name: str
    path: str
    models_path: str

    def framing(self) -> Framing:
        """A fresh reader of messages."""

    def payload(self, arrival: Arrival, ask: Ask) -> dict[str, Any]:
        """The body of a request."""

    def event(self, message: str) -> Event:
        """What a message says. A message that is not understood is an error of the request."""

    def models(self, answer: Any) -> list[str]:
        """The names in the answer to `models_path`."""


def _text(arrival: Arrival, api: str) -> str:
    if arrival.prompt is None:
        raise UsageError(f"{api} is sent text, and prompt {arrival.index} is known as ids only: give --tokenizer")
    return arrival.prompt


class _OpenAI:
    models_path = "/v1/models"

    def framing(self) -> Framing:
        return Sse()

    def models(self, answer: Any) -> list[str]:
        return [str(model["id"]) for model in answer["data"]]

    def event(self, message: str) -> Event:
        if message.strip() == "[DONE]":
            return Event(last=True)
        found = _object(message)
        if "error" in found:
            return Event(error=_words(found["error"]))
        usage, choices = found.get("usage") or {}, found.get("choices") or [{}]
        details, timings = usage.get("prompt_tokens_details") or {}, found.get("timings") or {}
        return Event(
            text=self._new_text(choices[0]),
            prompt_tokens=usage.get("prompt_tokens"),
            cached_tokens=details.get("cached_tokens", timings.get("cache_n")),
            output_tokens=usage.get("completion_tokens"),
            finish_reason=choices[0].get("finish_reason"),
        )

    def _common(self, arrival: Arrival, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {"model": ask.model, "max_tokens": arrival.output_len, "stream": True,
                                "stream_options": {"include_usage": True}}  # fmt: skip
        if ask.temperature is not None:
            body["temperature"] = ask.temperature
        if ask.ignore_eos:
            body["ignore_eos"] = True
        return body | dict(ask.sampling)

    def _new_text(self, choice: Mapping[str, Any]) -> str:
        raise NotImplementedError


class Completions(_OpenAI):
    """`/v1/completions`: a prompt as text or ids."""

    name, path = "openai", "/v1/completions"

    def payload(self, arrival: Arrival, ask: Ask) -> dict[str, Any]:
        """Text where it is known, unless ids are asked for."""
        as_ids = ask.as_ids or arrival.prompt is None
        prompt = list(arrival.prompt_ids) if as_ids else arrival.prompt
        return {**self._common(arrival, ask), "prompt": prompt, **ask.extra}

    def _new_text(self, choice: Mapping[str, Any]) -> str:
        return choice.get("text") or ""


class ChatCompletions(_OpenAI):
    """`/v1/chat/completions`: the prompt is one message of a user; reasoning counts as text."""

    name, path = "openai-chat", "/v1/chat/completions"

    def payload(self, arrival: Arrival, ask: Ask) -> dict[str, Any]:
        """The server adds its chat template, so its prompt is longer than ours; the usage says how long."""
        message = {"role": "user", "content": _text(arrival, self.name)}
        return {**self._common(arrival, ask), "messages": [message], **ask.extra}

    def _new_text(self, choice: Mapping[str, Any]) -> str:
        delta = choice.get("delta") or {}
        return (delta.get("reasoning_content") or delta.get("reasoning") or "") + (delta.get("content") or "")


OLLAMA_NAMES = {"repetition_penalty": "repeat_penalty"}


class Ollama:
    """`/api/generate`."""

    name, path, models_path = "ollama", "/api/generate", "/api/tags"

    def framing(self) -> Framing:
        """One object per line."""
        return NdJson()

    def payload(self, arrival: Arrival, ask: Ask) -> dict[str, Any]:
        """`num_ctx` holds prompt and answer, or Ollama would cut the prompt without a word."""
        room = len(arrival.prompt_ids) + arrival.output_len
        options: dict[str, Any] = {"num_predict": arrival.output_len, "num_ctx": max(2048, room)}
        if ask.temperature is not None:
            options["temperature"] = ask.temperature
        options |= {OLLAMA_NAMES.get(name, name): value for name, value in ask.sampling.items()}
        return {"model": ask.model, "prompt": _text(arrival, self.name), "raw": True, "stream": True,
                "options": options, **ask.extra}  # fmt: skip

    def models(self, answer: Any) -> list[str]:
        """The names of the models that are there."""
        return [str(model["name"]) for model in answer["models"]]

    def event(self, message: str) -> Event:
        """The last object has the counts, except those that are 0, and `prompt_eval_count` of a prompt in the cache."""
        found = _object(message)
        if "error" in found:
            return Event(error=_words(found["error"]))
        done = bool(found.get("done"))
        return Event(
            text=(found.get("thinking") or "") + (found.get("response") or ""),
            prompt_tokens=found.get("prompt_eval_count"),
            output_tokens=found.get("eval_count"),
            finish_reason=found.get("done_reason") or ("stop" if done else None),
            last=done,
        )


APIS: dict[str, Api] = {api.name: api for api in (Completions(), ChatCompletions(), Ollama())}


def _object(message: str) -> dict[str, Any]:
    try:
        found = json.loads(message)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"error": f"not a JSON object: {message[:80]!r}"}


def _words(error: Any) -> str:
    """The words of an error, in whichever form they came."""
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)
