"""Reading a trace (`minifer/trace.py` writes it): one JSON object per line, each checked before it is believed.

Every line is held against the committed JSON Schema, `minifer/data/trace.schema.json`, so that whatever draws a trace
can rely on its form; a damaged, truncated or foreign file is a FormatError that names the line.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TextIO

from minifer.errors import FormatError

MAX_LINE = 1 << 26
"""Characters. The longest honest line is a step with the block tables of a full pool, far below this."""


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema of a line, `minifer/data/trace.schema.json`; `$defs` holds one entry for each kind of line."""
    return json.loads(resources.files("minifer").joinpath("data/trace.schema.json").read_text(encoding="utf-8"))


def read_trace(file: str | Path | TextIO) -> Iterator[dict[str, Any]]:
    """Yield the lines of a trace as dictionaries, the header first, each checked against its schema.

    Raises FormatError, naming the line, for what is no trace, of another version, damaged or cut off.
    """
    if isinstance(file, str | Path):
        try:
            with open(file, encoding="utf-8") as opened:
                yield from read_trace(opened)
        except OSError as error:
            raise FormatError(f"the trace {str(file)!r} cannot be read: {error.strerror}") from None
        return
    number = 0
    try:
        while line := file.readline(MAX_LINE):
            number += 1
            yield _checked(number, line)
    except UnicodeDecodeError as error:
        raise FormatError(f"line {number + 1} of the trace is not UTF-8 text: {error.reason}") from None
    if number == 0:
        raise FormatError("the trace is empty: it should begin with a header line")


def _checked(number: int, line: str) -> dict[str, Any]:
    where = f"line {number} of the trace"
    if not line.endswith("\n"):
        raise FormatError(f"{where} is cut off: the run that wrote it did not close its trace")
    try:
        record = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is not JSON: {error}") from None
    kind = record.get("kind") if isinstance(record, dict) else None
    if (number == 1) != (kind == "header"):
        raise FormatError(f"{where} is {kind!r}: a trace has one header, and it is its first line")
    kinds = schema()["$defs"]
    if not isinstance(kind, str) or kind not in kinds:
        raise FormatError(f"{where} is of unknown kind {kind!r}: expected {', '.join(kinds)}")
    if problem := mismatch(record, kinds[kind]):
        raise FormatError(f"{where} ({kind}): {problem}")
    return record


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def mismatch(value: Any, rule: Mapping[str, Any], path: str = "") -> str:
    """What is wrong with a value under a schema, or "": just the part of JSON Schema that the trace's schema uses.

    >>> mismatch([1, "x"], {"type": "array", "items": {"type": "integer"}}, "tokens")
    'tokens[1] should be integer, not "x"'
    """
    if "const" in rule:
        return "" if value == rule["const"] else f"{path} should be {rule['const']!r}, not {_short(value)}"
    allowed = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
    if not any(isinstance(value, _TYPES[name]) and isinstance(value, bool) == (name == "boolean") for name in allowed):
        return f"{path} should be {' or '.join(allowed)}, not {_short(value)}"
    if isinstance(value, dict):
        return _object_mismatch(value, rule, path)
    if isinstance(value, list):
        rows = rule.get("prefixItems", [rule.get("items")] * len(value))
        if len(rows) != len(value):
            return f"{path} should have {len(rows)} entries, not {len(value)}"
        parts = (mismatch(item, row, f"{path}[{i}]") for i, (item, row) in enumerate(zip(value, rows, strict=True)))
        return next(filter(None, parts), "")
    return ""


def _object_mismatch(value: dict, rule: Mapping[str, Any], path: str) -> str:
    for name in rule.get("required", ()):
        if name not in value:
            return f"{path}.{name} is missing"
    rules, other = rule.get("properties", {}), rule.get("additionalProperties")
    ruled = ((name, rules.get(name, other)) for name in value)
    return next(filter(None, (mismatch(value[name], r, f"{path}.{name}") for name, r in ruled if r)), "")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
