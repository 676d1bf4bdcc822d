"""A trace for https://ui.perfetto.dev and chrome://tracing, in the Trace Event Format.

    process 1 "engine"      thread 1 "steps": one slice per step; counters: requests, tokens, blocks
    process 2 "slots"       a thread for each slot of the batch: prefill and decode slices, named by their request
    process 3 "requests"    a thread for each request: waiting, prefill, decode, preempted; an instant per token

The file is the format's JSON object: `traceEvents`, and `displayTimeUnit`. Every event has `ph`, `pid`, `tid`, `name`;
times `ts` and durations `dur` are microseconds. Phases used: X (complete slice), C (counter), i (instant), M (name of
a process or thread), s and f (an arrow from a preemption to the slice in which the request came back).
Source: Google, "Trace Event Format", 2016.
"""

from collections.abc import Iterator
from typing import Any

from minifer.apps.view import trace_data
from minifer.apps.view.trace_data import Data
from minifer.apps.view.trace_model import Trace

ENGINE, SLOTS, REQUESTS = 1, 2, 3

Event = dict[str, Any]


def perfetto(trace: Trace) -> Data:
    """The whole trace as one JSON object.

    >>> from minifer.apps.view.trace_model import build
    >>> events = perfetto(build([]))["traceEvents"]
    >>> [(event["ph"], event["args"]["name"]) for event in events]
    [('M', 'engine'), ('M', 'slots'), ('M', 'requests'), ('M', 'steps')]
    """
    events = [*_names(trace), *_steps(trace), *_slots(trace), *_requests(trace)]
    about = {name: value for name, value in trace.about.items() if name != "pieces"}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {**about, "limits": dict(trace.config)}}


def _us(milliseconds: float) -> float:
    return round(milliseconds * 1e3, 3)


def _meta(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(pid: int, tid: int, name: str, bar: Data, **args: Any) -> Event:
    duration = round(_us(bar["end"]) - _us(bar["start"]), 3)
    return {"ph": "X", "name": name, "cat": bar.get("state", "step"), "pid": pid, "tid": tid, "ts": _us(bar["start"]),
            "dur": duration, "args": args}  # fmt: skip


def _names(trace: Trace) -> Iterator[Event]:
    for pid, name in ((ENGINE, "engine"), (SLOTS, "slots"), (REQUESTS, "requests")):
        yield _meta("process_name", pid, 0, name)
    yield _meta("thread_name", ENGINE, 1, "steps")
    for slot in range(trace_data.timeline(trace)["slots"]):
        yield _meta("thread_name", SLOTS, slot + 1, f"slot {slot}")
    for life in trace.lives:
        yield _meta("thread_name", REQUESTS, life.index + 1, life.id)


def _steps(trace: Trace) -> Iterator[Event]:
    """A slice for each step, and the counters that change with it."""
    for row, step in zip(trace_data.load(trace)["rows"], trace.steps, strict=True):
        counts = {name: row[name] for name in ("prefill", "decode", "batch", "cached", "preempted", "sampled")}
        refused = {trace.lives[index].id: why for index, why in step.refused}
        yield _slice(ENGINE, 1, f"step {row['step']}", row, **counts, has_to_wait=refused)
        common = {"ph": "C", "pid": ENGINE, "tid": 0, "ts": _us(row["start"])}
        yield common | {"name": "requests", "args": {"running": row["running"], "waiting": row["waiting"]}}
        yield common | {"name": "tokens", "args": {"prefill": row["prefill"], "decode": row["decode"]}}
        yield common | {"name": "free blocks", "args": {"free": row["free_blocks"]}}


def _slots(trace: Trace) -> Iterator[Event]:
    for bar in trace_data.timeline(trace)["bars"]:
        name = bar["state"] if bar["id"] is None else f"{bar['id']} {bar['state']}"
        yield _slice(SLOTS, bar["slot"] + 1, name, bar, steps=bar["steps"], tokens=bar.get("tokens", 0))


def _requests(trace: Trace) -> Iterator[Event]:
    for life, row in zip(trace.lives, trace_data.requests(trace)["rows"], strict=True):
        tid = life.index + 1
        for bar in row["bars"]:
            yield _slice(REQUESTS, tid, bar["state"], bar, tokens=bar.get("tokens", 0))
        for place, (time, token) in enumerate(zip(row["tokens"], life.token_ids, strict=True)):
            piece = trace.piece(token)
            yield {"ph": "i", "s": "t", "name": f"token {place}" if piece is None else piece, "cat": "token",
                   "pid": REQUESTS, "tid": tid, "ts": _us(time), "args": {"id": token}}  # fmt: skip
        yield from _arrows(row, tid)


def _arrows(row: Data, tid: int) -> Iterator[Event]:
    """From each preemption to the slice in which the request ran again, if it did."""
    back = [bar["start"] for before, bar in zip(row["bars"], row["bars"][1:], strict=False)
            if before["state"] == "preempted"]  # fmt: skip
    for number, (gone, again) in enumerate(zip(row["preempted"], back, strict=False)):
        common = {"name": "preempted", "cat": "preempted", "id": 1000 * tid + number, "pid": REQUESTS, "tid": tid}
        yield common | {"ph": "s", "ts": _us(gone)}
        yield common | {"ph": "f", "bp": "e", "ts": _us(again)}
