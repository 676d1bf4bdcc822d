"""OpenAI's language: /v1/models, /v1/completions, /v1/chat/completions.

    POST /v1/completions        {"prompt": "Once", "stream": true}
    data: {"id": "cmpl-1f..", "object": "text_completion", "choices": [{"index": 0, "text": " upon", ...}], ...}
    data: {..., "choices": [{"index": 0, "text": " time", "finish_reason": "length"}], "timings": {...}}
    data: [DONE]

Choices of this server where the API leaves one:

* an event is sent for a token when it has brought text. One that ended in the middle of a character waits for the
  rest; its log-probabilities come with the next event;
* the role comes with the first token, not before it, so that a client's clock for the first token measures one;
* the event with `finish_reason` is the last of its choice and carries the last text, if any was left;
* `best_of`, `suffix`, `logit_bias`, tools and structured output are refused with 400, never ignored;
* parts of a message (`content` as a list) are joined by a line end, as vLLM does.
"""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from minifer.apps.serve.openai_answer import Ask, events, whole
from minifer.apps.serve.protocol import ApiError, Field, is_integer, read
from minifer.apps.serve.reply import Call, Events
from minifer.apps.serve.service import Prompt, Service, sampling

MOST = 2**31 - 1
"""Of a count: JSON's integers have no end, Python's neither."""

COMMON = (
    Field("model", "string", "a name from /v1/models; absent: the one model there is"),
    Field("stream", "boolean", "send events as tokens arrive", default=False),
    Field("stream_options", "object", "`include_usage`: one more event with the token counts"),
    Field("n", "integer", "answers to each prompt", default=1, low=1, high=128),
    Field("temperature", "number", "0 is greedy", default=1.0, low=0, high=2),
    Field("top_p", "number", "draw from the likeliest tokens that make up this much", default=1.0, low=0, high=1),
    Field("top_k", "integer", "draw from so many of the likeliest tokens; 0 or -1: all", default=0, low=-1, high=MOST),
    Field("min_p", "number", "drop tokens below this share of the likeliest one", default=0.0, low=0, high=1),
    Field("seed", "integer", "makes a draw repeatable", low=-(2**63), high=2**63 - 1),
    Field("stop", "strings", "end before any of these texts; at most 16"),
    Field("stop_token_ids", "integers", "end after any of these tokens", default=()),
    Field("ignore_eos", "boolean", "go on after the end-of-sequence token", default=False),
    Field("presence_penalty", "number", "", default=0.0, low=-2, high=2),
    Field("frequency_penalty", "number", "", default=0.0, low=-2, high=2),
    Field("repetition_penalty", "number", "above 1 discourages what was said", default=1.0, low=1e-3, high=1e3),
)
COMPLETION = (
    Field("prompt", "any", "text, token ids, or a list of either", required=True),
    *COMMON,
    Field("max_tokens", "integer", "longest answer", default=16, low=0, high=MOST),
    Field("logprobs", "integer", "report log-probabilities, and so many of the likeliest", low=0, high=20),
    Field("echo", "boolean", "give the prompt back in front of the answer", default=False),
)
CHAT = (
    Field("messages", "list", "the conversation so far", required=True),
    *COMMON,
    Field("max_tokens", "integer", "longest answer; absent: as long as there is room", low=1, high=MOST),
    Field("max_completion_tokens", "integer", "the newer name of max_tokens", low=1, high=MOST),
    Field("logprobs", "boolean", "report log-probabilities", default=False),
    Field("top_logprobs", "integer", "and so many of the likeliest tokens", low=0, high=20),
)
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MAX_STOPS, LONGEST_STOP = 16, 1000


def refuse(body: Mapping[str, Any], *names: str) -> None:
    """Raise ApiError 400 for a field that asks for something minifer doesn't do."""
    for name in names:
        if body.get(name) not in (None, [], {}, "", False):
            raise ApiError(400, f"{name} is not supported by this server", param=name, code="unsupported_parameter")


def stops_of(value: Any) -> tuple[str, ...]:
    """Stop strings, bounded: every one of them is looked for after every token."""
    stops = (value,) if isinstance(value, str) else tuple(value or ())
    if len(stops) > MAX_STOPS or any(not 0 < len(text) <= LONGEST_STOP for text in stops):
        what = f"stop takes at most {MAX_STOPS} texts of 1 to {LONGEST_STOP} characters"
        raise ApiError(400, what, param="stop", code="invalid_value")
    return stops


def params_of(f: Mapping[str, Any], max_tokens: int | None, logprobs_asked: int | None) -> Any:
    """The SamplingParams of a request's fields."""
    same = ("n", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "presence_penalty")
    values = {name: f[name] for name in (*same, "frequency_penalty", "repetition_penalty")}
    stop_ids = tuple(f["stop_token_ids"])
    return sampling(
        **values, stop=stops_of(f["stop"]), stop_token_ids=stop_ids, max_tokens=max_tokens, logprobs=logprobs_asked
    )


