"""How the figures in diagrams/ look: time on the horizontal axis, requests under each other.

The other two files are `diagrams_boxes.py` (block tables, architecture) and `roofline_figures.py`. Each function is
given the numbers of `diagrams_data.py`, and draws nothing else.
"""

from typing import TYPE_CHECKING, Any

from minifer.apps.numerals import megabytes, three
from minifer.apps.view.figure_style import (
    BLACK,
    GREY,
    STATES,
    VERMILION,
    bar,
    bracket,
    new_figure,
    owner_color,
    plain_time,
    state_legend,
)
from minifer.apps.view.trace_data import Data
from minifer.apps.view.trace_figures import draw_latency, draw_requests, draw_slots, timeline_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HATCHES = ("", "//", "\\\\", "..", "xx", "--", "||", "++")


def draw_lifecycle(data: Data) -> "Figure":
    """The states with their arrows above, every request of a run below."""
    figure = new_figure(4.3)
    states, rows = figure.subplots(2, 1, height_ratios=(1.0, 1.5))
    _draw_states(states, data["counts"])
    draw_requests(rows, data)
    rows.set_title("Six requests of one run. A line is a token, a cross a preemption.")
    state_legend(figure, ("waiting", "prefill", "decode", "preempted"))
    return figure


def _draw_states(ax: "Axes", counts: Data) -> None:
    """Four boxes, and how often each arrow between them was taken in the run below."""
    ax.set(xlim=(-0.08, 10), ylim=(-0.55, 2.35))
    ax.axis("off")
    spots = {"waiting": (0.65, 1.6, 1.3), "running": (4.3, 1.6, 3.2), "finished": (9.0, 1.6, 1.5),
             "preempted": (4.3, 0.0, 1.8)}  # fmt: skip
    for name, (x, y, width) in spots.items():
        _box(ax, name, x, y, width)
    arrow = {"arrowstyle": "-|>", "color": BLACK, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    again = counts["admitted"] - counts["preempted"]
    paths = (
        ((1.3, 1.6), (2.7, 1.6), f"{again} admitted"),
        ((5.9, 1.6), (8.25, 1.6), f"{counts['finished']} finished: last token,\nstop, abort or error"),
    )
    for start, end, words in paths:
        ax.annotate("", end, start, arrowprops=arrow)
        ax.annotate(words, ((start[0] + end[0]) / 2, 1.66), ha="center", va="bottom", fontsize=7.5)
    ax.annotate("", (4.7, 0.38), (4.7, 1.22), arrowprops=arrow)
    ax.annotate(f"{counts['preempted']} times no block was free:\nthe newest gives all of its blocks back", (4.85, 0.8),
                ha="left", va="center", fontsize=7.5)  # fmt: skip
    ax.annotate("", (3.9, 1.22), (3.9, 0.38), arrowprops=arrow)
    ax.annotate(f"{counts['preempted']} admitted again:\ncomputes what the cache lost", (3.75, 0.8), ha="right",
                va="center", fontsize=7.5)  # fmt: skip


def _box(ax: "Axes", name: str, x: float, y: float, width: float) -> None:
    """A state; running has its two phases in it."""
    _rounded(ax, x - width / 2, y - 0.36, width, 0.72, facecolor="white", linewidth=1)
    if name != "running":
        ax.annotate(name, (x, y), ha="center", va="center", fontsize=9)
        return
    ax.annotate("running: has a seat and blocks", (x, y + 0.4), ha="center", va="bottom", fontsize=8.5)
    words = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.9}
    for part, middle in (("prefill", x - width / 4), ("decode", x + width / 4)):
        look, half = STATES[part], width / 4 - 0.08
        _rounded(ax, middle - half, y - 0.24, 2 * half, 0.48, facecolor=look.color, hatch=look.hatch,
                 edgecolor=look.edge, linewidth=0.5)  # fmt: skip
        ax.annotate(part, (middle, y), ha="center", va="center", fontsize=8.5, bbox=words)


def _rounded(ax: "Axes", x: float, y: float, width: float, height: float, **look: Any) -> None:
    from matplotlib.patches import FancyBboxPatch

    ax.add_patch(FancyBboxPatch((x, y), width, height, "round,pad=0,rounding_size=0.1", **look))


