"""Latency and throughput, from time stamps and nothing else.

    sent        first scheduled      first token   2nd   3rd        last token
      |--- queue ---|------ prefill ------|---------- decode ----------|
      |---------------- TTFT -------------|-ITL-|-ITL-|     ...        |
      |----------------------------- E2E ------------------------------|

TTFT   time to first token: what a person waits for before anything moves. The queue is in it.
ITL    inter-token latency: one gap per pair of neighbouring tokens, so k tokens have k - 1; the first token has none.
TPOT   time per output token: (E2E - TTFT) / (tokens - 1), one value per request, undefined below two tokens.
E2E    sent to last token.

A mean of ITL and a mean of TPOT are different numbers: gaps are pooled over all requests, so long answers weigh more;
TPOT has one vote per request. What is undefined is `None` and counted apart, never 0 and never NaN. A client sees
events and not tokens: an event with no text (a role, a keep-alive, the usage) moves no clock, and how many tokens an
event carried only the server's usage knows. Names as in vLLM's `bench serve`; percentiles interpolate linearly.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from minifer.scheduler.request import Request

SLO_SERVER = {"ttft": 2000.0, "tpot": 100.0}
"""Milliseconds. MLPerf Inference's limits for an 8B model as a server."""

SLO_INTERACTIVE = {"ttft": 500.0, "tpot": 30.0}
"""Milliseconds. The same for interactive use."""


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """One request in seconds; `None` where something is undefined.

    `queue_time`, `prefill_time` and `decode_time` need the engine's own stamps; a client has only the rest. The sum of
    the three is `e2e`.
    """

    ttft: float | None = None
    itl: tuple[float, ...] = ()
    tpot: float | None = None
    e2e: float | None = None
    queue_time: float | None = None
    prefill_time: float | None = None
    decode_time: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None

    @property
    def inference_time(self) -> float | None:
        """First scheduled to last token: prefill and decode."""
        if self.prefill_time is None or self.decode_time is None:
            return None
        return self.prefill_time + self.decode_time


def from_request(request: Request) -> RequestMetrics:
    """The metrics of a request from the scheduler's stamps; also of one that still runs, as far as it has come."""
    stamps, scheduled = request.token_times, request.first_scheduled
    return replace(
        from_stamps(request.arrival, stamps, len(request.output_ids), len(request.prompt_ids)),
        queue_time=None if scheduled is None else scheduled - request.arrival,
        prefill_time=stamps[0] - scheduled if stamps and scheduled is not None else None,
        decode_time=stamps[-1] - stamps[0] if stamps else None,
        cached_tokens=request.num_cached or 0,
        num_preemptions=request.num_preemptions,
        error=(request.error or "error") if request.finish_reason == "error" else None,
    )


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
    return from_stamps(sent, [time for time, text in events if text], output_tokens, prompt_tokens, error)


def from_stamps(
    sent: float, stamps: Sequence[float], output_tokens: int, prompt_tokens: int = 0, error: str | None = None
) -> RequestMetrics:
    """The metrics of a request that was sent at `sent` and gave something at each of `stamps`, all in seconds."""
    first, last = (stamps[0], stamps[-1]) if stamps else (None, None)
    enough = first is not None and last is not None and output_tokens > 1
    return RequestMetrics(
        ttft=None if first is None else first - sent,
        itl=tuple(later - earlier for earlier, later in pairwise(stamps)),
        tpot=(last - first) / (output_tokens - 1) if enough else None,  # type: ignore[operator]
        e2e=None if last is None else last - sent,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        error=error,
    )


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value below which `percent` of the values lie, linearly interpolated as NumPy does; None if there is none.

    >>> [percentile([10, 20, 30, 40, 1000], p) for p in (50, 90, 95)]
    [30.0, 616.0, 808.0]
    """
    if not values:
        return None
    ordered = sorted(values)
    low, beyond = divmod((len(ordered) - 1) * percent, 100)  # whole numbers as long as possible: p90 is exact
    below, above = ordered[int(low)], ordered[min(int(low) + 1, len(ordered) - 1)]
    return below + (above - below) * beyond / 100


def describe(values: Sequence[float], percents: Sequence[float] = (50, 90, 95, 99)) -> dict[str, float | None]:
    """Mean, median, standard deviation (of the population) and percentiles of one list; all None if it is empty.

    >>> describe([1.0, 3.0], [99])
    {'mean': 2.0, 'median': 2.0, 'std': 1.0, 'p99': 2.98}
    """
    mean = math.fsum(values) / len(values) if values else None
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values)) if mean is not None else None
    spread = {f"p{percent:g}": percentile(values, percent) for percent in percents}
    return {"mean": mean, "median": percentile(values, 50), "std": std, **spread}


def meets(metrics: RequestMetrics, slo_ms: Mapping[str, float]) -> bool:
    """Whether a request kept every promise of `slo_ms` (`ttft`, `tpot`, `e2el`); what is undefined breaks none."""
    measured = {"ttft": metrics.ttft, "tpot": metrics.tpot, "e2el": metrics.e2e}
    return all((value := measured[name]) is None or value * 1e3 <= limit for name, limit in slo_ms.items())


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
