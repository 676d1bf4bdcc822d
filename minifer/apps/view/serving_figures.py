"""The figure of a load test: throughput and latency percentiles against the request rate, the knee marked.

A server has a capacity: the most requests per second that it has been seen to finish. Below it the queue empties again
and latency hardly depends on the rate; above it the queue grows for as long as requests keep coming, and latency says
more about the length of the test than about the server. That bend is the knee. It is drawn where it was measured to
be, at the largest throughput of any point, and only if some rate lies above it; where the server kept up with every
finite rate there is no knee to see.

Rate infinity (everything at once) stands at the right, behind a gap in the axis. Lines join points of one server;
what differs in colour differs in marker and dash too. Colours are Okabe and Ito's.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES: tuple[tuple[str, str, Any], ...] = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "--"),
    ("#009E73", "D", "-."),
    ("#CC79A7", "^", ":"),
    ("#E69F00", "v", "-"),
    ("#56B4E9", "P", "--"),
)
PANEL, DPI = (4.4, 3.8), 150
INF_STEP = 2.2
"""Rate infinity is drawn at this multiple of the largest finite rate."""

LOG_FROM = 3.0
"""Latencies that differ by more than this factor stand on a logarithmic axis."""

KEPT_UP = 1.05
"""A rate must be this much above the capacity for the knee to count as passed."""

Points = Sequence[Mapping[str, Any]]


def capacity(points: Points) -> float | None:
    """The most requests per second that any point finished; None if nothing finished.

    >>> slow, fast = {"completed": 9, "request_throughput": 0.97}, {"completed": 9, "request_throughput": 1.5}
    >>> capacity([slow, fast])
    1.5
    """
    return max((p["request_throughput"] for p in points if p["completed"] and p["request_throughput"]), default=None)


def knee(points: Points) -> float | None:
    """The rate at which the server stops keeping up: its capacity, if a finite rate lies above it, or else None."""
    most = capacity(points)
    finite = [rate for p in points if math.isfinite(rate := float(p["request_rate"]))]
    return most if most is not None and finite and max(finite) > KEPT_UP * most else None


def draw(series: Mapping[str, Points], path: Path, caption: str = "") -> Path | None:
    """Write the figure of `{server: its points}` as PNG; None if no point has a finished request."""
    series = {name: [p for p in points if p["completed"]] for name, points in series.items()}
    series = {name: points for name, points in series.items() if points}
    if not series:
        return None
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style = {"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False,
             "legend.fontsize": 7.5, "legend.frameon": False}  # fmt: skip
    with matplotlib.rc_context(style):  # type: ignore[arg-type]
        figure = Figure(figsize=(PANEL[0] * 2, PANEL[1] * 2 + 0.3), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        ((rate, first), (tokens, whole)) = figure.subplots(2, 2)
        _throughput(rate, series)
        _latency(first, series, "ttft", "Time to first token")
        _latency(tokens, series, "tpot", "Time per output token, one value per request")
        _latency(whole, series, "e2el", "Whole answer")
        for ax in (rate, first, tokens, whole):
            _rate_axis(ax, series, labelled=ax is rate)
        _legend(figure, series)
        if caption:
            figure.supxlabel(caption, fontsize=8, color="#444444")
        figure.savefig(path, format="png")
    return path


def _places(series: Mapping[str, Points]) -> tuple[list[float], float]:
    """The finite rates, and where infinity is drawn."""
    finite = sorted({rate for points in series.values() for p in points if math.isfinite(rate := _rate(p))})
    return finite, INF_STEP * finite[-1] if finite else 1.0


def _rate(point: Mapping[str, Any]) -> float:
    return float(point["request_rate"])


def _xy(points: Points, key: str, inf_at: float) -> tuple[list[float], list[float]]:
    known = sorted((rate if math.isfinite(rate := _rate(p)) else inf_at, p[key]) for p in points
                   if p.get(key) is not None)  # fmt: skip
    return [x for x, _ in known], [y for _, y in known]


def _throughput(ax: "Axes", series: Mapping[str, Points]) -> None:
    _, inf_at = _places(series)
    for (name, points), (color, marker, dash) in zip(series.items(), STYLES * len(series), strict=False):
        ax.plot(*_xy(points, "output_throughput", inf_at), marker + dash, color=color, label=name)
    ax.set(ylabel="output tokens per second", ylim=(0, None), title="Throughput")


def _latency(ax: "Axes", series: Mapping[str, Points], metric: str, title: str) -> None:
    """The median with filled markers, the 99th percentile with hollow ones."""
    _, inf_at = _places(series)
    shown: list[float] = []
    for (_, points), (color, marker, dash) in zip(series.items(), STYLES * len(series), strict=False):
        x, y = _xy(points, f"median_{metric}_ms", inf_at)
        x99, y99 = _xy(points, f"p99_{metric}_ms", inf_at)
        ax.plot(x, y, marker + dash, color=color)
        ax.plot(x99, y99, marker + dash, color=color, linewidth=0.8, markerfacecolor="white")
        if x == x99:
            ax.fill_between(x, y, y99, color=color, alpha=0.07, linewidth=0)
        shown += y + y99
    ax.set(ylabel="milliseconds", title=title)
    if shown and max(shown) > LOG_FROM * min(shown) > 0:
        _log_axis(ax)
    else:
        ax.set_ylim(0, None)


def _log_axis(ax: "Axes") -> None:
    """A logarithmic axis whose ticks are plain numbers: 1, 2, 5, 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _legend(figure: Any, series: Mapping[str, Points]) -> None:
    """Who is who, once for all panels."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=color, marker=marker, linestyle=dash, label=name)
             for name, (color, marker, dash) in zip(series, STYLES * len(series), strict=False)]  # fmt: skip
    grey: dict[str, Any] = {"color": "#666666", "marker": "o", "linestyle": ""}
    lines += [Line2D([], [], label="median", **grey), Line2D([], [], label="p99", markerfacecolor="white", **grey)]
    figure.legend(handles=lines, loc="outside upper center", ncols=len(lines))


def _rate_axis(ax: "Axes", series: Mapping[str, Points], labelled: bool) -> None:
    """Rates on a log scale with infinity behind a gap, and a line at each knee."""
    from matplotlib.ticker import NullLocator

    finite, inf_at = _places(series)
    infinite = any(math.isinf(_rate(p)) for points in series.values() for p in points)
    ticks, names = list(finite), [f"{rate:g}" for rate in finite]
    if infinite:
        ticks, names = [*ticks, inf_at], [*names, "all at\nonce"]
        if finite:
            ax.axvspan(finite[-1] * INF_STEP**0.42, finite[-1] * INF_STEP**0.58, color="#DDDDDD", linewidth=0)
    ax.set_xscale("log")
    ax.set_xticks(ticks, names)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("requests per second")
    for (name, points), (color, _, dash) in zip(series.items(), STYLES * len(series), strict=False):
        at = knee(points)
        if at is None:
            continue
        ax.axvline(at, color=color, linestyle=dash, linewidth=0.8, alpha=0.7)
        if labelled:
            who = f"{name}: " if len(series) > 1 else ""
            ax.annotate(f"{who}knee at {at:.2g}/s", (at, 0.02), (2, 0), xycoords=("data", "axes fraction"), rotation=90,
                        textcoords="offset points", fontsize=7, color=color, va="bottom", ha="left")  # fmt: skip
