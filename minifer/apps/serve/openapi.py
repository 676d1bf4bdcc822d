"""The server's own OpenAPI document, made from the tables of fields that the requests are checked against."""

from collections.abc import Sequence
from typing import Any

from minifer import __version__
from minifer.apps.serve.protocol import Field
from minifer.apps.serve.service import Settings

_TYPES: dict[str, dict[str, Any]] = {
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "string": {"type": "string"},
    "strings": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "integers": {"type": "array", "items": {"type": "integer"}},
    "list": {"type": "array"},
    "object": {"type": "object"},
    "any": {},
}
_ERRORS = {
    "400": "the request is not as it should be",
    "401": "the API key is missing or wrong",
    "403": "Host or Origin are not served here",
    "404": "no such model, or nothing at this path",
    "405": "not this method",
    "408": "the body did not arrive in time",
    "413": "the body is too large",
    "429": "too many answers are unfinished; Retry-After says when to come back",
    "500": "the engine failed",
    "503": "no replica is ready",
}


def document(ways: Sequence[Any], settings: Settings) -> dict[str, Any]:
    """OpenAPI 3.1 for the routes in `ways` (see `app.Way`)."""
    paths: dict[str, Any] = {}
    for way in ways:
        path = way.path.replace("{name:path}", "{name}")
        paths.setdefault(path, {})[way.method.lower()] = _operation(way, path)
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "minifer", "version": __version__, "description": "LLM inference over HTTP."},
        "paths": paths,
        "components": {
            "schemas": {"Error": {"type": "object", "required": ["error"]}},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    if settings.api_keys:
        described["security"] = [{"key": []}]
    return described


def _operation(way: Any, path: str) -> dict[str, Any]:
    text = (way.handler.__doc__ or "").strip().splitlines()[0]
    ok = {"description": "done", "content": {media: {"schema": _of_answer(media)} for media in way.media}}
    wrong = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    errors = {status: {"description": why, "content": wrong} for status, why in _ERRORS.items()}
    name = f"{way.method.lower()}{path.replace('/', '_').replace('{', '').replace('}', '').replace('.', '_')}"
    found: dict[str, Any] = {"operationId": name, "summary": text, "responses": {"200": ok, **errors}}
    if "{name}" in path:
        found["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    if path.startswith("/trace"):
        found["parameters"] = [{"name": "replica", "in": "query", "schema": {"type": "integer", "minimum": 0}}]
    if way.method == "POST":
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema_of(way.fields)}}}
    return found


def _of_answer(media: str) -> dict[str, Any]:
    return {"type": "object"} if media == "application/json" else {"type": "string"}


def schema_of(fields: Sequence[Field]) -> dict[str, Any]:
    """The JSON schema of a body.

    >>> schema_of([Field("n", "integer", "answers", default=1, low=1, high=8)])["properties"]["n"]
    {'type': 'integer', 'minimum': 1, 'maximum': 8, 'default': 1, 'description': 'answers'}
    """
    properties = {}
    for field in fields:
        rule = dict(_TYPES[field.kind])
        rule |= {word: bound for word, bound in (("minimum", field.low), ("maximum", field.high)) if bound is not None}
        if field.default not in (None, (), {}, []):
            rule["default"] = field.default
        if field.text:
            rule["description"] = field.text
        properties[field.name] = rule
    required = [field.name for field in fields if field.required]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}
