"""What a simulation prints: tables for people, and the same as JSON on disk."""

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING, Any

from minifer.apps.numerals import or_dash, three

if TYPE_CHECKING:
    from minifer.apps.simulate.fit import Sample
    from minifer.apps.simulate.steptime import FittedTime
    from minifer.apps.simulate.validate import Comparison

WIDTH = 100
"""Columns of a paragraph."""

METRICS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "gap between tokens",
    "e2el": "whole answer",
    "queue": "of that, in the queue",
}


def print_run(found: dict[str, Any]) -> None:
    """One simulated run as tables."""
    about = found["simulation"]
    print(
        f"{about['replicas']} x {about['name']}, {about['policy']}, {about.get('model', '')}: "
        f"{three(found['duration'])} simulated seconds in {about['wall_s']:.1f} s\n"
    )
    refused = f", {found['refused']:,} refused" if found["refused"] else ""
    print(
        f"requests {found['completed']:,} answered{refused}; tokens in {found['total_input_tokens']:,} "
        f"({found['total_cached_tokens']:,} from the prefix cache), out {found['total_output_tokens']:,}"
    )
    if found["refused_first"]:
        print(f"refused, for example: {found['refused_first'][0]['why']}")
    if not found["completed"]:
        return
    slo = ", ".join(f"{name} {limit:g} ms" for name, limit in found["goodput_slo_ms"].items())
    print(
        f"throughput {or_dash(found['request_throughput'])} requests/s, "
        f"{or_dash(found['output_throughput'])} tokens/s"
        f"; goodput {or_dash(found['request_goodput'])} requests/s ({slo})\n"
    )
    print(f"{'milliseconds':<24}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}")
    for name, words in METRICS.items():
        values = [found[f"{what}_{name}_ms"] for what in ("mean", "p50", "p90", "p99")]
        print(f"{words:<24}" + "".join(f"{or_dash(value):>10}" for value in values))
    print(f"\n{'replica':<9}{'requests':>10}{'steps':>12}{'busy':>8}{'preempted':>11}{'prefix hits':>13}")
    for i, row in enumerate(found["replicas"]):
        print(
            f"{i:<9}{row['requests']:>10,}{row['steps']:>12,}{_percent(row['busy']):>8}{row['preemptions']:>11,}"
            f"{_percent(row['prefix_hit_rate']):>13}"
        )
    for line in assumptions(about["machine"]):
        print(f"\n{fill(line, WIDTH)}")


def print_rates(found: dict[str, Any]) -> None:
    """Runs at several rates, a line each."""
    rows = found["rows"]
    about = rows[0]["simulation"]
    print(f"{about['replicas']} x {about['name']}, {about['policy']}, {about.get('model', '')}\n")
    print(
        f"{'rate':>6}{'answered':>10}{'requests/s':>12}{'tokens/s':>10}{'TTFT p50':>11}{'p99, ms':>10}"
        f"{'TPOT p50':>11}{'p99, ms':>10}{'goodput':>9}"
    )
    for row in rows:
        values = [row[name] for name in ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms")]
        cells = "".join(f"{or_dash(value):>{width}}" for value, width in zip(values, (11, 10, 11, 10), strict=True))
        print(
            f"{row['request_rate']:>6}{row['completed']:>10,}{or_dash(row['request_throughput']):>12}"
            f"{or_dash(row['output_throughput']):>10}{cells}{or_dash(row['request_goodput']):>9}"
        )
    for line in assumptions(about["machine"]):
        print(f"\n{fill(line, WIDTH)}")


def assumptions(machine: dict[str, Any]) -> list[str]:
    """In words, what the step times stand on."""
    if machine["machine"] == "here":
        return [
            f"Step times: measured here on {machine['measured'].get('date')}, "
            f"the formula within {machine['formula_off_by']:.1%} of half of the steps."
        ]
    lines = [
        f"Step times: {machine['efficiency']:.0%} of the datasheet's figures ({machine['source']}) "
        f"plus {machine['step_overhead_us']:g} us a step: a best case, not a measurement."
    ]
    if machine["tensor_parallel"] > 1:
        lines.append(
            f"Tensor parallelism over {machine['tensor_parallel']}: all-reduce takes "
            f"{machine['all_reduce_us_per_step']:.1f} us a step and "
            f"{machine['all_reduce_us_per_row']:.3g} us a row."
        )
    return lines


def print_capacity(found: dict[str, Any]) -> None:
    """The capacities of all settings as a table."""
    about = found["conditions"]
    slo = " and ".join(f"{name} <= {limit:g} ms" for name, limit in about["slo_ms"].items())
    print(
        f"{about['model']} on {about['name']}: highest rate at which {about['target']:.0%} of the requests have {slo}\n"
    )
    print(f"{'policy':<17}{'replicas':>9}{'chunk':>7}{'block':>7}{'prefix cache':>14}{'requests/s':>12}{'kept':>8}")
    for row in found["rows"]:
        cache = "on" if row["prefix_caching"] else "off"
        rate = three(row["rate"]) if row["rate"] else "none"
        print(
            f"{row['policy']:<17}{row['replicas']:>9}{row['chunk']:>7}{row['block_size']:>7}{cache:>14}{rate:>12}"
            f"{_percent(row['attained']):>8}"
        )
    for line in assumptions(about["machine"]):
        print(f"\n{fill(line, WIDTH)}")


def validation(
    model: str, comparisons: "Sequence[Comparison]", time: "FittedTime", samples: "Sequence[Sample]"
) -> dict[str, Any]:
    """The comparison as plain values: `rows`, the formula, and the circumstances."""
    from minifer.apps.roofline_run import conditions
    from minifer.apps.simulate.fit import median_error

    state = {
        "model": model,
        **conditions(),
        "steps_measured": len(samples),
        "formula_off_by": median_error(samples, time),
    }
    runs = {c.workload: {"real": c.real, "simulated": c.simulated, "steps_error": c.steps_error} for c in comparisons}
    return {
        "rows": [row for c in comparisons for row in c.rows()],
        "runs": runs,
        "formula": asdict(time),
        "conditions": state,
    }


def print_validation(found: dict[str, Any]) -> None:
    """Real beside simulated, and where the error is larger than it should be."""
    from minifer.apps.simulate.validate import BOUND

    print(f"{'workload':<10}{'figure':<20}{'real':>12}{'simulated':>12}{'error':>9}")
    for row in found["rows"]:
        mark = "  <- more than 10 %" if row["error"] is not None and abs(row["error"]) > BOUND else ""
        print(
            f"{row['workload']:<10}{row['figure']:<20}{or_dash(row['real']):>12}{or_dash(row['simulated']):>12}"
            f"{_signed(row['error']):>9}{mark}"
        )
    within = sum(row["error"] is not None and abs(row["error"]) <= BOUND for row in found["rows"])
    print(
        f"\n{within} of {len(found['rows'])} figures within {BOUND:.0%}; the formula is within "
        f"{found['conditions']['formula_off_by']:.1%} of half of the {found['conditions']['steps_measured']} steps."
    )
    parts = [f"{name} {run['steps_error']:+.1%}" for name, run in found["runs"].items()]
    print(f"Over all steps of a run together the formula is off by: {', '.join(parts)}. The rest is queueing.")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"
