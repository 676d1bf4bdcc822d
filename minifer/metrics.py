"""Latency from time stamps, and from nothing else.

    sent        first scheduled      first token   2nd   3rd        last token
      |--- queue ---|------ prefill ------|---------- decode ----------|
      |---------------- TTFT -------------|-ITL-|-ITL-|     ...        |
      |----------------------------- E2E ------------------------------|

TTFT   time to first token: what a person waits for before anything moves. The queue is in it.
ITL    inter-token latency: one gap per pair of neighbouring tokens, so k tokens have k - 1; the first token has none.
TPOT   time per output token: (E2E - TTFT) / (tokens - 1), one value per request, undefined below two tokens.
E2E    sent to last token.

A mean of ITL and a mean of TPOT are different numbers: gaps are pooled over all requests, so long answers weigh more;
TPOT has one vote per request. What is undefined is `None`, never 0 and never NaN. Names as in vLLM's `bench serve`.

What this file does not do: add up a whole run, or look at it from outside as a client does (`apps/summary.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from minifer.scheduler.request import Request


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
        from_stamps(request.arrival, stamps, len(request.output_ids)),
        prompt_tokens=len(request.prompt_ids),
        queue_time=None if scheduled is None else scheduled - request.arrival,
        prefill_time=stamps[0] - scheduled if stamps and scheduled is not None else None,
        decode_time=stamps[-1] - stamps[0] if stamps else None,
        cached_tokens=request.num_cached or 0,
        num_preemptions=request.num_preemptions,
        error=(request.error or "error") if request.finish_reason == "error" else None,
    )


def from_stamps(sent: float, stamps: Sequence[float], output_tokens: int) -> RequestMetrics:
    """The metrics of a request that was sent at `sent` and gave something at each of `stamps`, all in seconds.

    No stamps: nothing but `output_tokens` is set.

    >>> metrics = from_stamps(0.0, [0.5, 0.75, 1.5], output_tokens=3)
    >>> metrics.ttft, metrics.itl, metrics.tpot, metrics.e2e
    (0.5, (0.25, 0.75), 0.5, 1.5)
    """
    if not stamps:
        return RequestMetrics(output_tokens=output_tokens)
    return RequestMetrics(
        ttft=stamps[0] - sent,
        itl=tuple(later - earlier for earlier, later in pairwise(stamps)),
        tpot=(stamps[-1] - stamps[0]) / (output_tokens - 1) if output_tokens > 1 else None,
        e2e=stamps[-1] - sent,
        output_tokens=output_tokens,
    )


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value below which `percent` of the values lie, linearly interpolated as NumPy does; None if there is none.

    >>> [percentile([10, 20, 30, 40, 1000], p) for p in (12.5, 50, 87.5)]
    [15.0, 30.0, 520.0]
    """
    if not values:
        return None
    ordered = sorted(values)
    low, beyond = divmod((len(ordered) - 1) * percent, 100)  # whole numbers as long as possible: p90 is exact
    below, above = ordered[int(low)], ordered[min(int(low) + 1, len(ordered) - 1)]
    return below + (above - below) * beyond / 100


def meets(metrics: RequestMetrics, slo_ms: Mapping[str, float]) -> bool:
    """Whether a request kept every promise of `slo_ms` (`ttft`, `tpot`, `e2el`); what is undefined breaks none."""
    measured = {"ttft": metrics.ttft, "tpot": metrics.tpot, "e2el": metrics.e2e}
    return all((value := measured[name]) is None or value * 1e3 <= limit for name, limit in slo_ms.items())
