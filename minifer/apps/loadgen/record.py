"""Everything a client knows about one request, and its latencies on two clocks.

    due          sent                first text                      last text
     |-- waiting --|------- TTFT -------|-- ITL --|-- ITL --|  ...  ----|
     |---------- TTFT from due ---------|

`due` is when the schedule wanted the request to be sent, `sent` when it was; they differ where the client allows only
so many requests at a time. A user who has to wait for a slot waits, and the clock that starts at `due` says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from minifer.apps.loadgen.protocols import Event
from minifer.apps.summary import from_events
from minifer.metrics import RequestMetrics


@dataclass
class Record:
    """One request; times in seconds from the start of the run.

    `events` are the texts and when they arrived, empty ones too. `prompt_tokens`, `cached_tokens` and `output_tokens`
    are the server's own counts, None until or unless it sends them. `error` says why the request failed;
    `unfinished` that the run ended before the answer did.
    """

    index: int
    due: float
    wanted_input: int = 0
    wanted_output: int = 0
    sent: float | None = None
    events: list[tuple[float, str]] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    unfinished: bool = False
    engine: RequestMetrics | None = None  # an engine's own stamps, where it runs in this process

    def take(self, event: Event, time: float) -> None:
        """Note one event of the stream. Counts that come more than once grow: the last one holds."""
        self.events.append((time, event.text))
        for name in ("prompt_tokens", "cached_tokens", "output_tokens", "finish_reason", "error"):
            value = getattr(event, name)
            if value is not None and (name != "error" or self.error is None):
                setattr(self, name, value)

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(text for _, text in self.events)

    @property
    def stamps(self) -> list[float]:
        """When text arrived."""
        return [time for time, text in self.events if text]

    @property
    def tokens(self) -> int:
        """Tokens of the answer: the server's count, or for want of one the events with text."""
        return self.output_tokens if self.output_tokens is not None else len(self.stamps)

    @property
    def done(self) -> bool:
        """Whether it was answered as it should be."""
        return self.error is None and not self.unfinished and self.sent is not None

    def metrics(self, from_due: bool = False) -> RequestMetrics:
        """Its latencies, counted from when it was sent, or from when it was due."""
        start = self.due if from_due or self.sent is None else self.sent
        if self.engine is not None and self.sent is not None:
            return _shifted(self.engine, self.sent - start)
        prompt = self.prompt_tokens if self.prompt_tokens is not None else self.wanted_input
        found = from_events(start, self.events, self.tokens, prompt, self.error)
        return replace(found, cached_tokens=self.cached_tokens or 0)


def _shifted(metrics: RequestMetrics, earlier: float) -> RequestMetrics:
    """The same request seen by somebody who began to wait `earlier` seconds before."""
    ttft = None if metrics.ttft is None else metrics.ttft + earlier
    return replace(metrics, ttft=ttft, e2e=None if metrics.e2e is None else metrics.e2e + earlier)


def most_at_once(records: Sequence[Record]) -> int:
    """The largest number of requests that were under way at the same moment."""
    ends = [(r.events[-1][0], -1) for r in records if r.sent is not None and r.events]
    edges = sorted([(r.sent, 1) for r in records if r.sent is not None and r.events] + ends)
    level = most = 0
    for _, step in edges:
        level += step
        most = max(most, level)
    return most


def best_second(records: Sequence[Record]) -> float:
    """Output tokens in the fullest second of the run; the tokens of an answer are spread evenly over its events."""
    seconds: dict[int, float] = {}
    for record in records:
        stamps = record.stamps
        for stamp in stamps:
            seconds[int(stamp)] = seconds.get(int(stamp), 0.0) + record.tokens / len(stamps)
    return max(seconds.values(), default=0.0)


def realised_rate(records: Sequence[Record]) -> float | None:
    """Requests per second at which they really were sent; None for fewer than two, or all at once."""
    sent = sorted(r.sent for r in records if r.sent is not None)
    gaps = [b - a for a, b in pairwise(sent)]
    return len(gaps) / sum(gaps) if gaps and sum(gaps) > 0 else None
