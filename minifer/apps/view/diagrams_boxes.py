"""The figures in diagrams/ that are boxes and not curves: block tables over the pool, and the parts of minifer."""

from typing import TYPE_CHECKING, Any

from minifer.apps.view.figure_style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    new_figure,
    owner_color,
)
from minifer.apps.view.trace_data import Data

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 7
"""Blocks of the pool in a row of the picture."""


def draw_paged(data: Data) -> "Figure":
    """Tables on the left, the pool on the right, and the way of one token from its place to its slot."""
    figure = new_figure(3.9)
    ax = figure.subplots()
    ax.set(xlim=(0, 14), ylim=(-0.75, 5.9))
    ax.axis("off")
    names = list(data["tables"])
    spots = _draw_pool(ax, data, names)
    cells = {name: _draw_table(ax, data, name, 4.1 - 1.2 * row, names) for row, name in enumerate(names)}
    _draw_translation(ax, data, names[1], cells, spots)
    size, victim = data["block_size"], data["victim"]
    shared = sum(len(cell["owners"]) > 1 for cell in data["pool"])
    ax.annotate("Block tables, \u201clogical: physical\u201d", (0.1, 5.75), va="top", fontsize=9)
    ax.annotate(f"The pool: {len(data['pool'])} blocks of {size} slots", (7.35, 5.75), va="top", fontsize=9)
    words = (f"Dark edge: {shared} blocks with the same system prompt are in {len(names)} tables and in memory once. "
             f"Pale: held, not yet written.\nToken {size * len(data['tables'][victim])} of {victim} (the first is 0) "
             f"has no block and the pool is full: in the next step {victim} gives its blocks back.")  # fmt: skip
    ax.annotate(words, (0.1, -0.7), fontsize=7.5, color=GREY, va="bottom")
    return figure


def _draw_translation(
    ax: "Axes", data: Data, name: str, cells: dict[str, list[tuple[float, float]]], spots: list[tuple[float, float]]
) -> None:
    """Where the last written token of a request is, as a sum and as an arrow."""
    table, size = data["tables"][name], data["block_size"]
    token = sum(cell["used"] for cell in table) - 1
    place = token // size
    block = table[place]["block"]
    lines = (f"Where is token {token} of {name}?\n"
             f"logical block   {token} // {size} = {place}\n"
             f"physical block  table[{place}] = {block}\n"
             f"slot            {block} x {size} + {token} % {size} = {block * size + token % size}")  # fmt: skip
    ax.annotate(lines, (7.35, 0.35), va="bottom", fontsize=8, family="DejaVu Sans Mono", linespacing=1.5)
    arrow = {"arrowstyle": "-|>", "color": BLACK, "linewidth": 1.1, "shrinkA": 1, "shrinkB": 1,
             "connectionstyle": "arc3,rad=-0.18"}  # fmt: skip
    ax.annotate("", spots[block], cells[name][place], arrowprops=arrow, zorder=7)


def _draw_pool(ax: "Axes", data: Data, names: list[str]) -> list[tuple[float, float]]:
    """The physical blocks, and where each of them is."""
    width, height = 0.92, 0.95
    spots: list[tuple[float, float]] = []
    for number, cell in enumerate(data["pool"]):
        x = 7.35 + width * (number % COLUMNS)
        y = 4.15 - (height + 0.62) * (number // COLUMNS)
        color = owner_color(names.index(cell["owners"][0])) if cell["owners"] else PALE
        edge = BLACK if len(cell["owners"]) > 1 else "white"
        _block(ax, x, y, width - 0.1, height, color, cell["used"] / data["block_size"], edge)
        ax.annotate(str(number), (x + width / 2 - 0.05, y + height / 2), ha="center", va="center", fontsize=8,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9})  # fmt: skip
        owners = cell["owners"][0] if len(cell["owners"]) == 1 else "all" if cell["owners"] else "free"
        ax.annotate(owners, (x + width / 2 - 0.05, y - 0.08), ha="center", va="top", fontsize=7, color=GREY)
        spots.append((x + width / 2 - 0.05, y + height))
    return spots


def _draw_table(ax: "Axes", data: Data, name: str, y: float, names: list[str]) -> list[tuple[float, float]]:
    """One request's blocks in logical order; each cell says where it really is. Returns the right edges."""
    color = owner_color(names.index(name))
    ax.annotate(name, (0.1, y + 0.33), va="center", fontsize=9)
    tokens = sum(cell["used"] for cell in data["tables"][name])
    ax.annotate(f"{tokens} tokens", (0.1, y - 0.05), va="center", fontsize=7, color=GREY)
    for place, cell in enumerate(data["tables"][name]):
        x = 1.35 + 0.86 * place
        shared = len(data["pool"][cell["block"]]["owners"]) > 1
        first = names.index(data["pool"][cell["block"]]["owners"][0])
        _block(ax, x, y, 0.78, 0.62, owner_color(first) if shared else color, cell["used"] / data["block_size"],
               BLACK if shared else "white")  # fmt: skip
        ax.annotate(f"{place}: {cell['block']}", (x + 0.39, y + 0.31), ha="center", va="center", fontsize=7.5,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9})  # fmt: skip
    return [(1.35 + 0.86 * place + 0.78, y + 0.31) for place in range(len(data["tables"][name]))]


