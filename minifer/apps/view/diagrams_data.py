"""The numbers of the figures in diagrams/, from recorded runs: what is drawn, and what is compared to find drift.

Each function takes what its figure is drawn from (traces by name, or a roofline report) and returns plain values.
"""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from minifer.apps.view import trace_data
from minifer.apps.view.trace_blocks import History, computed_at
from minifer.apps.view.trace_data import Data, ms
from minifer.apps.view.trace_model import Trace

Traces = Mapping[str, Trace]


def lifecycle(traces: Traces) -> Data:
    """Every request's life in a run where the blocks ran out, and how often each arrow was taken."""
    trace = traces["blocks"]
    counts = {
        "asked": len(trace.lives),
        "admitted": sum(len(life.admitted) for life in trace.lives),
        "preempted": sum(len(life.preempted) for life in trace.lives),
        "finished": sum(life.reason is not None for life in trace.lives),
    }
    return {"counts": counts, **trace_data.requests(trace)}


def kv_growth(traces: Traces) -> Data:
    """Slots written by each request, step by step; a shared block counts for the first who holds it."""
    trace = traces["continuous"]
    history = History(trace)
    rows = []
    for step in trace.steps:
        written: dict[str, int] = {}
        cells = [cell for cell in history.at(step.index).values() if cell.owners]
        for cell in cells:
            name = trace.lives[min(cell.owners)].id
            written[name] = written.get(name, 0) + cell.used
        rows.append({"start": ms(step.start), "end": ms(step.end), "written": written,
                     "held": len(cells) * trace.block_size})  # fmt: skip
    return {
        "ids": [life.id for life in trace.lives],
        "rows": rows,
        "bytes_per_token": trace.about["kv_bytes_per_token"],
        "reserved": trace.config["max_num_seqs"] * trace.config["max_model_len"],
        "longest": trace.config["max_model_len"],
    }


def paged(traces: Traces) -> Data:
    """The tables and the pool in the last step before somebody had to give his blocks back."""
    trace = traces["blocks"]
    step = next(step for step in trace.steps if step.preempted)
    index = step.index - 1
    history = History(trace)
    tables: dict[str, list[Data]] = {}
    for hold in sorted(history.holds, key=lambda hold: hold.place):
        if hold.first <= index <= hold.last:
            used = history.used(hold.place, computed_at(trace.lives[hold.life], index))
            tables.setdefault(trace.lives[hold.life].id, []).append({"block": hold.block, "used": used})
    cells = history.at(index)
    pool = [
        {"owners": [trace.lives[life].id for life in cells[block].owners], "used": cells[block].used}
        if block in cells else {"owners": [], "used": 0} for block in range(trace.num_blocks)
    ]  # fmt: skip
    names = sorted(tables, key=lambda name: trace.life(name).index)
    return {"step": trace.steps[index].number, "block_size": trace.block_size, "pool": pool,
            "tables": {name: tables[name] for name in names}, "why": step.preempted[0][1],
            "victim": trace.lives[step.preempted[0][0]].id}  # fmt: skip


def batching(traces: Traces) -> Data:
    """The slots of the same eight requests under two schedulers."""
    return {name: trace_data.timeline(traces[name]) for name in ("static", "continuous")}


def chunked(traces: Traces) -> Data:
    """Streams beside a long prompt: every request's work by step, the worst gap of a stream, the prompt's TTFT."""
    return {name: _streams(traces[name]) for name in ("whole", "chunked")}


def _streams(trace: Trace) -> Data:
    rows = []
    for life in trace.lives:
        work = [{"phase": w.phase, "tokens": w.count, "start": ms(trace.steps[w.step].start),
                 "end": ms(trace.steps[w.step].end)} for w in life.work]  # fmt: skip
        rows.append({"id": life.id, "arrival": ms(life.arrival), "work": work})
    long = max(trace.lives, key=lambda life: len(life.prompt))
    first = long.arrival
    gaps = [
        (later - earlier, earlier, life.id)
        for life in trace.lives if life is not long
        for earlier, later in zip(life.token_times, life.token_times[1:], strict=False) if later > first
    ]  # fmt: skip
    worst = max(gaps)
    ttft = long.metrics().ttft
    return {"rows": rows, "long": long.id, "prompt": len(long.prompt), "budget": trace.config["max_num_batched_tokens"],
            "worst_itl": ms(worst[0]), "worst_at": ms(worst[1]), "ttft": None if ttft is None else ms(ttft),
            "chunks": len(long.works("prefill"))}  # fmt: skip


def ttft_itl(traces: Traces) -> Data:
    """A request alone, and one that had to wait."""
    waiting = max(traces["blocks"].lives, key=lambda life: life.metrics().queue_time or 0.0)
    return {"alone": trace_data.latency(traces["one"]), "busy": trace_data.latency(traces["blocks"], waiting.id)}


def roofline(report: Mapping[str, Any]) -> Data:
    """Points and ceilings of a measured run."""
    keys = ("phase", "op", "batch", "length", "context", "intensity", "flops_per_s", "share")
    points = [{key: point[key] for key in keys if key in point} for point in report["points"]]
    ceilings = {key: report["ceilings"][key] for key in ("flops_per_s", "read_bytes_per_s", "ridge")}
    return {"points": points, "ceilings": ceilings, "model": report["model"]["name"]}


# ---- the architecture, from the imports ------------------------------------------------------------------------------


def architecture(package: Path) -> Data:
    """The parts of the package (files and folders on its first level), on which level each stands, and who imports
    whom. An import that follows from two others is left out; types for the reader (`TYPE_CHECKING`) don't count."""
    parts = sorted(path for path in package.iterdir() if _is_part(path))
    names = {path.stem for path in parts}
    imports = {path.stem: _imports(path) & names - {path.stem} for path in parts}
    levels = dict.fromkeys(names, 0)
    for _ in names:  # as often as the longest path can be long
        for name, needed in imports.items():
            levels[name] = max([levels[name], *(levels[other] + 1 for other in needed)])
            if levels[name] > len(names):
                raise AssertionError(f"{name} imports itself in a circle")
    return {"levels": {name: levels[name] for name in sorted(names, key=lambda n: (levels[n], n))},
            "imports": {name: sorted(_direct(name, imports)) for name in sorted(names)}}  # fmt: skip


def _is_part(path: Path) -> bool:
    if path.name.startswith("_"):
        return False
    return path.suffix == ".py" or (path / "__init__.py").is_file()


@cache
def _imports(path: Path) -> frozenset[str]:
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    found: set[str] = set()
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        types = {id(inner) for node in ast.walk(tree) if _for_types(node) for inner in ast.walk(node)}
        for node in ast.walk(tree):
            if id(node) not in types:
                found |= set(_named(node))
    return frozenset(found)


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _named(node: ast.AST) -> list[str]:
    """The parts that an import statement names: `from minifer import ops`, `from minifer.ops.batch import x`."""
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("minifer.")]
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "minifer":
        words = node.module.split(".")
        return [words[1]] if len(words) > 1 else [alias.name for alias in node.names]
    return []


def _direct(name: str, imports: Mapping[str, frozenset[str]]) -> set[str]:
    """The imports of a part that no other import of it brings along."""

    return {other for other in imports[name]
            if not any(other in _reached(third, imports) for third in imports[name] - {other})}  # fmt: skip


def _reached(start: str, imports: Mapping[str, frozenset[str]]) -> set[str]:
    """Everything below a part."""
    seen: set[str] = set()
    to_see = [start]
    while to_see:
        to_see += [other for other in imports[to_see.pop()] if other not in seen]
        seen.update(to_see)
    return seen
