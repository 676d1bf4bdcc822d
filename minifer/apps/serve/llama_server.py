"""llama-server's language, as far as it is not OpenAI's: /health, /props, /tokenize, /detokenize.

Its `timings` are in every completion (`openai_answer.timings`). One default is not llama-server's: `/tokenize` reads
control tokens in the text as plain text unless `parse_special` is true, as everywhere in minifer.
"""

from typing import Any

from minifer import __version__
from minifer.apps.serve.protocol import ApiError, Field, read
from minifer.apps.serve.reply import Call
from minifer.apps.serve.service import SHORT, Service
from minifer.errors import TokenizerError

TOKENIZE = (
    Field("content", "string", "the text", required=True),
    Field("add_special", "boolean", "put the vocabulary's BOS in front", default=False),
    Field("parse_special", "boolean", "let control tokens in the text be control tokens", default=False),
    Field("with_pieces", "boolean", "give the text of each token too", default=False),
)
DETOKENIZE = (Field("tokens", "integers", "token ids", required=True),)


async def health(service: Service, _call: Call, _body: dict[str, Any]) -> dict[str, Any]:
    """GET /health: 200 while at least one replica is alive."""
    alive, all_of_them = service.fleet.num_alive, len(service.fleet.seats)
    if not alive or service.fleet.closing:
        raise ApiError(503, "no replica is ready", code="unavailable", headers={"Retry-After": "2"})
    return {"status": "ok", "replicas": all_of_them, "replicas_alive": alive}


async def props(service: Service, _call: Call, _body: dict[str, Any]) -> dict[str, Any]:
    """GET /props: the server in numbers. No path of the machine is told."""
    limits, template = service.model.limits, None
    if service.tokenizer is not None:
        template = service.tokenizer.vocabulary.file.chat_template
    return {
        "default_generation_settings": {
            "n_ctx": service.max_model_len,
            "params": {"n_predict": 16, "temperature": 1.0},
        },
        "total_slots": limits.max_num_seqs * len(service.fleet.seats),
        "model_alias": service.settings.model_name,
        "model_path": service.settings.model_name,
        "chat_template": template or "",
        "build_info": f"minifer {__version__}",
        "limits": {name: getattr(limits, name) for name in limits.__slots__},
        "replicas": [
            {
                "index": seat.replica.index,
                "alive": seat.alive,
                "running": seat.load.running,
                "waiting": seat.load.waiting,
            }
            for seat in service.fleet.seats
        ],
        "route": service.fleet.route,
    }


async def tokenize(service: Service, _call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """POST /tokenize."""
    f = read(body, TOKENIZE)
    text, options = f["content"], {"add_special": f["add_special"], "allow_special": f["parse_special"]}
    ids = await service.in_time(len(text), lambda: service.vocabulary().encode(text, **options))
    if not f["with_pieces"]:
        return {"tokens": list(ids)}
    return {"tokens": [{"id": i, "piece": _piece(service.vocabulary().token_bytes(i))} for i in ids]}


def _piece(data: bytes) -> Any:
    """A token as text, or as its bytes where they are no whole characters (as llama-server does)."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(service: Service, _call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """POST /detokenize."""
    ids = read(body, DETOKENIZE)["tokens"]
    if len(ids) > SHORT * 50:
        raise ApiError(400, f"{len(ids)} tokens are too many at once", param="tokens")
    try:
        return {"content": service.vocabulary().decode(ids)}
    except TokenizerError as error:
        raise ApiError(400, str(error), param="tokens", code="invalid_value") from None
