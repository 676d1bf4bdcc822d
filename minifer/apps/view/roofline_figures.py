"""The four figures of `minifer roofline`, drawn from what `roofline.json` holds and from nothing else.

    roofline      FLOP/s against FLOP per byte: ceilings, and a point for each class of operations of each step
    step-time     a decode step against its batch size, measured, beside linears + attention + overhead as predicted
    latency       TTFT against the prompt, ITL against context and batch
    weight-width  tokens per second against bytes per weight, and who stands where

Colours are Okabe and Ito's, which colour-blind readers can tell apart; what differs in colour differs in shape or dash
too, so that nothing is lost in grey. Ceilings are solid where measured and dotted where a datasheet says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minifer.apps.roofline_report import headline
from minifer.apps.view.labels import Label, along, boxes_of, name_slope, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY, LIGHT = "#0072B2", "#E69F00", "#009E73", "#666666", "#BBBBBB"
PHASES = {"prefill": BLUE, "decode": ORANGE}
SHAPES = {"linears": "o", "attention": "s", "head": "^"}
SIZE, DPI = (8.0, 5.8), 200
LARGEST_AREA, SMALLEST_AREA = 320.0, 10.0

LLAMA_CPP = (("F32", 4.0, 39.0), ("BF16", 2.0, 61.0), ("Q8_0", 34 / 32, 83.5), ("Q4_1", 0.717, 104.5))
"""Name, bytes per weight, tokens per second."""
LLAMA_CPP_MODEL = "smollm2-135m"
LLAMA_CPP_WORDS = (
    "llama.cpp (ggml 0.26, AVX-512, 2 threads) recorded on a quiet 2-core Emerald Rapids machine, 2026-11-30,\n"
    "which read 28.2 GB/s; this run read {:.3g} GB/s. Its file called Q4_1 has the embedding in Q8_0."
)


def draw_all(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write each figure for which there is data as PNG and SVG; returns their paths."""
    figures = {
        "roofline": (draw_roofline, report["points"]),
        "step-time": (draw_step_time, _by_batch(report)),
        "latency": (draw_latency, report["requests"]),
        "weight-width": (draw_weight_width, _alone(report)),
    }
    written = []
    for name, (draw, data) in figures.items():
        if not data:
            continue
        with _style():
            figure = draw(report)
            for ending in ("png", "svg"):
                path = folder / f"{name}.{ending}"
                # No date: the same data gives the same bytes.
                figure.savefig(path, dpi=DPI, metadata={"Date": None} if ending == "svg" else None)
                written.append(path)
    return written


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    style = {"svg.hashsalt": "minifer", "font.size": 9, "axes.titlesize": 10, "axes.spines.top": False,
             "axes.spines.right": False, "legend.fontsize": 8, "legend.frameon": False}  # fmt: skip
    with matplotlib.rc_context(style):  # type: ignore[arg-type]
        yield


def _figure(size: tuple[float, float] = SIZE) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state
    return figure


