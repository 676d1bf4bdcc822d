"""A whole run in numbers, with the keys of vLLM's `bench serve`; and a request as its client saw it.

A client sees events and not tokens: an event with no text (a role, a keep-alive, the usage) moves no clock, and how
many tokens an event carried only the server's usage knows. What is undefined is left out of every figure and counted
apart. Percentiles interpolate linearly. What TTFT, ITL and TPOT are stands in `metrics.py`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from minifer.metrics import RequestMetrics, from_stamps, meets, percentile

SLO_SERVER = {"ttft": 2000.0, "tpot": 100.0}
"""Milliseconds. MLPerf Inference's limits for an 8B model as a server."""

SLO_INTERACTIVE = {"ttft": 500.0, "tpot": 30.0}
"""Milliseconds. The same for interactive use."""


def from_events(
    sent: float,
    events: Iterable[tuple[float, str]],
    output_tokens: int,
    prompt_tokens: int = 0,
    error: str | None = None,
) -> RequestMetrics:
    """The metrics of a request as its client saw it: `(time in seconds, text)` per event, tokens from the usage.

    >>> log = [(0.10, ""), (0.50, "A"), (0.52, "B"), (0.54, "CD"), (0.56, ""), (0.57, "")]
    >>> metrics = from_events(0.0, log, output_tokens=4)
    >>> metrics.ttft, metrics.e2e, [round(gap, 3) for gap in metrics.itl], round(metrics.tpot, 6)
    (0.5, 0.54, [0.02, 0.02], 0.013333)
    """
    seen = from_stamps(sent, [time for time, text in events if text], output_tokens)
    return replace(seen, prompt_tokens=prompt_tokens, error=error)


def describe(values: Sequence[float], percents: Sequence[float] = (50, 90, 95, 99)) -> dict[str, float | None]:
    """Mean, median, standard deviation (of the population) and percentiles of one list; all None if it is empty.

    >>> describe([1.0, 3.0], [99])
    {'mean': 2.0, 'median': 2.0, 'std': 1.0, 'p99': 2.98}
    """
    mean = math.fsum(values) / len(values) if values else None
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values)) if mean is not None else None
    spread = {f"p{percent:g}": percentile(values, percent) for percent in percents}
    return {"mean": mean, "median": percentile(values, 50), "std": std, **spread}


def summarise(
    requests: Sequence[RequestMetrics],
    duration: float,
    *,
    slo_ms: Mapping[str, float] = SLO_SERVER,
    percents: Sequence[float] = (50, 90, 95, 99),
    itl_of: str = "token",
) -> dict[str, Any]:
    """A run of `duration` seconds in vLLM's keys, times in milliseconds.

    Failed requests are counted and enter nothing else. An answer of one token has a TTFT but no TPOT and no gap, one
    of no tokens has neither; both are counted apart. All figures of a metric come from the same values.
    """
    done = [r for r in requests if r.error is None]
    per_second = 1 / duration if duration > 0 else None
    prompt, output = sum(r.prompt_tokens for r in done), sum(r.output_tokens for r in done)
    totals = {
        "request_throughput": len(done),
        "output_throughput": output,
        "total_token_throughput": prompt + output,
        "request_goodput": sum(r.output_tokens > 0 and meets(r, slo_ms) for r in done),
    }
    summary: dict[str, Any] = {
        "completed": len(done),
        "failed": len(requests) - len(done),
        "zero_token_answers": sum(r.output_tokens == 0 for r in done),
        "one_token_answers": sum(r.output_tokens == 1 for r in done),
        "duration": duration,
        "total_input_tokens": prompt,
        "total_cached_tokens": sum(r.cached_tokens for r in done),
        "total_output_tokens": output,
        "num_preemptions": sum(r.num_preemptions for r in done),
        "goodput_slo_ms": dict(slo_ms),
        "percentiles": "linear interpolation",
        "itl_of": itl_of,
        **{name: None if per_second is None else total * per_second for name, total in totals.items()},
    }
    for name, seconds in _populations(done).items():
        for what, value in describe([1e3 * s for s in seconds], percents).items():
            summary[f"{what}_{name}_ms"] = value
    return summary


def _populations(done: Sequence[RequestMetrics]) -> dict[str, list[float]]:
    """The values of each metric over all requests that have it, in seconds."""
    return {
        "ttft": [r.ttft for r in done if r.ttft is not None],
        "tpot": [r.tpot for r in done if r.tpot is not None],
        "itl": [gap for r in done for gap in r.itl],
        "e2el": [r.e2e for r in done if r.e2e is not None],
        "queue": [r.queue_time for r in done if r.queue_time is not None],
        "prefill": [r.prefill_time for r in done if r.prefill_time is not None],
        "decode": [r.decode_time for r in done if r.decode_time is not None],
    }
