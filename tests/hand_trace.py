"""A trace small enough to be worked out on paper, and a long one; the tests of everything that reads traces use them.

blocks of 4, a pool of 6           step 1   step 2   step 3   step 4
time                             0      1       1.5     2.25      3
a  prompt 1 2 3 4 5 6            P 6    d       d, end
b  prompt 1 2 3 4 9, from 0.5    queue  P 1     sent    P 2, end       finds the block 1 2 3 4 twice
block 0                          a      a, b    a       b
block 1                          a      a       a       free, findable
block 2                                 b               b
"""

import io
import json
from typing import Any

from minifer.apps.view.trace_model import Trace, build

HEADER = {
    "kind": "header",
    "minifer_trace": 1,
    "config": {"num_blocks": 6, "block_size": 4, "max_num_seqs": 2, "enable_prefix_caching": True},
    "about": {"model": "paper", "scheduler": "ContinuousScheduler", "pieces": {"7": " seven"}},
}


def asked(name: str, arrival: float, prompt: list[int], max_tokens: int = 3, **more: Any) -> dict[str, Any]:
    """A line for a request that was queued when it arrived."""
    known = {"kind": "request", "time": arrival, "id": name, "arrival": arrival, "prompt": prompt}
    return {**known, "max_tokens": max_tokens, "priority": 0, "siblings": 0, **more}


def step(number: int, start: float, end: float, seqs: list[list[Any]], **more: Any) -> dict[str, Any]:
    """A line for a step in which nothing else happened than what is named."""
    nothing: dict[str, Any] = {name: [] for name in ("copies", "admitted", "preempted", "refused", "tokens")}
    known = {"kind": "step", "step": number, "start": start, "end": end, "seqs": seqs, "tables": {}, "counts": {}}
    return {**known, **nothing, "load": [len(seqs), 0, len(seqs), 3], **more}


def token(name: str, token_id: int, reason: str | None = None) -> list[Any]:
    """A row of a step's tokens."""
    return [name, token_id, -0.5, reason, None]


def records() -> list[dict[str, Any]]:
    """The run of the module docstring; its clock begins at 10."""
    why = "a needed a block"
    return [
        HEADER,
        asked("a", 10.0, [1, 2, 3, 4, 5, 6]),
        step(1, 10.0, 11.0, [["a", "prefill", 0, 6, True]], tables={"a": [0, 1]}, admitted=[["a", 0]],
             tokens=[token("a", 7)], load=[1, 0, 1, 4]),
        asked("b", 10.5, [1, 2, 3, 4, 9], 2),
        step(2, 11.0, 11.5, [["a", "decode", 6, 1, True], ["b", "prefill", 4, 1, True]], tables={"b": [0, 2]},
             admitted=[["b", 4]], tokens=[token("a", 8), token("b", 20)], load=[2, 0, 2, 3]),
        step(3, 11.5, 12.25, [["a", "decode", 7, 1, True]], preempted=[["b", why]], refused=[["b", "no block"]],
             tokens=[token("a", 9, "length")], load=[1, 1, 1, 4]),
        step(4, 12.25, 13.0, [["b", "prefill", 4, 2, True]], tables={"b": [0, 2]}, admitted=[["b", 4]],
             tokens=[token("b", 21, "length")], load=[1, 0, 1, 4]),
    ]  # fmt: skip


def as_file(lines: list[dict[str, Any]]) -> io.StringIO:
    """Records as the file they would be."""
    return io.StringIO("".join(json.dumps(line) + "\n" for line in lines))


def closed() -> Trace:
    """Static batching on paper: two seats, the short answer's seat stays empty for two of three steps."""
    rows = [
        HEADER,
        asked("a", 0.0, [5, 6]),
        asked("b", 0.0, [7, 8]),
        asked("c", 0.0, [7, 9]),
        step(1, 0.0, 1.0, [["a", "prefill", 0, 2, True], ["b", "prefill", 0, 2, True]],
             tables={"a": [0], "b": [1]}, tokens=[token("a", 1, "stop"), token("b", 2)], load=[2, 1, 2, 4],
             admitted=[["a", 0], ["b", 0]]),
        step(2, 1.0, 2.0, [["b", "decode", 2, 1, True]], tokens=[token("b", 3)], load=[1, 1, 2, 5]),
        step(3, 2.0, 3.0, [["b", "decode", 3, 1, True]], tokens=[token("b", 4, "length")], load=[1, 1, 2, 5]),
        step(4, 3.0, 4.0, [["c", "prefill", 0, 2, True]], tables={"c": [0]}, tokens=[token("c", 3, "stop")],
             load=[1, 0, 1, 5], admitted=[["c", 0]]),
    ]  # fmt: skip
    return build(rows)


def long_run(requests: int = 1000, seats: int = 16) -> list[dict[str, Any]]:
    """Many requests of one prompt step and four decodes each, `seats` at a time."""
    lines: list[dict[str, Any]] = [{**HEADER, "config": {"block_size": 4, "num_blocks": 2 * seats}}]
    lines += [asked(f"r{i}", 0.0, [i, 1, 2], 5) for i in range(requests)]
    number = 0
    for first in range(0, requests, seats):
        group = list(range(first, min(first + seats, requests)))
        for turn in range(5):
            number += 1
            phase, start, count = ("decode", 2 + turn, 1) if turn else ("prefill", 0, 3)
            tables = {f"r{i}": [2 * k, 2 * k + 1] for k, i in enumerate(group)} if not turn else {}
            ran = [[f"r{i}", phase, start, count, True] for i in group]
            admitted = [[f"r{i}", 0] for i in group] if not turn else []
            said = [token(f"r{i}", turn, "length" if turn == 4 else None) for i in group]
            begin = float(number)
            lines.append(step(number, begin, begin + 1, ran, tables=tables, admitted=admitted, tokens=said))
    return lines
