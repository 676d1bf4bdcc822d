"""The record of a run: every step's plan, times, tokens and blocks, one JSON object per line.

    {"kind": "header", "minifer_trace": 1, "config": {...}, "about": {...}}
    {"kind": "request", "time": 0.0, "id": "r1", "arrival": 0.0, "prompt": [5, 6], "max_tokens": 8, ...}
    {"kind": "step", "step": 1, "start": 0.0, "end": 0.02, "seqs": [...], "tables": {"r1": [0]}, "tokens": [...], ...}
    {"kind": "end", "time": 0.5, "id": "r1", "reason": "abort", "error": null}

Every picture of a run is drawn from such a file, so nothing in it is estimated afterwards. A *trace* is what an engine
did; a *workload* is what it was asked to do.

Writing must not disturb what it watches: a step is one `json.dumps` of values that the plan holds anyway, a block
table is written only when it has changed, and lines go to the file in large pieces. Without a trace the engine asks
one question per step. Reading a trace back, which trusts nothing, is the business of `formats/trace_lines.py`.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from minifer.scheduler.plan import StepPlan, TokenEvent
from minifer.scheduler.request import Request

VERSION = 1
"""Of the lines' form; `formats/trace_lines.py` reads them back."""


class Recorder(Protocol):
    """What an engine tells whoever watches it."""

    def added(self, request: Request, now: float) -> None:
        """A request has been queued."""

    def stepped(self, plan: StepPlan, events: list[TokenEvent], now: float) -> None:
        """A plan, made at `plan.time`, has been run and committed at `now`."""

    def ended(self, events: list[TokenEvent]) -> None:
        """Requests were ended from outside."""


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
