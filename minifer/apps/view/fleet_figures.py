"""Figures of simulations: how long people waited, what a fleet can take, and the simulation beside the real thing.

draw_run          share of requests that waited at most so long, for TTFT and TPOT, with the promises marked
draw_capacity     the highest rate of each setting, one panel per thing that was varied
draw_validation   simulated over real for each figure, with the band of the bound
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifer.apps.numerals import three
from minifer.apps.view.figure_style import BLUE, GREEN, GREY, LIGHT, PALE, VERMILION, caption, new_figure, save
from minifer.apps.view.figure_style import style as plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORKLOADS = {"steady": (BLUE, "o"), "bursty": (VERMILION, "s"), "prefixes": (GREEN, "D")}
NAMES = {
    "p50_ttft_ms": "TTFT, half",
    "p90_ttft_ms": "TTFT, nine in ten",
    "p50_tpot_ms": "TPOT, half",
    "p90_tpot_ms": "TPOT, nine in ten",
    "output_throughput": "tokens per second",
}
VARIED = {
    "policy": "routing policy",
    "replicas": "replicas",
    "chunk": "tokens per step",
    "block_size": "block size",
    "prefix_caching": "prefix cache",
}


def draw_run(found: Mapping[str, Any], path: Path) -> Path:
    """The distribution of TTFT and TPOT of one simulated run. Raises UsageError for an ending that is no format."""
    about = found["simulation"]
    with plain():
        figure = new_figure(3.2)
        axes = figure.subplots(1, 2, sharey=True)
        for ax, name, words in zip(
            axes, ("ttft", "tpot"), ("time to first token", "time per output token"), strict=True
        ):
            _distribution(ax, found["cumulative"][f"{name}_ms"], found["goodput_slo_ms"].get(name), words)
        axes[0].set_ylabel("% of requests at most")
        caption(
            figure,
            f"Simulated: {about['replicas']} x {about['name']}, {about.get('model', '')}, {about['policy']}; "
            f"{found['completed']:,} requests in {found['duration']:,.0f} s",
        )
        words = f"p50 and p99 of TTFT {_ms(found['p50_ttft_ms'])} and {_ms(found['p99_ttft_ms'])}"
        return save(figure, path, "Latencies of a simulated fleet", words)


def _distribution(ax: "Axes", values: Sequence[float | None], limit: float | None, words: str) -> None:
    known = [value for value in values if value is not None]
    ax.set_title(words)
    ax.set_xlabel("milliseconds")
    if not known:
        ax.text(0.5, 0.5, "nothing to show", transform=ax.transAxes, ha="center", color=GREY)
        return
    percents = [100 * i / (len(known) - 1) for i in range(len(known))]
    ax.plot(known, percents, color=BLUE, linewidth=1.6)
    if min(known) > 0 and max(known) > 10 * min(known):
        ax.set_xscale("log")
    for percent in (50, 90, 99):
        value = known[percent]
        ax.plot([value], [percent], "o", color=BLUE, markersize=3.5)
        ax.annotate(f"p{percent} {three(value)}", (value, percent), (5, -9), textcoords="offset points", fontsize=7.5)
    if limit is not None and ax.get_xlim()[1] > limit / 20:
        ax.axvline(limit, color=VERMILION, linestyle="--", linewidth=1)
        ax.annotate(f"promise {limit:g} ms", (limit, 2), (-3, 0), textcoords="offset points", rotation=90, ha="right",
                    va="bottom", fontsize=7.5, color=VERMILION)  # fmt: skip


def draw_capacity(found: Mapping[str, Any], path: Path) -> Path:
    """The highest rates, one panel for each thing that was varied alone; the base is filled."""
    about, rows = found["conditions"], found["rows"]
    panels = varied(rows, about["base"])
    with plain():
        figure = new_figure(0.7 + 2.3 * -(-len(panels) // 2))
        grid = figure.subplots(-(-len(panels) // 2), 2, squeeze=False).flat
        for ax, (name, values) in zip(grid, panels.items(), strict=False):
            _capacities(ax, name, values, about["base"][name])
        for ax in list(grid)[len(panels) :]:
            ax.set_visible(False)
        slo = " and ".join(f"{n} at most {limit:g} ms" for n, limit in about["slo_ms"].items())
        caption(
            figure,
            f"Simulated: {about['model']} on {about['name']}; highest rate at which {about['target']:.0%} of "
            f"requests have {slo}",
        )
        best = max(rows, key=lambda row: row["rate"])
        return save(figure, path, "What a fleet can take", f"The best setting takes {three(best['rate'])} requests/s")


def varied(rows: Sequence[Mapping[str, Any]], base: Mapping[str, Any]) -> dict[str, list[tuple[Any, float]]]:
    """By name of what was varied alone: its values and rates, the base's among them, sorted where they are numbers."""
    found: dict[str, list[tuple[Any, float]]] = {}
    for name in VARIED:
        same = [row for row in rows if all(row[other] == base[other] for other in VARIED if other != name)]
        if len(same) > 1:
            pairs = [(row[name], row["rate"]) for row in same]
            found[name] = sorted(pairs) if not isinstance(pairs[0][0], str) else pairs
    return found