def _settle(figure: "Figure") -> None:
    """Lay everything out and leave it there: labels are placed by pixels, and must not move the rest."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


# --- the roofline -----------------------------------------------------------------------------------------------------


def draw_roofline(report: Mapping[str, Any]) -> "Figure":
    """Ceilings and points. Every measured step is there; the labelled ones are a prefill and two decode steps."""
    figure = _figure()
    ax = figure.subplots()
    points, c = report["points"], report["ceilings"]
    low, high = _x_range(points, c["ridge"])
    ax.set(xscale="log", yscale="log", xlim=(low, high), xlabel="FLOP per byte of memory traffic", ylabel="FLOP/s")
    _limit_y(ax, points, c)
    _draw_points(ax, points)
    ax.set_title(f"{report['model']['name']}, {report['model']['dtype']}, {_machine(report)}")
    _roofline_legend(figure)
    _settle(figure)
    named = headline(points)
    pale = [along(ax, *_spot(p), thick_px=_radius_px(p)) for p in points if p not in named]
    taken = np.vstack([_draw_ceilings(ax, c, low, high), *pale])
    labels = [Label(p["intensity"], p["flops_per_s"], _point_name(p), _area(p) ** 0.5 / 2 + 1) for p in named]
    place(ax, labels, taken)
    return figure


def _draw_ceilings(ax: "Axes", c: Mapping[str, Any], low: float, high: float) -> np.ndarray:
    """Flat roof, slanted roofs, overhead, datasheet, ridge; returns what labels must keep off."""
    peak, read, ridge = c["flops_per_s"], c["read_bytes_per_s"], c["ridge"]
    taken = [_roof(ax, peak, read, low, high, color="black", linewidth=2)]
    flat = ax.annotate(f"arithmetic: {peak / 1e9:.3g} GFLOP/s", (high, peak), (-2, 2), textcoords="offset points",
                       ha="right", va="bottom", fontsize=8)  # fmt: skip
    name = f"reading {_size(c['working_set_bytes'])}: {read / 1e9:.3g} GB/s"
    taken.append(name_slope(ax, max(low * 1.15, ridge / 4), read, name, "black"))
    rate, size = _cache_roof(c)
    if rate > 1.3 * read:
        name = f"cache, {size} read again and again: {rate / 1e9:.3g} GB/s"
        taken.append(_roof(ax, peak, rate, low, peak / rate, color=GREY, linewidth=1, label=name))
    once = c["overhead_s"].get("linears", (0, 0))[0]
    if once:
        name = f"overhead: calls of the linear layers, {once * 1e3:.2g} ms a step"
        slope = c["linear_bytes"] / once
        taken.append(_roof(ax, slope * high, slope, low, high, color=GREEN, linewidth=1.3, linestyle="-.", label=name))
    if sheet := c.get("datasheet"):
        flops, reads = sheet["flops_per_s"], sheet["read_bytes_per_s"]
        name = f"datasheet: {flops / 1e9:.3g} GFLOP/s; {reads / 1e9:.3g} GB/s for the whole socket"
        taken.append(_roof(ax, flops, reads, low, high, color="black", linewidth=1.3, linestyle=":", label=name))
    bottom = ax.get_ylim()[0]
    ax.plot([ridge, ridge], [bottom, peak], color=LIGHT, linewidth=0.8, zorder=0)
    words = ax.annotate(f"ridge {ridge:.3g}", (ridge, peak), (0, 2), textcoords="offset points", color=GREY, fontsize=8)
    names = ax.legend(loc="lower right", frameon=True, framealpha=1, edgecolor="none", borderpad=0.1)
    return np.vstack([*taken, boxes_of([flat, words, names])])


def _roof(ax: "Axes", peak: float, read: float, low: float, high: float, **style: Any) -> np.ndarray:
    """A slanted part and a flat one."""
    corner = min(max(low, peak / read), high)
    x, y = [low, corner, high], [min(peak, read * low), min(peak, read * corner), min(peak, read * high)]
    ax.plot(x, y, zorder=3, **style)
    return along(ax, x, y)


def _cache_roof(c: Mapping[str, Any]) -> tuple[float, str]:
    """The fastest reading of any working set, and that working set in words."""
    rows = [r for r in c["machine"]["reads"] if r["threads"] == c["threads"]]
    if not rows:
        return 0.0, ""
    best = max(rows, key=lambda r: r["bytes_per_s"])
    return best["bytes_per_s"], _size(best["bytes"])


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1024:,.0f} KiB" if num_bytes < 1 << 20 else f"{num_bytes / (1 << 20):,.0f} MiB"


def _draw_points(ax: "Axes", points: Sequence[Mapping[str, Any]]) -> None:
    """All of them; those that get no label are fainter."""
    named = {id(p) for p in headline(points)}
    for p in points:
        bold = id(p) in named
        ax.scatter(p["intensity"], p["flops_per_s"], s=_area(p), marker=SHAPES[p["op"]], color=PHASES[p["phase"]],
                   alpha=0.95 if bold else 0.35, edgecolors="black" if bold else "none", linewidths=0.8,
                   zorder=5 if bold else 4)  # fmt: skip


def _spot(point: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    return [point["intensity"]] * 2, [point["flops_per_s"]] * 2


def _radius_px(point: Mapping[str, Any]) -> float:
    return float(_area(point) ** 0.5 / 2 * DPI / 72)


def _area(point: Mapping[str, Any]) -> float:
    return SMALLEST_AREA + LARGEST_AREA * min(1.0, point["share_of_step"])


def _point_name(p: Mapping[str, Any]) -> str:
    step = f"prefill {p['length']:,}" if p["phase"] == "prefill" else f"decode, batch {p['batch']}"
    return f"{step}\n{p['op']} {p['share']:.0%}" + (
        "" if p["share"] <= 1.05 else " (cache)" if p["explained"] else " ?"
    )


def _roofline_legend(figure: "Figure") -> None:
    from matplotlib.lines import Line2D

    def dot(marker: str, color: str, size: float = 8) -> Line2D:
        return Line2D(
            [], [], marker=marker, color="none", markerfacecolor=color, markeredgecolor="black", markersize=size
        )

    blank = Line2D([], [], color="none")
    handles = [*(dot("D", color) for color in PHASES.values()), *(dot(marker, "white") for marker in SHAPES.values())]
    handles += [blank, *(dot("o", "white", (SMALLEST_AREA + LARGEST_AREA * share) ** 0.5) for share in (0.1, 1.0))]
    names = [f"{phase} (colour)" for phase in PHASES] + list(SHAPES) + ["", "10 % of the step's time", "all of it"]
    title = "Solid lines and points: measured. %: share of the lowest ceiling above the point. Pale: the other steps."
    figure.legend(handles, names, loc="outside lower center", ncols=4, handletextpad=0.6, title=title, title_fontsize=8)


def _x_range(points: Sequence[Mapping[str, Any]], ridge: float) -> tuple[float, float]:
    intensities = [p["intensity"] for p in points]
    return min(intensities) / 2.2, max(*intensities, 4 * ridge) * 2


def _limit_y(ax: "Axes", points: Sequence[Mapping[str, Any]], c: Mapping[str, Any]) -> None:
    speeds = [p["flops_per_s"] for p in points]
    sheet = c.get("datasheet") or {}
    top = max(c["flops_per_s"], sheet.get("flops_per_s", 0), *speeds)
    ax.set_ylim(min(speeds) / 2.5, top * 1.9)


# --- step time --------------------------------------------------------------------------------------------------------


def draw_step_time(report: Mapping[str, Any]) -> "Figure":
    """A decode step by batch size: what was measured, and the sum that was predicted with its terms."""
    figure = _figure()
    ax = figure.subplots()
    rows = _by_batch(report)
    x = [row["batch"] for row in rows]
    parts = [row["predicted_parts_s"] for row in rows]
    overhead = [row["overhead_s"] * 1e3 for row in rows]
    terms = {
        "linears and head: the longer of arithmetic and reading": (GREY, "--", ("linears", "head")),
        "attention: reading every sequence's cache": (ORANGE, "-.", ("attention",)),
    }
    ax.plot(x, [row["predicted_s"] * 1e3 for row in rows], color="black", label="predicted: the sum of all terms")
    for name, (color, dash, members) in terms.items():
        ax.plot(x, [sum(p[m] for m in members) * 1e3 for p in parts], color=color, linestyle=dash, label=name)
    ax.plot(x, overhead, color=GREEN, linestyle=":", label="overhead, contained in all of them")
    _with_range(ax, x, rows, "measured_s", "min_s", "max_s", "measured (bar: fastest to slowest)")
    ax.set(xscale="log", yscale="log", xlabel="sequences in the batch", ylabel="time of a decode step, ms", xticks=x)
    _plain_ticks(ax.xaxis, x)
    _plain_ticks(ax.yaxis)
    ax.set_title(f"{report['model']['name']}, context {rows[0]['context']:,}, {_machine(report)}")
    ax.grid(axis="y", color="#E5E5E5", linewidth=0.6)
    figure.legend(loc="outside lower center", ncols=2)
    _settle(figure)
    labels = [Label(row["batch"], row["measured_s"] * 1e3, f"{row['ratio']:.2f} x", 5) for row in rows]
    taken = np.vstack([along(ax, line.get_xdata(), line.get_ydata()) for line in ax.get_lines()])  # type: ignore[arg-type]
    place(ax, labels, taken)
    return figure


# --- latency ----------------------------------------------------------------------------------------------------------


def draw_latency(report: Mapping[str, Any]) -> "Figure":
    """TTFT against the prompt; ITL against context, alone, and against the batch."""
    figure = _figure((9.0, 4.0))
    rows = report["requests"]
    alone = [row for row in rows if row["batch"] == 1]
    short = min((row["prompt"] for row in alone), default=0)
    together = [row for row in alone if row["prompt"] == short] + [row for row in rows if row["batch"] > 1]
    panels = (
        ("TTFT", "prompt, tokens", "prompt", alone, "ttft"),
        ("ITL, one request", "prompt, tokens", "prompt", alone, "itl"),
        (f"ITL, prompts of {short}", "requests at once", "batch", together, "itl"),
    )
    for ax, (title, xlabel, key, data, metric) in zip(figure.subplots(1, 3), panels, strict=True):
        x = [row[key] for row in data]
        ax.plot(x, [row[f"predicted_{metric}_s"] * 1e3 for row in data], color="black", label="predicted")
        _with_range(ax, x, data, f"{metric}_s", f"{metric}_min_s", f"{metric}_max_s", "measured (bar: all values)")
        ax.set(xscale="log", title=title, xlabel=xlabel, ylabel="ms")
        _plain_ticks(ax.xaxis, _thinned(x))
        if metric == "ttft":
            ax.set_yscale("log")
            _plain_ticks(ax.yaxis)
        else:
            ax.set_ylim(bottom=0)
        ax.grid(axis="y", color="#E5E5E5", linewidth=0.6)
    figure.suptitle(f"{report['model']['name']}, {_machine(report)}", fontsize=10)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2)
    return figure


# --- the width of a weight --------------------------------------------------------------------------------------------


def draw_weight_width(report: Mapping[str, Any]) -> "Figure":
    """How fast decoding could be with narrower weights, if reading were all; minifer's point, and recorded ones."""
    figure = _figure()
    ax = figure.subplots()
    row, c, m = _alone(report), report["ceilings"], report["model"]
    assert row is not None, "draw_all asks first"
    kv = m["kv_bytes_per_token"] * row["context"]
    widths = [4.6 * 0.9**i for i in range(24)]
    reading = [c["read_bytes_per_s"] / (m["weight_bytes"] / 4 * w + kv) for w in widths]
    ax.plot(
        widths,
        reading,
        color="black",
        linewidth=1.8,
        label=f"predicted from reading {c['read_bytes_per_s'] / 1e9:.3g} GB/s",
    )
    calls = [1 / (1 / rate + row["overhead_s"]) for rate in reading]
    ax.plot(widths, calls, color=GREEN, linestyle="-.", label=f"with {row['overhead_s'] * 1e3:.3g} ms of overhead")
    speed = row["tokens_per_s"]
    ax.scatter(4, speed, s=110, marker="*", color=BLUE, edgecolors="black", zorder=5, label="minifer, measured here")
    labels = [Label(4, speed, f"minifer {speed:.3g}", 7)]
    if LLAMA_CPP_MODEL in m["name"]:
        x, y = [w for _, w, _ in LLAMA_CPP], [rate for *_, rate in LLAMA_CPP]
        ax.scatter(x, y, s=50, marker="s", facecolors="none", edgecolors=ORANGE, linewidths=1.8, zorder=4,
                   label="llama.cpp, recorded elsewhere")  # fmt: skip
        labels += [Label(w, rate, f"{name} {rate:g}", 5) for name, w, rate in LLAMA_CPP]
        figure.supxlabel(LLAMA_CPP_WORDS.format(c["read_bytes_per_s"] / 1e9), fontsize=7.5, color="#444444")
    ax.set(xscale="log", yscale="log", xlabel="bytes per weight", ylabel="tokens per second, one sequence")
    ticks = {4.0: "4\nF32", 2.0: "2\nBF16", 34 / 32: "1.06\nQ8_0", 0.717: "0.717\nQ4_1"}
    _plain_ticks(ax.xaxis, list(ticks), list(ticks.values()))
    _plain_ticks(ax.yaxis)
    ax.set_title(f"{m['name']}, decode at context {row['context']:,}, {_machine(report)}")
    ax.grid(color="#E5E5E5", linewidth=0.6)
    ax.legend(loc="upper right")
    _settle(figure)
    place(ax, labels, np.vstack([along(ax, widths, reading), along(ax, widths, calls)]))
    return figure


