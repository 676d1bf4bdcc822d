"""Ollama's language: /api/generate, /api/chat, /api/tags, /api/show, /api/version, /api/ps.

    POST /api/generate      {"model": "smollm2-135m", "prompt": "Why is the sky blue?"}
    {"model": "smollm2-135m", "created_at": "...", "response": "The", "done": false}
    {"model": "smollm2-135m", "created_at": "...", "response": "", "done": true, "done_reason": "stop", ...}

One JSON object per line, streaming unless told otherwise, durations in nanoseconds, and sampling defaults of its own
(temperature 0.8, top_k 40, top_p 0.9). What differs here: a prompt that is too long is refused and never cut
(`num_ctx` can't change the model's length), `repeat_penalty` is 1 unless given and looks at the whole text, and
`format`, `images`, `suffix`, `template` and `tools` are refused instead of ignored.
"""

import secrets
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

from minifer import __version__
from minifer.apps.serve.answers import Group
from minifer.apps.serve.messages import Costs, Piece
from minifer.apps.serve.openai import MOST, messages_of, refuse, stops_of
from minifer.apps.serve.openai_answer import broken
from minifer.apps.serve.protocol import ApiError, Field, read
from minifer.apps.serve.reply import Call, Events, as_json
from minifer.apps.serve.service import Service, sampling

GENERATE = (
    Field("model", "string", "a name from /api/tags", required=True),
    Field("prompt", "string", "the text; it becomes a user's message unless `raw`", default=""),
    Field("system", "string", "the system message", default=""),
    Field("raw", "boolean", "complete the prompt as it is, without the chat template", default=False),
    Field("context", "integers", "the tokens of an earlier answer, to go on from", default=()),
    Field("stream", "boolean", "one line per token", default=True),
    Field(
        "options", "object", "num_predict, temperature, top_k, top_p, min_p, seed, stop, repeat_penalty ...", default={}
    ),
)
CHAT = (
    Field("model", "string", "a name from /api/tags", required=True),
    Field("messages", "list", "the conversation so far", default=[]),
    Field("stream", "boolean", "one line per token", default=True),
    Field("options", "object", "as for /api/generate", default={}),
)
SHOW = (Field("model", "string", "a name from /api/tags"), Field("name", "string", "its older name"))
OPTIONS = (
    Field(
        "num_predict",
        "integer",
        "longest answer; 0 or less: as long as there is room",
        default=-1,
        low=-MOST,
        high=MOST,
    ),
    Field("temperature", "number", "0 is greedy", default=0.8, low=0, high=100),
    Field("top_k", "integer", "0: all", default=40, low=0, high=MOST),
    Field("top_p", "number", "", default=0.9, low=0, high=1),
    Field("min_p", "number", "", default=0.0, low=0, high=1),
    Field("seed", "integer", "makes a draw repeatable", low=-(2**63), high=2**63 - 1),
    Field("stop", "strings", "end before any of these texts"),
    Field("repeat_penalty", "number", "", default=1.0, low=1e-3, high=1e3),
    Field("presence_penalty", "number", "", default=0.0, low=-2, high=2),
    Field("frequency_penalty", "number", "", default=0.0, low=-2, high=2),
)


def check_model(service: Service, name: str) -> None:
    """Raise ApiError 404 unless this is the model; a tag `:latest` is taken as well."""
    if name.removesuffix(":latest") not in service.names():
        raise ApiError(404, f"model {name[:80]!r} not found", code="model_not_found", param="model")


def params_of(options: Mapping[str, Any]) -> Any:
    """SamplingParams from Ollama's `options`."""
    f = read(options, OPTIONS)
    longest, seed = f.pop("num_predict"), f.pop("seed")
    f["stop"], f["repetition_penalty"] = stops_of(f["stop"]), f.pop("repeat_penalty")
    return sampling(**f, max_tokens=longest if longest > 0 else None, seed=None if seed in (None, -1) else seed)


async def generate(service: Service, call: Call, body: dict[str, Any]) -> Any:
    """POST /api/generate. Without a prompt it only says that the model is there, as Ollama does."""
    service.check_open()
    f = read(body, GENERATE)
    check_model(service, f["model"])
    refuse(body, "suffix", "images", "format", "template")
    params = params_of(f["options"])
    if not f["prompt"]:
        return {"model": f["model"], "created_at": _now(), "response": "", "done": True, "done_reason": "load"}
    if f["raw"]:
        ids = await service.encode(f["prompt"])
    else:
        system = [{"role": "system", "content": f["system"]}] if f["system"] else []
        ids = await service.encode_chat([*system, {"role": "user", "content": f["prompt"]}])
    before = await service.encode(tuple(f["context"]))
    return _answer(service, call, Words(f["model"], chat=False), (*before, *ids), params, f["stream"])


async def chat(service: Service, call: Call, body: dict[str, Any]) -> Any:
    """POST /api/chat."""
    service.check_open()
    f = read(body, CHAT)
    check_model(service, f["model"])
    refuse(body, "tools", "format", "template")
    params = params_of(f["options"])
    if not f["messages"]:
        message = {"role": "assistant", "content": ""}
        return {"model": f["model"], "created_at": _now(), "message": message, "done": True, "done_reason": "load"}
    for i, message in enumerate(f["messages"]):
        if isinstance(message, dict):
            refuse(message, "images", "tool_calls")
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise ApiError(400, f"messages[{i}] must have a content that is text", param="messages")
    ids = await service.encode_chat(messages_of(f["messages"], service.max_model_len))
    return _answer(service, call, Words(f["model"], chat=True), ids, params, f["stream"])


