"""JSON from strangers, checked before anything believes it.

Every field that a request may have stands in a table: its kind, its bounds, its default. `read` checks a body against
such a table, and `openapi.py` makes the published schema from the same one, so that the two can't drift apart.

What it is strict about, because JSON or Python are not: `true` is no number, `1.0` is no integer, NaN and Infinity are
no JSON, half a surrogate pair is no character (it becomes U+FFFD), and nesting has an end. Fields that are not in the
table are ignored, since clients send all kinds of them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minifer.tokenizer.chat import cleaned

MAX_DEPTH = 64


class ApiError(Exception):
    """A request that is answered with an error. `code` is OpenAI's word for it, `param` the field that is to blame."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.kind = kind if status < 500 else "server_error"
        self.headers = dict(headers or {})

    def openai(self) -> dict[str, Any]:
        """The body in OpenAI's form."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def ollama(self) -> dict[str, Any]:
        """The body in Ollama's form."""
        return {"error": self.message}


@dataclass(frozen=True)
class Field:
    """One field of a request: integer, number, boolean, string, strings (one or several), integers, list, object."""

    name: str
    kind: str
    text: str = ""
    default: Any = None
    low: float | None = None
    high: float | None = None
    required: bool = False


def parse_json(data: bytes) -> dict[str, Any]:
    """A JSON object from bytes. Raises ApiError 400 for anything else."""
    try:
        # Not json.loads(bytes): that takes UTF-16 and half surrogate pairs too.
        body = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
        _check_depth(body)
    except RecursionError:
        raise ApiError(400, f"the body is nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError:
        raise ApiError(400, "the body is not UTF-8") from None
    except ValueError as error:  # malformed, or an integer with more digits than Python converts
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    return cleaned(body) if b"\\u" in data else body  # only an escape can be half a surrogate pair


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _check_depth(value: Any) -> None:
    """Level by level, so that the check itself can't be made to recurse."""
    level = [value]
    for _ in range(MAX_DEPTH):
        nested = [v for v in level if isinstance(v, (dict, list))]
        level = [part for v in nested for part in (v.values() if isinstance(v, dict) else v)]
        if not level:
            return
    raise RecursionError


def read(body: Mapping[str, Any], fields: Sequence[Field]) -> dict[str, Any]:
    """The values of `fields` in `body`, with defaults for what is absent or null. Raises ApiError 400.

    >>> read({"n": 2, "unknown": 1}, [Field("n", "integer", default=1, low=1), Field("seed", "integer")])
    {'n': 2, 'seed': None}
    """
    return {field.name: _checked(body.get(field.name), field) for field in fields}


def _checked(value: Any, field: Field) -> Any:
    if value is None:
        if field.required:
            raise ApiError(400, f"{field.name} is missing", param=field.name, code="missing_required_parameter")
        return field.default
    if not _KINDS[field.kind](value):
        what = f"{field.name} must be {_WORDS[field.kind]}, not {_shown(value)}"
        raise ApiError(400, what, param=field.name, code="invalid_type")
    if field.kind in ("integer", "number"):
        low, high = field.low, field.high
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
            what = f"{field.name} must be {bounds}, not {_shown(value)}"
            raise ApiError(400, what, param=field.name, code="invalid_value")
    return value


def is_integer(value: Any) -> bool:
    """A whole number that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _is_strings(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(v, str) for v in value))


_KINDS: dict[str, Any] = {
    "integer": is_integer,
    "number": _is_number,
    "boolean": lambda v: isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "strings": _is_strings,
    "integers": lambda v: isinstance(v, list) and all(map(is_integer, v)),
    "list": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
    "any": lambda _: True,
}
_WORDS = {
    "integer": "a whole number",
    "number": "a finite number",
    "boolean": "true or false",
    "string": "a string",
    "strings": "a string or a list of strings",
    "integers": "a list of whole numbers",
    "list": "a list",
    "object": "an object",
}


def _shown(value: Any) -> str:
    """A value as it may stand in a message: short, and of strings only that they are strings."""
    if isinstance(value, str):
        return "a string"
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 24 else f"{text[:21]}..."