def _capacities(ax: "Axes", name: str, values: Sequence[tuple[Any, float]], base: Any) -> None:
    ax.set_title(VARIED[name])
    words = [{True: "on", False: "off"}.get(value, str(value)) if name == "prefix_caching" else str(value)
             for value, _ in values]  # fmt: skip
    for i, (value, rate) in enumerate(values):
        ax.bar(i, rate, width=0.62, color=BLUE if value == base else PALE, edgecolor=BLUE, linewidth=0.8)
        ax.annotate(three(rate) if rate else "none", (i, rate), (0, 2), textcoords="offset points", ha="center",
                    va="bottom", fontsize=7.5)  # fmt: skip
    ax.set_xticks(range(len(words)), [word.replace("-", "-\n") if len(word) > 9 else word for word in words])
    ax.set_ylim(0, 1.15 * max(rate for _, rate in values) or 1)
    ax.set_ylabel("requests/s")


def draw_validation(found: Mapping[str, Any], path: Path) -> Path:
    """Simulated over real, a marker for each workload and figure, and the band in which they should lie."""
    from minifer.apps.simulate.validate import BOUND

    rows = [row for row in found["rows"] if row["error"] is not None]
    with plain():
        figure = new_figure(2.9)
        ax = figure.subplots()
        ax.axhspan(-100 * BOUND, 100 * BOUND, color=PALE, zorder=0)
        ax.axhline(0, color=LIGHT, linewidth=0.8)
        for shift, (workload, (color, marker)) in zip((-0.18, 0, 0.18), WORKLOADS.items(), strict=True):
            points = [
                (list(NAMES).index(row["figure"]) + shift, 100 * row["error"])
                for row in rows
                if row["workload"] == workload
            ]
            if points:
                ax.plot(*zip(*points, strict=True), marker, color=color, label=workload, markersize=6, linestyle="none")
        ax.set_xticks(range(len(NAMES)), [name.replace(", ", ",\n") for name in NAMES.values()])
        ax.set_ylabel("simulated over real, %")
        low, high = ax.get_ylim()
        ax.set_ylim(min(low, -130 * BOUND), max(high, 130 * BOUND))
        ax.legend(loc="upper left", bbox_to_anchor=(0, 1.14), ncols=3)
        state = found["conditions"]
        caption(
            figure,
            f"{state['model']}, {state['cpu']}, {state['steps_measured']} steps measured; grey: within {BOUND:.0%}",
        )
        worst = max((abs(row["error"]) for row in rows), default=0.0)
        return save(figure, path, "Simulation beside measurement", f"The largest error is {worst:.1%}")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{three(value)} ms"
