"""A trace on the terminal: the same numbers as the figures, in letters, as wide as the window and no wider.

A letter is a stretch of time; what fills most of it is shown. Nothing is said by colour alone: with `color` the letters
are coloured, without it they are the same letters.

    r1  PPPPdddddd            P prefill, d decode, . waiting, x preempted, - sits a step out, : empty seat
    r2  ....PPPddddd
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from minifer.apps.numerals import megabytes, or_dash, three
from minifer.apps.view.trace_data import KINDS, Data, shared_spans
from minifer.apps.view.trace_model import Trace

LETTERS = {"waiting": ".", "prefill": "P", "decode": "d", "preempted": "x", "sitting out": "-", "empty seat": ":"}
COLORS = {"P": "34", "d": "33", "x": "31", ".": "90", ":": "90", "-": "90"}
NARROWEST = 30
MOST_LINES, ENDING = 200, 5
"""Of a view, so many are shown, and so many at its end: the axis, the legend, the sums."""
STRIPS = ("timeline", "requests")
NAME = 12
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def show(trace: Trace, kind: str, request_id: str | None, width: int, color: bool = False) -> list[str]:
    """One kind of view as lines of at most `width` characters (escapes of colour not counted)."""
    width = max(width, NARROWEST)
    data = KINDS[kind](trace, request_id) if kind == "latency" else KINDS[kind](trace)
    lines = [_cut(clean(line).rstrip(), width) for line in VIEWS[kind](data, width)]
    if len(lines) > MOST_LINES + ENDING:
        left_out = f"... {len(lines) - MOST_LINES - ENDING} lines left out; --json has them all"
        lines[MOST_LINES:-ENDING] = [_cut(left_out, width)]
    return [_colored(line) if color and kind in STRIPS else line for line in lines]


def summary(trace: Trace, width: int) -> list[str]:
    """The run in a line or two."""
    done = sum(life.reason is not None for life in trace.lives)
    tokens = sum(len(life.token_ids) for life in trace.lives)
    lines = [
        f"{trace.model}: {len(trace.lives)} requests, {done} finished, {len(trace.steps)} steps, {tokens} tokens, "
        f"{three(trace.seconds * 1e3)} ms"
    ]
    if trace.config:
        lines.append("limits: " + ", ".join(f"{name} {value}" for name, value in trace.config.items()))
    return [_cut(clean(line), max(width, NARROWEST)) for line in lines]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 3] + "..."


def clean(text: str) -> str:
    """Names and texts come from a file: what could move the cursor or hide something is spelled out."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def strip(bars: Sequence[Data], until: float, columns: int) -> str:
    """Bars of time as letters: each column shows the state that fills most of it, blank where there is none.

    >>> strip([{"state": "prefill", "start": 0, "end": 4}, {"state": "decode", "start": 4, "end": 8}], 8, 4)
    'PPdd'
    """
    shares: list[dict[str, float]] = [{} for _ in range(columns)]
    scale = columns / until if until > 0 else 0.0
    for bar in bars:
        start, end = bar["start"] * scale, bar["end"] * scale
        for column in range(int(start), min(columns, int(end) + 1)):
            share = min(end, column + 1) - max(start, column)
            if share > 0:
                shares[column][bar["state"]] = shares[column].get(bar["state"], 0.0) + share
    return "".join(LETTERS[max(share, key=lambda name: share[name])] if share else " " for share in shares)


def _axis(indent: int, columns: int, until: float) -> str:
    right = f"{three(until)} ms"
    return f"{'':<{indent}}0{right:>{max(columns - 1, len(right))}}"


def _legend(bars: Sequence[Data]) -> str:
    there = {bar["state"] for bar in bars}
    return "   ".join(f"{LETTERS[name]} {name}" for name in LETTERS if name in there)


def _timeline(data: Data, width: int) -> Iterator[str]:
    columns = width - 6
    seats = data["seat_steps"] + data["empty_seat_steps"]
    yield f"{data['slots']} slots, {data['steps']} steps, {data['empty_seat_steps']} of {seats} seat-steps empty"
    for slot in range(data["slots"]):
        mine = [bar for bar in data["bars"] if bar["slot"] == slot]
        yield f"{slot:>4}  {strip(mine, data['ms'], columns)}"
        yield f"      {_names(mine, data['ms'], columns)}"
    yield _axis(6, columns, data["ms"])
    yield _legend(data["bars"])


def _names(bars: Sequence[Data], until: float, columns: int) -> str:
    """Under a slot, the name of each request where it came in, if there is room."""
    line: list[str] = [" "] * columns
    last = None
    free_from = 0
    for bar in bars:
        at = int(bar["start"] * columns / until) if until > 0 else 0
        name = str(bar["id"] or "")[: columns - at]
        if bar["id"] not in (None, last) and at >= free_from:
            line[at : at + len(name)] = name
            free_from = at + len(name) + 1
        last = bar["id"] or last
    return "".join(line[:columns])


def _requests(data: Data, width: int) -> Iterator[str]:
    wide = width >= 72
    columns = width - NAME - 1 - (25 if wide else 0)
    if wide:
        yield f"{'':<{NAME}} {'':<{columns}}{'TTFT':>9}{'ITL':>7}  end"
    for row in data["rows"]:
        numbers = f"{or_dash(row['ttft']):>9}{or_dash(row['itl']):>7}  {row['reason'] or '-'}" if wide else ""
        yield f"{row['id'][:NAME]:<{NAME}} {strip(row['bars'], data['ms'], columns)}{numbers}"
    yield _axis(NAME + 1, columns, data["ms"])
    yield _legend([bar for row in data["rows"] for bar in row["bars"]])