def draw_kv_growth(data: Data) -> "Figure":
    """The written cache as one layer for each request, the blocks that hold it as a line above."""
    figure = new_figure(3.3)
    ax = figure.subplots()
    rows, each = data["rows"], data["bytes_per_token"] / 1e6
    edges = [row["start"] for row in rows] + [rows[-1]["end"]]
    below = [0.0] * len(rows)
    for index, name in enumerate(data["ids"]):
        mine = [row["written"].get(name, 0) * each for row in rows]
        top = [low + part for low, part in zip(below, mine, strict=True)]
        ax.stairs(top, edges, baseline=below, fill=True, facecolor=owner_color(index), hatch=HATCHES[index % 8],
                  edgecolor="white", linewidth=0.3)  # fmt: skip
        x, y = _calmest(edges, below, top)
        ax.annotate(name, (x, y), ha="center", va="center", fontsize=7.5,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.7, "alpha": 0.9})  # fmt: skip
        below = top
    held = [row["held"] * each for row in rows]
    ax.stairs(held, edges, baseline=None, color=BLACK, linewidth=1.3, linestyle="--", label="blocks that are held")
    ax.set(xlim=(0, edges[-1]), ylim=(0, 1.22 * max(held)), ylabel="KV cache, MB",
           xlabel="milliseconds since the first request arrived")  # fmt: skip
    plain_time(ax)
    tokens = ax.secondary_yaxis("right", functions=(lambda mb: mb / each, lambda count: count * each))
    tokens.set_ylabel("tokens")
    ax.spines["right"].set_visible(True)
    reserved = megabytes(data["reserved"] * data["bytes_per_token"])
    ax.set_title(f"{data['bytes_per_token']:,} bytes for every token; seats of {data['longest']:,} tokens, reserved at "
                 f"once, would be {reserved}")  # fmt: skip
    ax.legend(loc="upper right")
    return figure


def _calmest(edges: list[float], below: list[float], top: list[float], reach: int = 2) -> tuple[float, float]:
    """Where a layer is thickest over a few steps together: the place for its name."""

    def inner(i: int) -> tuple[float, float]:
        near = slice(max(0, i - reach), i + reach + 1)
        return max(below[near]), min(top[near])

    best = max(range(len(below)), key=lambda i: inner(i)[1] - inner(i)[0])
    return (edges[best] + edges[best + 1]) / 2, sum(inner(best)) / 2


def draw_batching(data: Data) -> "Figure":
    """The slots of both runs on one clock."""
    figure = new_figure(4.0)
    panels = figure.subplots(2, 1, sharex=True)
    names = {"static": "Static batching", "continuous": "Continuous batching"}
    for ax, (kind, run) in zip(panels, data.items(), strict=True):
        draw_slots(ax, run)
        ax.set_title(timeline_words(run, names[kind]))
    panels[-1].set_xlabel("milliseconds since the eight requests arrived")
    plain_time(panels[-1])
    state_legend(figure, ("prefill", "decode", "empty seat"))
    return figure


def draw_chunked(data: Data) -> "Figure":
    """Streams beside a long prompt, in one step and in chunks, on one clock."""
    figure = new_figure(4.4)
    panels = figure.subplots(2, 1, sharex=True)
    for ax, run in zip(panels, data.values(), strict=True):
        _draw_streams(ax, run)
        steps = "one step" if run["chunks"] == 1 else f"{run['chunks']} steps"
        ax.set_title(f"Prompt of {run['prompt']} tokens in {steps} (at most {run['budget']:,} tokens each)")
    ends = [row["work"][-1]["end"] for run in data.values() for row in run["rows"] if row["id"] == run["long"]]
    panels[-1].set(xlabel="milliseconds since the first request arrived", xlim=(0, 1.1 * max(ends)))
    plain_time(panels[-1])
    state_legend(figure, ("prefill", "decode"))
    return figure


def _draw_streams(ax: "Axes", run: Data) -> None:
    rows = run["rows"]
    for place, row in enumerate(rows):
        for work in row["work"]:
            bar(ax, work["phase"], place, work["start"], work["end"], 0.62)
            ax.plot([work["end"]] * 2, [place - 0.31, place + 0.31], color="white", linewidth=1.2)
            if work["phase"] == "prefill" and work["end"] - work["start"] > 90:
                ax.annotate(str(work["tokens"]), ((work["start"] + work["end"]) / 2, place), ha="center", va="center",
                            fontsize=7.5, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})  # fmt: skip
    long = next(place for place, row in enumerate(rows) if row["id"] == run["long"])
    ax.set(ylim=(len(rows) + 0.05, -1.15))
    ax.set_yticks(range(len(rows)), [row["id"] for row in rows])
    start = run["worst_at"]
    bracket(
        ax, start, start + run["worst_itl"], -0.5, f"worst ITL of a stream {three(run['worst_itl'])} ms", tick=-0.12
    )
    first = rows[long]["arrival"]
    ax.plot([first, first + run["ttft"]], [long + 0.5] * 2, color=VERMILION, linewidth=2)
    ax.annotate(f"TTFT of the long prompt {three(run['ttft'])} ms", (first + run["ttft"], long + 0.42), (4, 0),
                textcoords="offset points", va="top", fontsize=8, color=VERMILION)  # fmt: skip


def draw_ttft_itl(data: Data) -> "Figure":
    """A request alone, and one that waited; each on a clock of its own."""
    figure = new_figure(4.4)
    panels = figure.subplots(2, 1)
    for ax, (kind, one) in zip(panels, data.items(), strict=True):
        draw_latency(ax, one)
        words = {
            "alone": f"Alone: {one['prompt']} prompt tokens, all computed",
            "busy": f"In a busy engine: waited for a seat; {one['cached']} of {one['prompt']} prompt tokens cached",
        }
        ax.set_title(words[kind], pad=10)  # fmt: skip
        ax.xaxis.label.set_color(GREY)
    panels[0].set_xlabel("")
    state_legend(figure, ("waiting", "prefill", "decode"))
    return figure