# --- shared -----------------------------------------------------------------------------------------------------------


def _by_batch(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The decode steps of the sweep over batch sizes, in order."""
    decode = [row for row in report["steps"] if row["phase"] == "decode"]
    rows = {row["batch"]: row for row in decode if row["context"] == decode[0]["context"]}
    return [rows[batch] for batch in sorted(rows)]


def _alone(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((row for row in _by_batch(report) if row["batch"] == 1), None)


def _with_range(
    ax: "Axes", x: Sequence[float], rows: Sequence[Mapping[str, Any]], key: str, low: str, high: str, label: str
) -> None:
    """Markers in milliseconds, with a bar from the smallest to the largest value."""
    y = [row[key] * 1e3 for row in rows]
    below = [max(0.0, (row[key] - row[low]) * 1e3) for row in rows]
    above = [max(0.0, (row[high] - row[key]) * 1e3) for row in rows]
    ax.errorbar(x, y, yerr=[below, above], fmt="o", color=BLUE, markeredgecolor="black", markersize=6, capsize=2.5,
                linewidth=1, label=label, zorder=4)  # fmt: skip


def _plain_ticks(axis: Any, at: Sequence[float] = (), names: Sequence[str] = ()) -> None:
    """Numbers as people write them, at the given places or where matplotlib wants them, and no minor ticks between."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    if at:
        axis.set_ticks(list(at), list(names) or [f"{value:,}" for value in at])
        axis.set_minor_locator(NullLocator())
    elif axis.get_scale() == "log":
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_formatter(NullFormatter())


def _thinned(values: Sequence[float], most: int = 4) -> list[float]:
    """At most about `most` of the values, first and last among them."""
    step = max(1, -(-(len(values) - 1) // (most - 1)))
    return [v for i, v in enumerate(values) if (len(values) - 1 - i) % step == 0]


def _machine(report: Mapping[str, Any]) -> str:
    cpu = " ".join(str(report["conditions"]["cpu"]).replace("(R)", "").replace("(TM)", "").split())
    return f"{report['ceilings']['threads']} threads of {cpu}"