class Words:
    """How an answer is put: under `response`, or in a `message`."""

    def __init__(self, model: str, chat: bool) -> None:
        self.model, self.chat = model, chat

    def of(self, text: str, done: bool) -> dict[str, Any]:
        """One line."""
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"response": text}
        return {"model": self.model, "created_at": _now(), **said, "done": done}


def _answer(service: Service, call: Call, words: Words, ids: tuple[int, ...], params: Any, stream: bool) -> Any:
    job = service.job(f"ollama-{secrets.token_hex(12)}", ids, params, call.arrival)
    call.jobs([job])
    group = service.ask([job])
    if stream:
        return Events(_lines(call, words, ids, group), "application/x-ndjson")
    return _whole(call, words, ids, group)


async def _whole(call: Call, words: Words, ids: tuple[int, ...], group: Group) -> dict[str, Any]:
    with group:
        pieces = (await group.whole())[0]
        call.routed(group)
    call.ended(pieces[-1])
    if pieces[-1].finish_reason == "error":
        raise broken(pieces[-1])
    text = "".join(piece.text for piece in pieces)
    return {**words.of(text, done=True), **_counters(words, ids, pieces, pieces[-1].costs)}


async def _lines(call: Call, words: Words, ids: tuple[int, ...], group: Group) -> AsyncIterator[bytes]:
    """A line for every token that has brought text, and a last one with the counters."""
    seen: list[Piece] = []
    with group:
        async for batch in group.batches():
            lines = []
            for _, piece in batch:
                seen.append(piece)
                if piece.finish_reason == "error":
                    call.ended(piece)
                    if len(seen) == 1:
                        raise broken(piece)
                    lines.append(as_json(broken(piece).ollama()) + b"\n")
                    continue
                if piece.text:
                    lines.append(as_json(words.of(piece.text, done=False)) + b"\n")
                if piece.finish_reason is not None:
                    call.ended(piece)
                    last = {**words.of("", done=True), **_counters(words, ids, seen, piece.costs)}
                    lines.append(as_json(last) + b"\n")
            if lines:
                yield b"".join(lines)
        call.routed(group)


def _counters(words: Words, ids: tuple[int, ...], pieces: list[Piece], costs: Costs | None) -> dict[str, Any]:
    """Ollama's counters, in nanoseconds. `load_duration` is the queue: the model itself is always loaded."""
    reason = pieces[-1].finish_reason
    tokens = [piece.token_id for piece in pieces if piece.token_id is not None]
    context = {} if words.chat else {"context": [*ids, *tokens]}
    if costs is None:
        return {"done_reason": reason, **context}
    queue, prefill, decode = (_ns(s) for s in (costs.queue_s, costs.prefill_s, costs.decode_s))
    return {
        "done_reason": reason,
        **context,
        "total_duration": queue + prefill + decode,
        "load_duration": queue,
        "prompt_eval_count": costs.prompt_tokens,
        "prompt_eval_duration": prefill,
        "eval_count": costs.output_tokens,
        "eval_duration": decode,
    }


def _ns(seconds: float | None) -> int:
    return round((seconds or 0.0) * 1e9)


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


async def version(_service: Service, _call: Call, _body: dict[str, Any]) -> dict[str, Any]:
    """GET /api/version."""
    return {"version": __version__}


async def tags(service: Service, _call: Call, _body: dict[str, Any]) -> dict[str, Any]:
    """GET /api/tags: the models that may be asked for."""
    return {"models": [_model(service)]}


def _model(service: Service) -> dict[str, Any]:
    name, since = service.settings.model_name, datetime.fromtimestamp(service.started, UTC).isoformat()
    return {"name": name, "model": name, "modified_at": since, "size": 0, "digest": "", "details": _details()}


def _details() -> dict[str, Any]:
    details = {"parent_model": "", "format": "", "family": "llama", "families": ["llama"], "parameter_size": ""}
    return {**details, "quantization_level": "F32"}


async def running(service: Service, _call: Call, _body: dict[str, Any]) -> dict[str, Any]:
    """GET /api/ps: the models that are loaded."""
    never = "9999-12-31T23:59:59Z"
    return {"models": [{**_model(service), "expires_at": never, "size_vram": 0}]}


async def show(service: Service, _call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """POST /api/show: one model in words."""
    f = read(body, SHOW)
    name = f["model"] or f["name"]
    if not name:
        raise ApiError(400, "model is missing", param="model", code="missing_required_parameter")
    check_model(service, name)
    template = service.tokenizer.vocabulary.file.chat_template if service.tokenizer else None
    info = {"general.architecture": "llama", "llama.context_length": service.max_model_len}
    return {
        "modified_at": _model(service)["modified_at"],
        "template": template or "",
        "parameters": "",
        "license": "",
        "details": _details(),
        "model_info": {**info, "llama.vocab_size": service.model.vocab_size},
        "capabilities": ["completion"],
    }
