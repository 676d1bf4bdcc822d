"""Figures of a trace, for notebooks, papers and `minifer trace --figure`.

    timeline_figure([trace, ...])    slots of the batch over time, several runs on one clock (static beside continuous)
    requests_figure(trace)           the life of every request
    latency_figure(trace, id)        TTFT and ITL of one request as brackets
    load_figure(trace)               tokens per step, requests running and waiting
    cache_figure(trace)              what the prefix cache saved
    blocks_figure(trace)             the KV blocks over time

Each takes a recorded run and returns a matplotlib figure; what it shows are the numbers of `trace_data.py`.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from minifer.apps.numerals import three
from minifer.apps.view import trace_data
from minifer.apps.view.figure_style import (
    BLACK,
    BLUE,
    FREE,
    GREY,
    LIGHT,
    ORANGE,
    VERMILION,
    bar,
    bracket,
    caption,
    flat_bars,
    new_figure,
    plain_time,
    source,
    state_legend,
    style,
)
from minifer.apps.view.trace_block_figures import blocks_figure
from minifer.apps.view.trace_data import Data
from minifer.apps.view.trace_model import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 48
"""More slots or requests than this get no name and no tick: they could not be read."""
MOST_BARS = 600


# ---- slots of the batch ----------------------------------------------------------------------------------------------


def timeline_figure(traces: Sequence[Trace], names: Sequence[str] = ()) -> "Figure":
    """The slots of one run, or of several under each other on the same clock."""
    found = [trace_data.timeline(trace) for trace in traces]
    with style():
        figure = new_figure(sum(0.75 + 0.3 * min(data["slots"], 24) for data in found) + 0.55)
        heights = [min(data["slots"], 24) + 1.5 for data in found]
        panels = figure.subplots(len(found), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for ax, data, name in zip(panels, found, list(names) or [d["scheduler"] for d in found], strict=True):
            draw_slots(ax, data)
            ax.set_title(timeline_words(data, name))
        panels[-1].set_xlabel("milliseconds since the first request arrived")
        plain_time(panels[-1])
        states = {bar["state"] for data in found for bar in data["bars"]}
        flat = any(data["slots"] > MOST_ROWS or len(data["bars"]) > MOST_BARS for data in found)
        state_legend(figure, tuple(states), flat=flat)
        caption(figure, source(traces[0]))
    return figure


def timeline_words(data: Data, name: str) -> str:
    """A run in a line: its steps, its time, the seats that were empty."""
    seats = data["seat_steps"] + data["empty_seat_steps"]
    empty = f", {data['empty_seat_steps']} of {seats} seat-steps empty" if data["empty_seat_steps"] else ""
    return f"{name}: {data['steps']} steps, {three(data['ms'])} ms{empty}"


def draw_slots(ax: "Axes", data: Data) -> None:
    """Bars of the slots, the name of the request in each stay's longest one, its end marked."""
    bars = [(row["state"], row["slot"], row["start"], row["end"]) for row in data["bars"]]
    if data["slots"] > MOST_ROWS or len(bars) > MOST_BARS:
        flat_bars(ax, bars)
    else:
        for one in bars:
            bar(ax, *one)
        for slot, name, middle, end in _named_stays(data):
            ax.annotate(name, (middle, slot), ha="center", va="center", fontsize=7.5, clip_on=True,
                        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85})  # fmt: skip
            ax.plot([end, end], [slot - 0.36, slot + 0.36], color=BLACK, linewidth=1.4)
    ax.set(ylim=(data["slots"] - 0.4, -0.6), xlim=(0, None), ylabel="slot")
    _whole_ticks(ax, data["slots"])


def _named_stays(data: Data) -> list[tuple[int, str, float, float]]:
    """Slot, request, the middle of its longest bar, and its end."""
    stays: dict[tuple[int, str], list[Data]] = {}
    for row in data["bars"]:
        if row["id"] is not None:
            stays.setdefault((row["slot"], row["id"]), []).append(row)
    longest = {key: max(rows, key=lambda row: row["end"] - row["start"]) for key, rows in stays.items()}
    return [(*key, (longest[key]["start"] + longest[key]["end"]) / 2, rows[-1]["end"]) for key, rows in stays.items()]