def _latency(data: Data, width: int) -> Iterator[str]:
    if not data["tokens"]:
        yield "no token came out"
        return
    times = [token["time"] for token in data["tokens"]]
    bars = [{"state": "waiting", "start": 0.0, "end": data["queue"]},
            {"state": "prefill", "start": data["queue"], "end": times[0]},
            {"state": "decode", "start": times[0], "end": times[-1]}]  # fmt: skip
    first = min(width - 1, max(2, round(times[0] * width / (times[-1] or 1))))
    yield f"{data['id']}: {data['prompt']} prompt tokens, {data['cached']} of them cached, {len(times)} tokens out"
    yield f"|{'-' * (first - 2)}| TTFT {three(data['ttft'])} ms"
    yield strip(bars, times[-1], width)
    yield ", ".join(f"{name} {or_dash(data[name])}" for name in ("queue", "prefill", "decode", "e2e")) + " ms"
    if data["itl"]:
        gaps = data["itl"]
        yield f"ITL: {len(gaps)} gaps, median {three(data['median_itl'])}, {three(min(gaps))} to {three(max(gaps))} ms"
    for gap, token in zip([data["ttft"], *data["itl"]], data["tokens"], strict=True):
        text = f"#{token['id']}" if token["piece"] is None else repr(token["piece"])
        bar = "=" * round(gap / max(data["ttft"], *data["itl"], 1e-9) * max(width - 40, 0))
        yield f"{three(token['time']):>9} ms  +{three(gap):<8} {text:<16.16} {bar}"


def _load(data: Data, width: int) -> Iterator[str]:
    yield f"{'step':>6}{'ms':>9}{'prefill':>9}{'decode':>8}{'run':>5}{'wait':>6}{'free':>6}  tokens"
    most = max((row["prefill"] + row["decode"] for row in data["rows"]), default=1) or 1
    for row in data["rows"]:
        scale = max(width - 51, 0) / most
        bar = "P" * round(row["prefill"] * scale) + "d" * round(row["decode"] * scale)
        marks = f" preempted {row['preempted']}" if row["preempted"] else ""
        yield (f"{row['step']:>6}{three(row['end'] - row['start']):>9}{row['prefill']:>9}{row['decode']:>8}"
               f"{row['running']:>5}{row['waiting']:>6}{row['free_blocks']:>6}  {bar}{marks}")  # fmt: skip


def _cache(data: Data, width: int) -> Iterator[str]:
    rate = "nothing was admitted" if data["hit_rate"] is None else f"{data['hit_rate']:.1%} of all prompt tokens found"
    yield f"{data['found']} tokens found, {data['computed']} computed: {rate}"
    most = max((row["found"] + row["computed"] for row in data["rows"]), default=1) or 1
    scale = max(width - NAME - 19, 0) / most
    for row in data["rows"]:
        name = row["id"][: NAME - 2] + (" *" if row["again"] else "")
        yield (f"{name:<{NAME}}{row['found']:>7} +{row['computed']:>6}  "
               f"{'=' * round(row['found'] * scale)}{'P' * round(row['computed'] * scale)}")  # fmt: skip
    yield "= found   P computed" + ("   * admitted again" if any(row["again"] for row in data["rows"]) else "")


def _blocks(data: Data, width: int) -> Iterator[str]:
    """A line for each block: who holds it over time, by a digit or letter, `*` where it stands in several tables."""
    if not data["usage"]:
        yield "no step was made"
        return
    until, columns = data["usage"][-1]["end"], width - 6
    spans: dict[int, list[tuple[float, float, str]]] = {}
    for free in data["idle"]:
        spans.setdefault(free["block"], []).append((free["start"], free["end"], "'"))
    for hold in data["holds"]:
        spans.setdefault(hold["block"], []).append((hold["start"], hold["end"], _digit(hold["owner"])))
    for block, start, end in shared_spans(data["holds"]):
        spans[block].append((start, end, "*"))
    for block in sorted(spans):
        line = [" "] * columns
        for start, end, letter in spans[block]:
            first = min(int(start * columns / until), columns - 1)
            last = max(first + 1, min(int(end * columns / until), columns))
            line[first:last] = letter * (last - first)
        yield f"{block:>4}  {''.join(line)}"
    yield _axis(6, columns, until)
    owners = {hold["owner"]: hold["id"] for hold in data["holds"]}
    names = "  ".join(f"{_digit(owner)} {name}" for owner, name in sorted(owners.items())[:8])
    yield f"{names}{'  ...' if len(owners) > 8 else ''}"
    yield "* in several tables   ' free, still findable"
    top = max(data["usage"], key=lambda row: row["held"])
    each = f" of {megabytes(data['block_size'] * data['bytes_per_token'])}" if data["bytes_per_token"] else ""
    yield f"most held: {top['held']} of {data['num_blocks']} blocks{each}; without sharing {top['held'] + top['saved']}"
    yield f"           {top['written']} slots written, {top['wasted']} held and not written"


def _digit(owner: int) -> str:
    return DIGITS[owner % len(DIGITS)]


VIEWS: dict[str, Callable[[Any, int], Iterator[str]]] = {
    "timeline": _timeline,
    "requests": _requests,
    "latency": _latency,
    "load": _load,
    "cache": _cache,
    "blocks": _blocks,
}


def _colored(line: str) -> str:
    """Runs of a state's letter in its colour."""

    def paint(match: "re.Match[str]") -> str:
        return f"\x1b[{COLORS[match[0][0]]}m{match[0]}\x1b[0m"

    return re.sub(r"P{2,}|d{4,}|x{3,}|\.{4,}|:{3,}", paint, line)
