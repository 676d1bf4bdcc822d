"""The roofline of a GPU out of one record of `minifer bench gpu`: a panel for each model.

Three ceilings, all measured: reading (slanted), the 16-bit product (flat), and launching, which textbooks leave out. A
step of L layers is 10 L + 4 launches whatever they compute, so it can't do more FLOP/s than its own FLOPs over that
time: the two broken lines, for launches one by one and for a graph. Colours are Okabe and Ito's; filled markers are
steps from a graph, hollow ones single launches, squares are prompts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifer.apps.view.labels import Label, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#666666"
PANEL, DPI = (6.2, 5.2), 150
STYLE = {"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False,
         "legend.fontsize": 8, "legend.frameon": False}  # fmt: skip

Row = Mapping[str, Any]


def draw(record: Mapping[str, Any], path: Path) -> Path | None:
    """Write the figure of a record as PNG; None if there is no model with a measured row in it."""
    models = [(m, rows) for m in record["models"].values() if (rows := [r for r in m["rows"] if "seconds" in r])]
    if not models or "ceilings" not in record:
        return None
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(PANEL[0] * len(models), PANEL[1]), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)  # no window, no global state
        axes = figure.subplots(1, len(models), squeeze=False)[0]
        for ax, (model, rows) in zip(axes, models, strict=True):
            _panel(ax, model, rows, record)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # labels are placed by pixels, and must not move the rest
        for ax, (_, rows) in zip(axes, models, strict=True):
            place(ax, [Label(r["flops_per_byte"], r["flops_per_s"], _name(r), 4.0) for r in rows])
        figure.savefig(path, format="png")
    return path


def _panel(ax: "Axes", model: Mapping[str, Any], rows: Sequence[Row], record: Mapping[str, Any]) -> None:
    c = record["ceilings"]
    reading, peak = max(c["read_bytes_per_s"], c["copy_bytes_per_s"]), c["flops_per_s"][model["dtype"]]
    x = [r["flops_per_byte"] for r in rows]
    low, high = min(x) / 3, max(*x, peak / reading) * 4
    bottom = min(r["flops_per_s"] for r in rows) / 4
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, peak * 3),
           xlabel="FLOP per byte of memory traffic", ylabel="FLOP/s")  # fmt: skip
    ridge = peak / reading
    roofs = f"reading {reading / 1e9:,.0f} GB/s, {model['dtype']} product {peak / 1e12:,.3g} TFLOP/s"
    ax.plot([low, ridge, high], [low * reading, peak, peak], color="black", linewidth=2, label=roofs)
    _launching(ax, model, rows, record.get("facts", {}))
    for kind, color, marker, face in (("graph", ORANGE, "o", ORANGE), ("eager", ORANGE, "o", "white"),
                                      ("prefill", BLUE, "s", BLUE)):  # fmt: skip
        some = [r for r in rows if kind in r["job"]]
        what = {"graph": "decode from a graph", "eager": "decode, launch by launch", "prefill": "prompt"}[kind]
        ax.plot([r["flops_per_byte"] for r in some], [r["flops_per_s"] for r in some], marker, color=color,
                markerfacecolor=face, label=what, linestyle="none", markersize=7)  # fmt: skip
    gpu = record["environment"].get("gpu")
    ax.set_title(f"{model['model']}, {model['dtype']}, {gpu['name'] if gpu else record['device']}")
    ax.legend(loc="lower right")


def _launching(ax: "Axes", model: Mapping[str, Any], rows: Sequence[Row], facts: Mapping[str, Any]) -> None:
    """The third ceiling: what a step's FLOPs come to if it took no longer than its launches."""
    count = model["launches_per_step"]
    single, node = facts.get("launch_of_a_kernel"), facts.get("node_of_a_graph")
    decode = sorted((r["flops_per_byte"], r["flops"]) for r in rows if "graph" in r["job"])
    for name, us, style in (
        ("one by one", count * max(single["queue_us"], single["gpu_us"]) if isinstance(single, dict) else None, ":"),
        ("from a graph", count * node["node_us"] + node["launch_us"] if isinstance(node, dict) else None, "--"),
    ):
        if us and decode:
            ax.plot([x for x, _ in decode], [flops / (us / 1e6) for _, flops in decode], style, color=GREEN,
                    label=f"{count} launches {name}: {us / 1e3:.3g} ms", marker="_", markersize=14)  # fmt: skip


def _name(row: Row) -> str:
    """Graphs and prompts are named; names of the eager points beside them would only crowd the panel."""
    return "" if "eager" in row["job"] else f"{row['job'].removesuffix(', graph')}: {row['share']:.0%}"