def _whole_ticks(ax: "Axes", count: int) -> None:
    step = max(1, count // 12)
    ax.set_yticks(range(0, count, step))


# ---- the life of every request ---------------------------------------------------------------------------------------


def requests_figure(trace: Trace) -> "Figure":
    """A row for each request, from its arrival to its end, with a tick for every token."""
    data = trace_data.requests(trace)
    with style():
        figure = new_figure(0.95 + 0.3 * min(max(len(data["rows"]), 1), 24))
        draw_requests(figure.subplots(), data)
        state_legend(figure, tuple({bar["state"] for row in data["rows"] for bar in row["bars"]}),
                     flat=len(data["rows"]) > MOST_ROWS)  # fmt: skip
        caption(figure, source(trace))
    return figure


def draw_requests(ax: "Axes", data: Data) -> None:
    """Rows of states with their tokens; a cross where blocks were given back."""
    rows = data["rows"]
    few = len(rows) <= MOST_ROWS
    if not few:
        parts = ((part, place) for place, row in enumerate(rows) for part in row["bars"])
        flat_bars(ax, [(part["state"], place, part["start"], part["end"]) for part, place in parts])
    for place, row in enumerate(rows if few else ()):
        for part in row["bars"]:
            bar(ax, part["state"], place, part["start"], part["end"], 0.62)
        ax.vlines(row["tokens"], place - 0.31, place + 0.31, color=BLACK, linewidth=0.5)
        if row["preempted"]:
            ax.plot(row["preempted"], [place] * len(row["preempted"]), "X", color=VERMILION, markeredgecolor="black",
                    markersize=6, clip_on=False, zorder=5)  # fmt: skip
    ax.set(
        ylim=(len(rows) - 0.4, -0.6), xlim=(0, data["ms"] or 1), xlabel="milliseconds since the first request arrived"
    )
    plain_time(ax)
    ax.set_yticks(range(len(rows)), [row["id"] for row in rows]) if few else ax.set_ylabel("request")


# ---- one request -----------------------------------------------------------------------------------------------------

MOST_PIECES = 26


def latency_figure(trace: Trace, request_id: str | None = None) -> "Figure":
    """Queue, prefill and every token of one request on a line, TTFT and ITL as brackets."""
    data = trace_data.latency(trace, request_id)
    with style():
        figure = new_figure(2.5)
        draw_latency(figure.subplots(), data)
        state_legend(figure, tuple(_latency_states(data)))
        caption(figure, source(trace))
    return figure


def _latency_states(data: Data) -> set[str]:
    found = {"prefill"} if data["tokens"] else set()
    found |= {"waiting"} if (data.get("queue") or 0) >= 1 else set()
    return found | ({"decode"} if len(data["tokens"]) > 1 else set())


def draw_latency(ax: "Axes", data: Data) -> None:
    """The line of one request. Tokens have their text below, where the trace knows it and there is room."""
    ax.set(yticks=[], ylim=(-1.45, 1.5), xlabel="milliseconds since the request arrived")
    ax.spines[["left"]].set_visible(False)
    plain_time(ax)
    if not data["tokens"]:
        ax.annotate("no token came out", (0.5, 0.5), xycoords="axes fraction", ha="center")
        return
    times = [token["time"] for token in data["tokens"]]
    bar(ax, "waiting", 0, 0, data["queue"])
    bar(ax, "prefill", 0, data["queue"], times[0])
    for start, end in pairwise(times):
        bar(ax, "decode", 0, start, end)
    ax.vlines(times, -0.42, 0.42, color=BLACK, linewidth=0.7)
    bracket(ax, 0, times[0], 0.72, f"TTFT {three(data['ttft'])} ms")
    if data["itl"]:
        _itl_brackets(ax, data, times)
    if len(times) <= MOST_PIECES:
        _pieces(ax, data)
    ax.set_xlim(0, times[-1] * 1.015)


def _itl_brackets(ax: "Axes", data: Data, times: list[float]) -> None:
    """A bracket for each gap where they can be told apart, one name for all; the worst gap if it stands out."""
    gaps, median = data["itl"], data["median_itl"]
    for start, end in pairwise(times):
        inset = min(0.12 * (end - start), 1.5)
        ax.plot([start + inset] * 2 + [end - inset] * 2, [0.56, 0.66, 0.66, 0.56], color=BLACK, linewidth=0.8)
    middle = (times[0] + times[-1]) / 2
    words = f"ITL: {len(gaps)} gaps, median {three(median)} ms"
    worst = max(range(len(gaps)), key=gaps.__getitem__)
    if gaps[worst] > 1.5 * median:
        words += f", worst {three(gaps[worst])} ms"
        ax.plot([times[worst], times[worst + 1]], [0.78, 0.78], color=VERMILION, linewidth=2)
    ax.annotate(words, (middle, 0.72), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=8)
    bracket(ax, 0, times[-1], 1.25, f"E2E {three(data['e2e'])} ms")


def _pieces(ax: "Axes", data: Data) -> None:
    for token in data["tokens"]:
        if token["piece"] is not None:
            text = token["piece"].strip(" ").replace("\n", "\\n").replace("$", r"\$") or "space"
            ax.annotate(text, (token["time"], -0.46), rotation=40, ha="right", va="top", fontsize=7.5,
                        rotation_mode="anchor")  # fmt: skip


# ---- step by step ----------------------------------------------------------------------------------------------------


def load_figure(trace: Trace) -> "Figure":
    """Tokens fed in by each step, by phase; under it how many requests ran and how many waited."""
    data = trace_data.load(trace)
    with style():
        figure = new_figure(3.7)
        tokens, queue = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        draw_step_tokens(tokens, data)
        draw_queue(queue, data)
        queue.set_xlabel("milliseconds since the first request arrived")
        plain_time(queue)
        state_legend(figure, ("prefill", "decode"))
        caption(figure, source(trace))
    return figure


def draw_step_tokens(ax: "Axes", data: Data) -> None:
    """A bar for each step, as wide as it took: decode tokens below, prefill tokens on them."""
    for row in data["rows"]:
        width, left = row["end"] - row["start"], row["start"]
        ax.bar(left, row["decode"], width, align="edge", color=ORANGE, edgecolor="white", linewidth=0.3)
        ax.bar(left, row["prefill"], width, bottom=row["decode"], align="edge", color=BLUE, hatch="////",
               edgecolor="#7FB8DA", linewidth=0.3)  # fmt: skip
    ax.set(ylabel="tokens in the step", yscale="symlog", ylim=(0, None))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def draw_queue(ax: "Axes", data: Data) -> None:
    """Requests in the batch and in the queue, and where somebody was sent back."""
    rows = data["rows"]
    if not rows:
        return
    edges = [row["start"] for row in rows] + [rows[-1]["end"]]
    for name, color, dash in (("running", BLUE, "-"), ("waiting", VERMILION, "--")):
        values = [row[name] for row in rows]
        ax.stairs(values, edges, baseline=None, color=color, linestyle=dash, linewidth=1.4, label=name)
    back = [row for row in rows if row["preempted"]]
    if back:
        ax.plot([row["start"] for row in back], [row["running"] for row in back], "X", color=VERMILION,
                markeredgecolor="black", markersize=6, label="preempted", zorder=5)  # fmt: skip
    most = max((max(row["running"], row["waiting"]) for row in rows), default=1)
    ax.set(ylabel="requests", ylim=(0, 1.5 * most or 1), xlim=(0, edges[-1]))
    ax.locator_params(axis="y", integer=True)
    ax.legend(loc="upper right", ncols=3)


def cache_figure(trace: Trace) -> "Figure":
    """For every admission the tokens that were found and those that were computed."""
    data = trace_data.cache(trace)
    rows = data["rows"]
    with style():
        figure = new_figure(0.95 + 0.26 * min(max(len(rows), 1), 30))
        ax = figure.subplots()
        found, computed = [row["found"] for row in rows], [row["computed"] for row in rows]
        ax.barh(range(len(rows)), found, 0.7, color="white", edgecolor=GREY, hatch=FREE, linewidth=0.6,
                label="found in the prefix cache")  # fmt: skip
        ax.barh(range(len(rows)), computed, 0.7, left=found, color=BLUE, edgecolor=LIGHT, linewidth=0.4,
                label="computed")  # fmt: skip
        ax.set(xlabel="tokens", ylim=(len(rows) - 0.4, -0.6))
        names = [row["id"] + (" again" if row["again"] else "") for row in rows]
        ax.set_yticks(range(len(rows)), names) if len(rows) <= MOST_ROWS else None
        rate = "nothing was admitted" if data["hit_rate"] is None else f"{data['hit_rate']:.0%} of all tokens found"
        ax.set_title(f"{data['found']} found, {data['computed']} computed: {rate}")
        figure.legend(loc="outside upper right", ncols=2, borderaxespad=0.1)
        caption(figure, source(trace))
    return figure


FIGURES: dict[str, Callable[..., Any]] = {
    "timeline": lambda trace: timeline_figure([trace]),
    "requests": requests_figure,
    "latency": latency_figure,
    "load": load_figure,
    "cache": cache_figure,
    "blocks": blocks_figure,
}
"""The figure of each kind of data in `trace_data.KINDS`."""
