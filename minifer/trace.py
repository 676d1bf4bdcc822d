"""The record of a run: every step's plan, times, tokens and blocks, one JSON object per line.

    {"kind": "header", "minifer_trace": 1, "config": {...}, "about": {...}}
    {"kind": "request", "time": 0.0, "id": "r1", "arrival": 0.0, "prompt": [5, 6], "max_tokens": 8, ...}
    {"kind": "step", "step": 1, "start": 0.0, "end": 0.02, "seqs": [...], "tables": {"r1": [0]}, "tokens": [...], ...}
    {"kind": "end", "time": 0.5, "id": "r1", "reason": "abort", "error": null}

Every picture of a run is drawn from such a file, so nothing in it is estimated afterwards. A *trace* is what an engine
did; a *workload* is what it was asked to do.

Writing must not disturb what it watches: a step is one `json.dumps` of values that the plan holds anyway, a block
table is written only when it has changed, and lines go to the file in large pieces. Without a trace the engine asks
one question per step. Reading trusts nothing: each line is checked against the committed JSON Schema, and a damaged
file is a FormatError that names the line.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TextIO

from minifer.errors import FormatError
from minifer.scheduler.plan import StepPlan, TokenEvent
from minifer.scheduler.request import Request

VERSION = 1
MAX_LINE = 1 << 26
"""Characters. The longest honest line is a step with the block tables of a full pool, far below this."""


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema of a line, `minifer/data/trace.schema.json`; `$defs` holds one entry for each kind of line."""
    return json.loads(resources.files("minifer").joinpath("data/trace.schema.json").read_text(encoding="utf-8"))


class TraceWriter:
    """Writes a trace as the engine runs; hand it to `Engine(..., trace=)`, and close it (or use `with`).

    `config` and `about` (model, versions, machine) go into the header. `counts` is asked once per step.

    >>> import io
    >>> file = io.StringIO()
    >>> with TraceWriter(file, about={"model": "tiny"}) as trace:
    ...     trace.stepped(StepPlan(step=1, time=0.5), [], now=0.75)
    >>> file.getvalue().splitlines()[0]
    '{"kind":"header","minifer_trace":1,"config":{},"about":{"model":"tiny"}}'
    """

    def __init__(
        self,
        file: str | Path | TextIO,
        config: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
        counts: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self._owned = isinstance(file, str | Path)
        # A large buffer, so that a step costs one copy in memory and rarely a system call.
        self._file: TextIO = open(file, "w", 1 << 18, encoding="utf-8") if isinstance(file, str | Path) else file  # noqa: SIM115
        self._dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
        self._tables: dict[str, tuple[int, ...]] = {}  # as last written
        self._counts = counts
        header = {"kind": "header", "minifer_trace": VERSION, "config": dict(config or {}), "about": dict(about or {})}
        self._write(header)

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def added(self, request: Request, now: float) -> None:
        """Record that a request was queued."""
        arrival, prompt, answers = request.arrival, request.prompt_ids, len(request.siblings)
        known = {"id": request.id, "arrival": arrival, "prompt": prompt, "max_tokens": request.max_tokens}
        self._write({"kind": "request", "time": now, **known, "priority": request.priority, "siblings": answers})

    def stepped(self, plan: StepPlan, events: list[TokenEvent], now: float) -> None:
        """Record a step that began at `plan.time` and was committed at `now`."""
        tables, known = {}, self._tables
        for seq in plan.seqs:
            if known.get(seq.request_id) is not seq.block_table:
                tables[seq.request_id] = known[seq.request_id] = seq.block_table
        self._write(
            {
                "kind": "step",
                "step": plan.step,
                "start": plan.time,
                "end": now,
                "seqs": [(s.request_id, s.phase, s.start, len(s.tokens), s.samples) for s in plan.seqs],
                "tables": tables,
                "copies": plan.copies,
                "admitted": plan.admitted,
                "preempted": plan.preempted,
                "refused": plan.refused,
                "load": (plan.running, plan.waiting, plan.seats, plan.free_blocks),
                "tokens": [(e.request_id, e.token_id, _finite(e.logprob), e.finish_reason, e.error) for e in events],
                "counts": dict(self._counts()) if self._counts else {},
            }
        )
        self._forget([e.request_id for e in events if e.finish_reason] + [name for name, _ in plan.preempted])

    def ended(self, events: list[TokenEvent]) -> None:
        """Record requests that were ended from outside."""
        for event in events:
            end = {"time": event.time, "id": event.request_id, "reason": event.finish_reason, "error": event.error}
            self._write({"kind": "end", **end})
        self._forget([event.request_id for event in events])

    def close(self) -> None:
        """Bring everything to the file, and close it if this writer opened it."""
        self._file.flush()
        if self._owned:
            self._file.close()

    def _forget(self, names: list[str]) -> None:
        for name in names:
            self._tables.pop(name, None)

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.write(self._dumps(record) + "\n")


def _finite(value: float | None) -> float | None:
    """JSON has no infinity: the log-probability of a token that the model had ruled out is left out."""
    return value if value is not None and math.isfinite(value) else None


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
