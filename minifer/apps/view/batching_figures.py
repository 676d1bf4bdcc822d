"""The figure of `minifer bench batching`: a panel for each part that was measured, drawn from its rows.

Lines are laws, bounds and fits; markers are measurements, with the smallest and largest sample where there are several.
Colours are Okabe and Ito's; what differs in colour differs in marker, dash or hatching too.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"
SHAPES = {"exponential": (BLUE, "o", "-"), "uniform": (GREEN, "s", "--"), "fixed": (GREY, "D", ":")}
COLUMNS, PANEL, DPI = 3, (4.6, 3.9), 150

Rows = Sequence[Mapping[str, Any]]


def draw(found: Mapping[str, Any], path: Path) -> Path | None:
    """Write the figure of `{"rows": ..., "conditions": ...}` as PNG; None if no row has a panel."""
    panels = [(panel, rows) for panel, pick in PANELS if (rows := [row for row in found["rows"] if pick(row)])]
    if not panels:
        return None
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style = {"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False,
             "legend.fontsize": 7.5, "legend.frameon": False}  # fmt: skip
    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    with matplotlib.rc_context(style):  # type: ignore[arg-type]
        figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * lines + 0.3), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)  # no window, no global state
        grid = figure.subplots(lines, columns, squeeze=False).flat
        for ax, (panel, rows) in zip(grid, panels, strict=False):
            panel(ax, rows)
        for ax in list(grid)[len(panels) :]:
            ax.set_visible(False)
        figure.supxlabel(_caption(found["conditions"]), fontsize=8, color="#444444")
        figure.savefig(path, format="png")
    return path


def _caption(conditions: Mapping[str, Any]) -> str:
    quiet = {True: "machine quiet", False: "MACHINE NOT QUIET", None: "stopped early"}[conditions.get("quiet")]
    names = ("model", "dtype", "cpu_info")
    parts = [str(conditions[name]) for name in names if conditions.get(name)]
    threads, versions = f"{conditions.get('threads')} threads", f"minifer {conditions.get('minifer')}"
    sizes = ["--quick sizes"] if conditions.get("quick") else []
    return ", ".join([*parts, threads, versions, f"NumPy {conditions.get('numpy')}", *sizes, quiet])


def _spread(row: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """How far the extremes lie from the median, as error bars want it."""
    return [row["median"] - row["min"]], [row["max"] - row["median"]]


def _gains(ax: "Axes", rows: Rows) -> None:
    """The gain against the batch: law as line, slot-steps as markers, seconds as large markers with their spread."""
    batches = sorted({row["batch"] for row in rows})
    dense = range(1, 2 * max(batches) + 1)
    for shape, (color, marker, dash) in SHAPES.items():
        ax.plot(dense, [_law(shape, b) for b in dense], dash, color=color, label=f"law, {shape}: E[max] / E[length]")
        slots = [row for row in rows if row["shape"] == shape and row["measured_in"] == "slot-steps"]
        ax.plot([r["batch"] for r in slots], [r["median"] for r in slots], marker, color=color, markersize=5)
    timed = [row for row in rows if row["measured_in"] == "seconds"]
    for row, shift in zip(timed, (0.92, 1.0, 1.09), strict=False):
        color, marker, _ = SHAPES[row["shape"]]
        ax.errorbar(row["batch"] * shift, row["median"], _spread(row), fmt=marker, color=color, markersize=9,
                    markerfacecolor="white", markeredgewidth=1.6, capsize=3)  # fmt: skip
        ax.plot(row["batch"] * shift, row["expected"], "x", color="black", markersize=6, zorder=5)
    ax.plot([], [], "o", color=GREY, markersize=5, label="measured, slot-steps")
    ax.plot([], [], "o", color=GREY, markersize=9, markerfacecolor="white", label="measured, seconds")
    ax.plot([], [], "x", color="black", label="seconds expected from a + c b")
    ax.set_xscale("log", base=2)
    top = max(_law("exponential", max(batches)), *(row["max"] for row in rows))
    ax.set(xticks=batches, xticklabels=[str(b) for b in batches], xlim=(min(batches) / 1.3, max(batches) * 1.3))
    ax.set(ylim=(min(0.8, *(0.95 * row["min"] for row in rows)), 1.3 * top), title="Waiting for the longest answer")
    ax.set(xlabel="seats of the batch", ylabel="static / continuous")
    ax.legend(loc="upper left")


def _law(shape: str, batch: int) -> float:
    from minifer.apps.bench_batching_law import law

    return law(shape, batch)


def _step_time(ax: "Axes", rows: Rows) -> None:
    """Seconds of a decode step against the sequences in it, and the line that explains the gain in time."""
    step = rows[-1]["step_s"]
    sizes = {int(b): 1e3 * seconds for b, seconds in step["by_sequences"].items()}
    ax.plot(list(sizes), list(sizes.values()), "o", color=ORANGE, label="median step")
    once, each = 1e3 * step["once"], 1e3 * step["per_sequence"]
    ends = [0, max(sizes)]
    ax.plot(ends, [once + each * b for b in ends], "-", color=ORANGE, label=f"{once:.3g} ms + {each:.3g} ms x b")
    ax.fill_between(ends, 0, [once, once], color=ORANGE, alpha=0.15, hatch="//", edgecolor=ORANGE, linewidth=0,
                    label="paid once a step, empty seats or not")  # fmt: skip
    top = 1.35 * max(*sizes.values(), once + each * max(sizes))
    ax.set(ylim=(0, top), xlim=(0, max(sizes) + 0.5), xlabel="sequences that decode in the step, b",
           ylabel="milliseconds", title="What an empty seat costs in time")  # fmt: skip
    ax.legend(loc="upper left")


def _prefix(ax: "Axes", rows: Rows) -> None:
    """Three times to first token: cold, hit, and the bare forward pass."""
    row = next(row for row in rows if "hit_s" in row)
    names = {"cold_s": f"cold: {row['shared']} + {row['new']}", "hit_s": "prefix cached",
             "forward_s": "forward pass alone"}  # fmt: skip
    colors = {"cold_s": GREY, "hit_s": BLUE, "forward_s": ORANGE}
    _bars(ax, {name: [1e3 * s for s in row[key]] for key, name in names.items()}, list(colors.values()), "{:.4g} ms")
    ax.set(ylabel="time to first token, ms", title=f"{row['shared']} tokens that were computed before")


def _bars(ax: "Axes", samples: Mapping[str, Sequence[float]], colors: Sequence[str], words: str) -> None:
    """A bar for each median, its extremes as a line, its value above."""
    import statistics

    hatches = ("", "//", "..", "xx")
    for place, values in enumerate(samples.values()):
        middle = statistics.median(values)
        spread = [[middle - min(values)], [max(values) - middle]]
        ax.bar(
            place, middle, 0.65, color=colors[place], hatch=hatches[place], edgecolor="white", yerr=spread, capsize=4
        )
        ax.annotate(words.format(middle), (place, max(values)), (0, 4), textcoords="offset points", ha="center")
    ax.set(xticks=range(len(samples)), xticklabels=list(samples), ylim=(0, 1.2 * max(map(max, samples.values()))))


def _chunks(ax: "Axes", rows: Rows) -> None:
    """Worst ITL of the streams and its bound, and the TTFT of the long prompt, against the size of the chunks."""
    import statistics

    marked = [row for row in rows if "worst_s" in row]
    chunks = [row["chunk"] for row in marked]
    decode = statistics.median(s for row in marked for s in row["decode_s"])
    worst, ttft = ([statistics.median(row[key]) for row in marked] for key in ("worst_s", "ttft_s"))
    bound = [1.2 * (decode + statistics.median(row["chunk_s"])) for row in marked]
    ax.plot(chunks, [1e3 * s for s in ttft], "s--", color=GREY, label="TTFT of the long prompt")
    ax.plot(chunks, [1e3 * s for s in worst], "o-", color=BLUE, label="worst ITL of the streams")
    ax.plot(chunks, [1e3 * s for s in bound], ":", color=VERMILION, label="bound: decode step + chunk + 20 %")
    ax.axhline(1e3 * decode, color=ORANGE, linestyle="-.", label="ITL with nothing beside it")
    ax.set_xscale("log", base=2)
    ax.set(yscale="log", xticks=chunks, xticklabels=[str(c) for c in chunks], xlabel="chunk, tokens", ylabel="ms",
           ylim=(0.5e3 * decode, 30e3 * max(ttft)),
           title=f"{marked[0]['streams']} streams beside a prompt of {marked[0]['prompt']:,} tokens")  # fmt: skip
    ax.minorticks_off()
    ax.legend(loc="upper left")


def _paged(ax: "Axes", rows: Rows) -> None:
    """Tokens per second on the three kinds of tables."""
    rates = {row["test"].partition(",")[0]: row["samples_ts"] for row in rows if row["unit"] == "tok/s"}
    base = sorted(rates["contiguous"])[len(rates["contiguous"]) // 2]
    names = {
        name: f"{name}\n{sorted(values)[len(values) // 2] / base:.0%}".replace("%", " %")
        for name, values in rates.items()
    }
    _bars(ax, {names[name]: values for name, values in rates.items()}, [GREY, BLUE, VERMILION], "{:.4g}")
    ax.set(ylabel="tokens per second", title=f"Decode, batch {rows[0]['batch']} at {rows[0]['context']:,}")


def _scheduler(ax: "Axes", rows: Rows) -> None:
    """Microseconds of deciding, per sequence and step."""
    names = [row["test"].removeprefix("deciding, ").replace(", ", "\n") for row in rows]
    samples = {name: row["samples"] for name, row in zip(names, rows, strict=True)}
    _bars(ax, samples, [ORANGE if row["waiting"] else BLUE for row in rows], "{:.3g}")
    ax.axhline(10, color=VERMILION, linestyle=":", label="must be below")
    ax.set_ylim(0, max(13, ax.get_ylim()[1]))
    ax.set(ylabel="us per sequence and step", title="The scheduler with nothing to run")
    ax.legend(loc="upper right")


PANELS: tuple[tuple[Callable[["Axes", Rows], None], Callable[[Mapping[str, Any]], bool]], ...] = (
    (_gains, lambda row: row["part"] == "static"),
    (_step_time, lambda row: "step_s" in row),
    (_prefix, lambda row: row["part"] == "prefix"),
    (_chunks, lambda row: row["part"] == "chunk"),
    (_paged, lambda row: row["part"] == "paged"),
    (_scheduler, lambda row: row["test"].startswith("deciding")),
)