def prompts_of(value: Any, most: int) -> list[Prompt]:
    """Every form a prompt may have: text, texts, ids, lists of ids. Raises ApiError 400."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ApiError(400, "prompt must be text, token ids, or a list of either", param="prompt", code="invalid_type")
    if all(map(is_integer, value)):
        return [tuple(value)]
    if len(value) > most:
        raise ApiError(400, f"{len(value)} prompts in one request; at most {most} are taken", param="prompt")
    if all(isinstance(v, str) for v in value):
        return list(value)
    if all(isinstance(v, list) and v and all(map(is_integer, v)) for v in value):
        return [tuple(v) for v in value]
    raise ApiError(400, "prompt must be text, token ids, or a list of either", param="prompt", code="invalid_type")


def messages_of(value: list[Any], most: int) -> list[dict[str, str]]:
    """Messages as the chat template takes them: a role it may know and a text. Raises ApiError 400.

    `most` is the model's length: a message is at least a token.
    """
    if len(value) > most:
        raise ApiError(400, f"{len(value)} messages are more than the model's {most} tokens", param="messages")
    if not value:
        raise ApiError(400, "messages is empty: a conversation needs at least one", param="messages")
    return [_message(f"messages[{i}]", message) for i, message in enumerate(value)]


def _message(where: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise ApiError(400, f"{where} must be an object with a role and a content", param=where)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ApiError(400, f"{where}.role must be one of {', '.join(ROLES)}", param=f"{where}.role")
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    if isinstance(content, list):
        content = "\n".join(_part(f"{where}.content[{i}]", part) for i, part in enumerate(content))
    if not isinstance(content, str):
        raise ApiError(400, f"{where}.content must be text or a list of text parts", param=f"{where}.content")
    return {"role": ROLES[role], "content": content}


def _part(where: str, part: Any) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise ApiError(400, f"{where} must be a part of type text with a text: this model reads nothing else", param=where)


async def completions(service: Service, call: Call, body: dict[str, Any]) -> dict[str, Any] | Events:
    """POST /v1/completions."""
    service.check_open()
    f = read(body, COMPLETION)
    service.check_model(f["model"])
    refuse(body, "suffix", "logit_bias", "response_format")
    if body.get("best_of") not in (None, 1):
        raise ApiError(400, "best_of is not supported by this server", param="best_of", code="unsupported_parameter")
    given = prompts_of(f["prompt"], service.settings.max_prompts)
    params = params_of(f, f["max_tokens"], f["logprobs"])
    prompts = [await service.encode(prompt) for prompt in given]
    echoes = [_text(service, prompt) for prompt in given] if f["echo"] else []
    ask = _ask("cmpl", service, f, prompts, echoes, f["logprobs"])
    score = f["logprobs"] if f["echo"] else None
    return _answer(service, call, ask, params, score, bool(f["stream"]))


async def chat_completions(service: Service, call: Call, body: dict[str, Any]) -> dict[str, Any] | Events:
    """POST /v1/chat/completions."""
    service.check_open()
    f = read(body, CHAT)
    service.check_model(f["model"])
    refuse(body, "tools", "functions", "logit_bias", "audio", "prediction")
    _refuse_format(body)
    if f["top_logprobs"] is not None and not f["logprobs"]:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value")
    asked = (f["top_logprobs"] or 0) if f["logprobs"] else None
    longest = f["max_completion_tokens"] if f["max_completion_tokens"] is not None else f["max_tokens"]
    params = params_of(f, longest, asked)
    prompt = await service.encode_chat(messages_of(f["messages"], service.max_model_len))
    ask = _ask("chatcmpl", service, f, [prompt], [], asked)
    return _answer(service, call, ask, params, None, bool(f["stream"]))


def _refuse_format(body: Mapping[str, Any]) -> None:
    wanted = body.get("response_format")
    if wanted is not None and (not isinstance(wanted, dict) or wanted.get("type") != "text"):
        what = "response_format must be of type text: structured output is not supported"
        raise ApiError(400, what, param="response_format", code="unsupported_parameter")


def _text(service: Service, prompt: Prompt) -> str:
    """A prompt as text, for `echo`."""
    if isinstance(prompt, str):
        return prompt
    return service.tokenizer.decode(prompt) if service.tokenizer else "".join(f" {i}" for i in prompt)


def _ask(
    prefix: str,
    service: Service,
    f: Mapping[str, Any],
    prompts: list[tuple[int, ...]],
    echoes: list[str],
    asked: int | None,
) -> Ask:
    options = f["stream_options"] or {}
    include = options.get("include_usage", False)
    if not isinstance(include, bool):
        raise ApiError(400, "stream_options.include_usage must be true or false", param="stream_options")
    name, created = f"{prefix}-{secrets.token_hex(12)}", int(time.time())
    model = service.settings.model_name
    return Ask(
        name, created, model, prefix == "chatcmpl", f["n"], f.get("echo", False), asked, include, prompts, echoes
    )


def _answer(
    service: Service, call: Call, ask: Ask, params: Any, score: int | None, stream: bool
) -> dict[str, Any] | Events | Any:
    """Check everything, send the jobs off, and give what will write the answer."""
    jobs = [service.job(f"{ask.id}-{i}", ids, params, call.arrival, score) for i, ids in enumerate(ask.prompts)]
    call.jobs(jobs)
    group = service.ask(jobs)
    if stream:
        return Events(events(service, call, ask, group), "text/event-stream")
    return whole(service, call, ask, group)


async def models(service: Service, _call: Call, _body: dict[str, Any]) -> dict[str, Any]:
    """GET /v1/models."""
    return {"object": "list", "data": [_model(service, name) for name in service.names()]}


async def model(service: Service, call: Call, _body: dict[str, Any]) -> dict[str, Any]:
    """GET /v1/models/NAME."""
    service.check_model(call.path_name)
    return _model(service, service.settings.model_name)


def _model(service: Service, name: str) -> dict[str, Any]:
    length = service.max_model_len
    return {"id": name, "object": "model", "created": service.started, "owned_by": "minifer", "max_model_len": length}
