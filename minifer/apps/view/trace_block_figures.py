"""The KV cache as pictures: which request holds which block when, how full it is, and what is left unused.

A block is a row. Pale is held, solid is written, so the ragged ends are the waste: slots that a request holds and has
not filled. Grey lines are free blocks whose tokens can still be found; a block in two tables has a dark edge.
"""

from typing import TYPE_CHECKING, Any

from minifer.apps.numerals import megabytes
from minifer.apps.view import trace_data
from minifer.apps.view.figure_style import (
    BLACK,
    BLUE,
    FREE,
    GREY,
    LIGHT,
    SKY,
    VERMILION,
    caption,
    new_figure,
    owner_color,
    plain_time,
    source,
    style,
)
from minifer.apps.view.trace_data import Data
from minifer.apps.view.trace_model import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_VECTORS = 4000
"""With more holds than this the map becomes pixels inside the SVG, which else would be too large to open."""
MOST_NAMES, MOST_NAMED_ROWS = 60, 40

Area = list[tuple[float, float]]


def blocks_figure(trace: Trace) -> "Figure":
    """The map of the blocks, and the use of the pool."""
    data = trace_data.blocks(trace)
    with style():
        rows = _rows(data)
        figure = new_figure(min(1.9 + 0.17 * rows, 6.0) + 1.3)
        blocks, use = figure.subplots(2, 1, sharex=True, height_ratios=(max(2.0, min(rows * 0.17, 4.5)), 1.3))
        draw_blocks(blocks, data)
        draw_usage(use, data)
        use.set_xlabel("milliseconds since the first request arrived")
        plain_time(use)
        caption(figure, f"Pale: held and not written. Lines: free, but still found by a prompt that begins alike.\n"
                        f"Dark edge: in more than one table. {source(trace)}")  # fmt: skip
    return figure


def _rows(data: Data) -> int:
    """Rows up to the last block that was ever used: a pool may be far larger than what a run needs."""
    return 1 + max((hold["block"] for hold in data["holds"]), default=0)


def draw_blocks(ax: "Axes", data: Data) -> None:
    """Every hold as a pale box with its written part in it; idle blocks dotted; shared ones edged."""
    from matplotlib.collections import PolyCollection

    pixels = len(data["holds"]) > MOST_VECTORS
    for free in data["idle"]:
        ax.barh(free["block"], free["end"] - free["start"], left=free["start"], height=0.8, color="white",
                hatch=FREE, edgecolor=LIGHT, linewidth=0, rasterized=pixels)  # fmt: skip
    areas: dict[tuple[str, float], list[Area]] = {}
    taken: dict[int, float] = {}  # block -> until when it has been drawn
    named: set[str] = set()
    for hold in sorted(data["holds"], key=lambda hold: (hold["start"], hold["owner"])):
        start = max(hold["start"], taken.get(hold["block"], 0.0))
        if start < hold["end"]:
            color = owner_color(hold["owner"])
            areas.setdefault((color, 0.25), []).append(_box(hold["block"], start, hold["end"]))
            areas.setdefault((color, 1.0), []).append(_written(hold, start, data["block_size"]))
            taken[hold["block"]] = hold["end"]
            if _rows(data) <= MOST_NAMED_ROWS and (hold["place"] == 0 or hold["id"] not in named):
                _name(ax, hold, start, named)
    for (color, alpha), polygons in areas.items():
        ax.add_collection(PolyCollection(polygons, facecolors=color, alpha=alpha, linewidths=0, rasterized=pixels))
    for block, start, end in trace_data.shared_spans(data["holds"]):
        ax.barh(block, end - start, left=start, height=0.8, fill=False, edgecolor=BLACK, linewidth=0.9)
    rows = _rows(data)
    more = "" if rows == data["num_blocks"] else f" of {data['num_blocks']}"
    ax.set(
        ylim=(rows - 0.4, -0.6),
        ylabel=f"block{more}",
        xlim=(0, max([hold["end"] for hold in data["holds"]], default=1)),
    )
    ax.set_yticks(range(0, rows, max(1, rows // 14)))


def _box(row: int, start: float, end: float) -> Area:
    return [(start, row - 0.4), (end, row - 0.4), (end, row + 0.4), (start, row + 0.4)]


def _written(hold: Data, start: float, size: int) -> Area:
    """The part of a block that is written: stairs that rise from the bottom of its row."""
    bottom, area = hold["block"] + 0.4, [(start, hold["block"] + 0.4)]
    level = bottom
    for at, used in hold["fill"]:
        area += [(max(at, start), level), (max(at, start), bottom - 0.8 * used / size)]
        level = bottom - 0.8 * used / size
    return [*area, (hold["end"], level), (hold["end"], bottom)]


def _name(ax: "Axes", hold: Data, start: float, named: set[str]) -> None:
    """The request's name at the beginning of its first block."""
    if len(named) < MOST_NAMES:
        named.add(hold["id"])
        ax.annotate(hold["id"], (start, hold["block"]), (3, 0), textcoords="offset points", va="center", fontsize=7.5,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}, zorder=6)  # fmt: skip


def draw_usage(ax: "Axes", data: Data) -> None:
    """The slots of the pool, step by step: written, held and not written, free but findable."""
    usage, size = data["usage"], data["block_size"]
    if not usage:
        return
    edges = [row["start"] for row in usage] + [usage[-1]["end"]]
    written = [row["written"] / size for row in usage]
    held = [row["held"] for row in usage]
    found = [row["held"] + row["idle"] for row in usage]
    shade: dict[str, Any] = {"fill": True, "linewidth": 0}
    ax.stairs(found, edges, baseline=held, color="white", hatch=FREE, edgecolor=LIGHT, label="free, findable", **shade)
    ax.stairs(held, edges, baseline=written, color=VERMILION, alpha=0.55, label="held, not written", **shade)
    ax.stairs(written, edges, color=SKY, label="written", **shade)
    tables = [row["held"] + row["saved"] for row in usage]
    ax.stairs(tables, edges, baseline=None, color=BLUE, linestyle="--", linewidth=1.2, label="without sharing")
    limit = data["num_blocks"] if data["num_blocks"] <= 1.5 * max(tables) else None
    if limit:
        ax.axhline(limit, color=GREY, linewidth=0.8, linestyle=":")
        ax.annotate("pool", (1, limit), (-1, 1), xycoords=("axes fraction", "data"), textcoords="offset points",
                    ha="right", va="bottom", fontsize=7, color=GREY)  # fmt: skip
    size_of = f", {megabytes(size * data['bytes_per_token'])} each" if data["bytes_per_token"] else ""
    ax.set(ylabel="blocks", ylim=(0, 1.45 * max(limit or 0, *tables, *found)))
    ax.legend(loc="upper left", ncols=4, title=None, columnspacing=1.0, handlelength=1.5)
    ax.set_title(f"Use of the pool, in blocks of {size} tokens{size_of}")
