"""What the figures of a trace have in common: colours for everybody, a size that can be read, files that repeat.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; what differs in colour differs in hatching,
dash or place too, so that nothing is lost in grey. A figure is seven inches wide, so its letters can be read at 700
pixels. An SVG carries a `<title>` and a `<desc>` for those who hear it, no date and no random names: the same data and
the same versions give the same bytes.
"""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from minifer.apps.view.trace_model import Trace

BLACK, GREY, PALE, LIGHT = "#000000", "#666666", "#E6E6E6", "#BBBBBB"
BLUE, ORANGE, GREEN, SKY = "#0072B2", "#E69F00", "#009E73", "#56B4E9"
VERMILION, PURPLE, YELLOW = "#D55E00", "#CC79A7", "#F0E442"

FREE = "---"
"""The hatching of what is free and can still be found."""

WIDTH, DPI = 7.0, 200


@dataclass(frozen=True)
class Look:
    """How a state is drawn: its colour, its hatching, and the colour of the hatching."""

    color: str
    hatch: str = ""
    edge: str = "white"
    flat: str = ""  # where rows are too thin for a hatching


STATES = {
    "waiting": Look("white", "|||", LIGHT, PALE),
    "prefill": Look(BLUE, "////", "#7FB8DA"),
    "decode": Look(ORANGE),
    "preempted": Look("#F9DCC9", "xxxx", VERMILION, VERMILION),
    "sitting out": Look("#FBE7BF"),
    "empty seat": Look("white", "\\\\\\\\", LIGHT, LIGHT),
}
"""The states of a request, and a seat whose answer is done; `trace_data.py` gives time these names."""

OWNERS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW)


def owner_color(index: int) -> str:
    """The colour of a request by its number; after seven they come again, so the name is written beside it."""
    return OWNERS[index % len(OWNERS)]


@contextmanager
def style() -> Iterator[None]:
    """matplotlib's settings for one figure, and nothing of them left afterwards."""
    import matplotlib

    settings = {"svg.hashsalt": "minifer", "font.family": "DejaVu Sans", "font.size": 8.5, "axes.titlesize": 9,
                "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
                "axes.labelsize": 8.5, "legend.fontsize": 8, "legend.frameon": False, "hatch.linewidth": 0.7,
                "axes.linewidth": 0.7, "xtick.major.width": 0.7, "ytick.major.width": 0.7}  # fmt: skip
    with matplotlib.rc_context(settings):  # type: ignore[arg-type]
        yield


def new_figure(height: float, width: float = WIDTH) -> "Figure":
    """A figure with no window and no global state, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def caption(figure: "Figure", text: str) -> None:
    """Small words under the figure: where it comes from, what to look at."""
    figure.supxlabel(text, fontsize=7.5, color=GREY)


def source(trace: "Trace") -> str:
    """Where the numbers of a figure come from."""
    parts = [f"Recorded: {trace.model}", str(trace.about.get("dtype", "")), str(trace.about.get("cpu", ""))]
    cores = trace.about.get("usable_cores")
    return ", ".join([part for part in parts if part] + ([f"{cores} cores"] if cores else [])).replace("(R)", "")


def bar(ax: "Axes", state: str, row: float, start: float, end: float, height: float = 0.72, **more: Any) -> None:
    """A stretch of time in a state."""
    look = STATES[state]
    ax.barh(row, end - start, left=start, height=height, color=look.color, hatch=look.hatch, edgecolor=look.edge,
            linewidth=0.4, **more)  # fmt: skip


def flat_bars(ax: "Axes", bars: Iterable[tuple[str, float, float, float]]) -> None:
    """Many stretches of time (state, row, start, end) as plain areas: one object for each state."""
    from matplotlib.collections import PolyCollection

    boxes: dict[str, list[list[tuple[float, float]]]] = {}
    for state, row, start, end in bars:
        low, high = row - 0.5, row + 0.5
        boxes.setdefault(state, []).append([(start, low), (end, low), (end, high), (start, high)])
    for state, polygons in boxes.items():
        color = STATES[state].flat or STATES[state].color
        ax.add_collection(PolyCollection(polygons, facecolors=color, linewidths=0))
    ax.autoscale_view()


def state_legend(figure: "Figure", states: tuple[str, ...], flat: bool = False) -> None:
    """The states that appear, above the figure, where no caption is; `flat` as `flat_bars` draws them."""
    from matplotlib.patches import Patch

    names = [name for name in STATES if name in states]
    looks = [STATES[name] for name in names]
    if flat:
        handles = [Patch(facecolor=look.flat or look.color) for look in looks]
    else:
        handles = [Patch(facecolor=k.color, hatch=k.hatch, edgecolor=k.edge, linewidth=0.4) for k in looks]
    figure.legend(handles, names, loc="outside upper right", ncols=max(1, len(names)), borderaxespad=0.1,
                  handlelength=1.8)  # fmt: skip


def plain_time(ax: "Axes") -> None:
    """Times as people write them: 12,000."""
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")


def bracket(
    ax: "Axes", start: float, end: float, height: float, text: str, size: float = 8, tick: float = 0.12
) -> None:
    """A bracket over a stretch of time, its name above it."""
    low = height - tick
    ax.plot([start, start, end, end], [low, height, height, low], color=BLACK, linewidth=0.9, clip_on=False)
    ax.annotate(text, ((start + end) / 2, height), (0, 2), textcoords="offset points", ha="center", va="bottom",
                fontsize=size, annotation_clip=False)  # fmt: skip


def svg_bytes(figure: "Figure", title: str, words: str) -> bytes:
    """The figure as SVG, with a title and a description that screen readers find, and nothing that changes by itself.

    Call it inside `style()`.
    """
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue().decode("utf-8")
    start = text.index("<svg")
    head = text[start : text.index(">", start)]
    named = f'{head} role="img" aria-labelledby="title desc"'
    words = f'>\n <title id="title">{escape(title)}</title>\n <desc id="desc">{escape(words)}</desc>'
    return text.replace(f"{head}>", f"{named}{words}", 1).encode("utf-8")


def save(figure: "Figure", path: Path, title: str, words: str) -> Path:
    """Write .svg or .png, as the ending says, all or nothing. Raises UsageError for another ending."""
    from minifer.errors import UsageError
    from minifer.formats.atomic import atomic_file

    if path.suffix.lower() not in (".svg", ".png"):
        raise UsageError(
            f"{path}: a figure is written as .svg or .png, not as {path.suffix or 'a file without ending'!r}"
        )
    with atomic_file(path) as file:
        if path.suffix.lower() == ".svg":
            file.write(svg_bytes(figure, title, words))
        else:
            figure.savefig(file, format="png", dpi=DPI, metadata={"Title": title, "Description": words})
    return path
