"""/metrics: what Prometheus reads, under vLLM's names with the prefix `minifer:`.

A dashboard made for vLLM works after one search and replace. Names, buckets and meanings are those of vLLM 0.32
(vllm/v1/metrics/loggers.py):

* `time_to_first_token_seconds` counts every answer that got a token, and starts when the request arrived, before its
  text was encoded;
* `inter_token_latency_seconds` has one observation per gap between tokens, stamped in the replica;
* `request_success_total` has one per answer that ended, by reason; `abort` are those whose client had left.

Everything is written and read in the event loop. So a histogram is a list of integers and needs no lock, which
matters for the one that is written once per token; prometheus_client only puts it into words.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from minifer.apps.serve.messages import Costs, Job, Piece

if TYPE_CHECKING:
    from minifer.apps.serve.answers import Stream
    from minifer.apps.serve.fleet import Fleet

PREFIX = "minifer:"
TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
WHOLE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
ANSWERS = (1, 2, 5, 10, 20)
STEPS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

HISTOGRAMS: tuple[tuple[str, str, Sequence[float]], ...] = (
    ("time_to_first_token_seconds", "Arrival to the first token.", TTFT),
    ("inter_token_latency_seconds", "Gap between two tokens of an answer.", GAPS),
    ("request_time_per_output_token_seconds", "(E2E - TTFT) / (tokens - 1), one value per answer.", GAPS),
    ("e2e_request_latency_seconds", "Arrival to the last token.", WHOLE),
    ("request_queue_time_seconds", "Arrival to the first step that worked on it.", WHOLE),
    ("request_prefill_time_seconds", "First step to first token.", WHOLE),
    ("request_decode_time_seconds", "First token to last token.", WHOLE),
    ("request_inference_time_seconds", "First step to last token.", WHOLE),
    ("request_prompt_tokens", "Tokens of the prompt.", TOKENS),
    ("request_generation_tokens", "Tokens of the answer.", TOKENS),
    ("request_params_n", "Answers asked for.", ANSWERS),
    ("request_params_max_tokens", "Longest answer asked for.", TOKENS),
    ("iteration_tokens_total", "Tokens that a step computed.", STEPS),
)
REASONS = ("stop", "length", "abort", "error")


class Histogram:
    """Counts by bucket, and their sum.

    >>> h = Histogram((0.1, 1))
    >>> for seconds in (0.05, 0.1, 0.5, 3.0):
    ...     h.observe(seconds)
    >>> list(h.cumulative())
    [('0.1', 2), ('1.0', 3), ('+Inf', 4)]
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float | None) -> None:
        """Count one value; None is undefined and counts nowhere."""
        if value is not None:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.sum += value

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Pairs of upper bound and how many values are at most that."""
        total = 0
        for bound, count in zip((*map(float, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield str(bound), total


class Gauges:
    """Everything that is counted."""

    def __init__(self) -> None:
        self.of = {name: Histogram(bounds) for name, _, bounds in HISTOGRAMS}
        self.success: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self.prompt_tokens = self.generation_tokens = self.refused = 0
        self._ttft, self._gap = self.of["time_to_first_token_seconds"], self.of["inter_token_latency_seconds"]

    def piece(self, stream: "Stream", piece: Piece) -> None:
        """A replica has sent a token, or the end of an answer."""
        if piece.token_id is not None:
            before = stream.last_token.get(piece.answer)
            if before is None:
                self._ttft.observe(piece.time - stream.job.arrival)
            else:
                self._gap.observe(piece.time - before)
            stream.last_token[piece.answer] = piece.time
        if piece.finish_reason is not None:
            self.finished(stream.job, piece.finish_reason, piece.costs)

    def stepped(self, tokens: int) -> None:
        """A replica has made a step of so many tokens; 0 is no step."""
        if tokens:
            self.of["iteration_tokens_total"].observe(tokens)

    def finished(self, job: Job, reason: str, costs: Costs | None) -> None:
        """An answer has ended. What was given up or broke down counts by its reason and in no latency but the TTFT."""
        self.success[reason] += 1
        if costs is None:
            return
        self.prompt_tokens += costs.prompt_tokens
        self.generation_tokens += costs.output_tokens
        if reason in ("abort", "error"):
            return
        self.of["request_queue_time_seconds"].observe(costs.queue_s)
        self.of["request_prefill_time_seconds"].observe(costs.prefill_s)
        self.of["request_decode_time_seconds"].observe(costs.decode_s)
        if costs.queue_s is not None and costs.prefill_s is not None and costs.decode_s is not None:
            self.of["request_inference_time_seconds"].observe(costs.prefill_s + costs.decode_s)
            self.of["e2e_request_latency_seconds"].observe(costs.queue_s + costs.prefill_s + costs.decode_s)
            if costs.output_tokens > 1:
                self.of["request_time_per_output_token_seconds"].observe(costs.decode_s / (costs.output_tokens - 1))
        self.of["request_prompt_tokens"].observe(costs.prompt_tokens)
        self.of["request_generation_tokens"].observe(costs.output_tokens)
        self.of["request_params_n"].observe(job.params.n)
        self.of["request_params_max_tokens"].observe(job.params.max_tokens)


class Collector:
    """Puts a fleet's numbers into prometheus_client's words."""

    def __init__(self, fleet: "Fleet", model_name: str) -> None:
        self.fleet, self.model_name = fleet, model_name

    def collect(self) -> Iterable[Any]:
        """All metrics, as of now."""
        yield from self._of_requests()
        yield from self._of_replicas()

    def _of_requests(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        gauges, names, model = self.fleet.gauges, ["model_name"], [self.model_name]
        for name, text, _ in HISTOGRAMS:
            family = HistogramMetricFamily(PREFIX + name, text, labels=names)
            family.add_metric(model, list(gauges.of[name].cumulative()), gauges.of[name].sum)
            yield family
        ended = CounterMetricFamily(
            f"{PREFIX}request_success", "Answers that ended.", labels=[*names, "finished_reason"]
        )
        for reason in REASONS:
            ended.add_metric([*model, reason], gauges.success[reason])
        yield ended
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens processed.", gauges.prompt_tokens),
            ("generation_tokens", "Tokens generated.", gauges.generation_tokens),
            ("requests_refused", "Requests refused because the queue was full.", gauges.refused),
            ("replica_restarts", "Replicas that died and were started anew.", self.fleet.restarts),
        ):
            counter = CounterMetricFamily(PREFIX + name, text, labels=names)
            counter.add_metric(model, value)
            yield counter

    def _of_replicas(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["model_name", "engine"]
        rows: tuple[tuple[Any, str, str, Any], ...] = (
            (GaugeMetricFamily, "num_requests_running", "Answers in the batch.", lambda s: s.load.running),
            (GaugeMetricFamily, "num_requests_waiting", "Answers in the queue.", lambda s: s.load.waiting),
            (
                GaugeMetricFamily,
                "kv_cache_usage_perc",
                "Part of the blocks in use, 1 is all.",
                lambda s: s.load.kv_usage,
            ),
            (GaugeMetricFamily, "replica_alive", "Whether it can take a job.", lambda s: int(s.alive)),
            (
                CounterMetricFamily,
                "prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache.",
                lambda s: s.load.prefix_queries + s.before["queries"],
            ),
            (
                CounterMetricFamily,
                "prefix_cache_hits",
                "Prompt tokens found there.",
                lambda s: s.load.prefix_hits + s.before["hits"],
            ),
            (
                CounterMetricFamily,
                "num_preemptions",
                "Answers that lost their blocks to older ones.",
                lambda s: s.load.preemptions + s.before["preemptions"],
            ),
        )
        for kind, name, text, value in rows:
            family = kind(PREFIX + name, text, labels=labels)
            for seat in self.fleet.seats:
                family.add_metric([self.model_name, str(seat.replica.index)], value(seat))
            yield family
        homeless = GaugeMetricFamily(
            f"{PREFIX}num_requests_homeless", "Requests that wait for a replica.", labels=labels[:1]
        )
        homeless.add_metric([self.model_name], len(self.fleet.homeless))
        yield homeless


def exposition(fleet: "Fleet", model_name: str) -> tuple[bytes, str]:
    """The text for Prometheus, and its content type."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

    registry = CollectorRegistry()
    registry.register(Collector(fleet, model_name))
    return generate_latest(registry), CONTENT_TYPE_LATEST