def _block(ax: "Axes", x: float, y: float, width: float, height: float, color: str, full: float, edge: str) -> None:
    """A pale box, its written part solid from the left."""
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x, y), width, height, facecolor=color, alpha=0.25, linewidth=0))
    ax.add_patch(Rectangle((x, y), width * full, height, facecolor=color, linewidth=0))
    ax.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=edge, linewidth=1.4))


# ---- the parts of minifer --------------------------------------------------------------------------------------------

ROLES = {
    "apps": ("command line, server, notebooks", GREY),
    "llm": ("text in, text out", VERMILION),
    "engine": ("plan, run, note down", VERMILION),
    "executor": ("a plan through the model", BLUE),
    "scheduler": ("who runs next", GREEN),
    "trace": ("the record of a run", PURPLE),
    "metrics": ("TTFT, ITL", PURPLE),
    "roofline": ("ceilings", PURPLE),
    "incremental": ("one request, a cache", BLUE),
    "generate": ("the bare loop", BLUE),
    "model": ("the forward pass", BLUE),
    "ops": ("the arithmetic", BLUE),
    "sampling": ("logits to a token", BLUE),
    "sampling_params": ("how to draw", BLUE),
    "stop_strings": ("where text ends", SKY),
    "overlay": ("a student's file first", GREY),
    "tokenizer": ("text to tokens", SKY),
    "kv_cache": ("blocks, prefixes", ORANGE),
    "hub": ("names of models", BLACK),
    "formats": ("files", BLACK),
    "meter": ("counts", PURPLE),
    "clock": ("time", GREY),
    "device": ("CPU or GPU", GREY),
    "limits": ("how much fits", GREEN),
    "errors": ("what can go wrong", GREY),
}
"""What each part does, and the colour of its kind; a part without an entry is drawn without."""


def draw_architecture(data: Data) -> "Figure":
    """A row for each level, the ground below; a line leads from a part to what it imports."""
    levels = data["levels"]
    top = max(levels.values())
    figure = new_figure(0.78 * (top + 1) + 0.5)
    ax = figure.subplots()
    ax.set(xlim=(0, 10), ylim=(-0.45, top + 0.55))
    ax.axis("off")
    spots = _places(data)
    for name, needed in data["imports"].items():
        for other in needed:
            _line(ax, spots[name], spots[other], ROLES.get(name, ("", GREY))[1])
    for name, (x, y, width) in spots.items():
        _part(ax, name, x, y, width)
    return figure


def _places(data: Data) -> dict[str, tuple[float, float, float]]:
    """Middle and width of each part. In a row, parts stand in the order of the middle of what they import."""
    spots: dict[str, tuple[float, float, float]] = {}
    for level in sorted(set(data["levels"].values())):
        row = [name for name, at in data["levels"].items() if at == level]
        row.sort(key=lambda name: _wish(data, name, spots))
        width = min(10 / len(row), 2.4)
        left = (10 - width * len(row)) / 2
        for place, name in enumerate(row):
            spots[name] = (left + width * (place + 0.5), float(level), width - 0.16)
    return spots


def _wish(data: Data, name: str, spots: dict[str, tuple[float, float, float]]) -> tuple[float, str]:
    """Where a part would like to stand: over what it imports, or under its importers' usual side."""
    below = [spots[other][0] for other in data["imports"][name] if other in spots]
    return (sum(below) / len(below) if below else GROUND.get(name, 5.0), name)


GROUND = {"stop_strings": 1.0, "errors": 4.0, "meter": 7.5, "clock": 9.0}


def _line(ax: "Axes", start: tuple[float, float, float], end: tuple[float, float, float], color: str) -> None:
    """From the lower edge of a part to the upper edge of what it imports."""
    arrow: dict[str, Any] = {"arrowstyle": "-|>,head_length=0.25,head_width=0.12", "color": color, "linewidth": 0.9,
                             "shrinkA": 0, "shrinkB": 0, "alpha": 0.8}  # fmt: skip
    ax.annotate("", (end[0], end[1] + 0.29), (start[0], start[1] - 0.29), arrowprops=arrow, zorder=1)


def _part(ax: "Axes", name: str, x: float, y: float, width: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    role, color = ROLES.get(name, ("", GREY))
    ax.add_patch(FancyBboxPatch((x - width / 2, y - 0.29), width, 0.58, "round,pad=0,rounding_size=0.08",
                                facecolor="white", edgecolor=color, linewidth=1.5, zorder=2))  # fmt: skip
    ax.annotate(name, (x, y + 0.1), ha="center", va="center", fontsize=8, zorder=3)
    ax.annotate(role, (x, y - 0.14), ha="center", va="center", fontsize=6.2, color=GREY, zorder=3)
