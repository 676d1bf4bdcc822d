"""The same schedule for an engine in this process: what the HTTP server costs is the difference.

There is one thread. Between two steps of the engine, whatever is due by then is added; while a step runs nobody can be
late, because a request's clock starts at the time it was due and not at the time it was noticed. The stamps are the
engine's own, one for each token, so ITL is of tokens here and not of events.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from minifer.apps.loadgen.record import Record
from minifer.apps.loadgen.run import Run, Watch, nobody
from minifer.apps.workloads import Arrival
from minifer.errors import RequestError
from minifer.metrics import from_request
from minifer.sampling_params import SamplingParams
from minifer.scheduler.plan import TokenEvent
from minifer.scheduler.request import Request

if TYPE_CHECKING:
    from minifer.llm import LLM


def run_local(
    llm: "LLM",
    arrivals: Sequence[Arrival],
    *,
    ignore_eos: bool = False,
    temperature: float = 0.0,
    max_concurrency: int | None = None,
    watch: Watch = nobody,
    sleep: Callable[[float], None] = time.sleep,
) -> Run:
    """Drive the engine of `llm` through a workload. Ctrl-C ends the open requests and gives what has come so far."""
    return _Local(llm, ignore_eos, temperature, max_concurrency, watch, sleep).run(arrivals)


class _Local:
    def __init__(self, llm: "LLM", ignore_eos: bool, temperature: float, limit: int | None, watch: Watch,
                 sleep: Callable[[float], None]) -> None:  # fmt: skip
        self.llm, self.limit, self.watch, self.sleep = llm, limit, watch, sleep
        self.ignore_eos, self.temperature = ignore_eos, temperature
        self.start, self.done = 0.0, 0
        self.open: dict[str, tuple[Request, Record]] = {}

    def run(self, arrivals: Sequence[Arrival]) -> Run:
        found = Run([Record(a.index, a.at, len(a.prompt_ids), a.output_len) for a in arrivals])
        coming = deque(zip(arrivals, found.records, strict=True))
        self.start = self.llm.clock.now()
        try:
            while coming or self.open:
                self._admit(coming)
                if self.open:
                    for event in self.llm.engine.step():
                        self._note(event, found)
                elif coming:
                    self.sleep(max(0.0, coming[0][0].at - self._time()))
        except KeyboardInterrupt:
            found.interrupted = True
            for name, (_, record) in self.open.items():
                self.llm.engine.abort(name)
                record.unfinished = True
        found.duration = self._time()
        return found

    def _time(self) -> float:
        return self.llm.clock.now() - self.start

    def _admit(self, coming: deque[tuple[Arrival, Record]]) -> None:
        """Add what is due, as far as there are slots; without a limit it was sent the moment it was due."""
        while coming and coming[0][0].at <= self._time() and (self.limit is None or len(self.open) < self.limit):
            arrival, record = coming.popleft()
            record.sent = arrival.at if self.limit is None else self._time()
            try:
                self._add(arrival, record)
            except RequestError as error:
                record.error = str(error)
                self.done += 1

    def _add(self, arrival: Arrival, record: Record) -> None:
        assert record.sent is not None
        name = f"load-{arrival.index}"
        ids = self.llm.encode(arrival.prompt_ids)
        room = self.llm.limits.fit(name, len(ids), arrival.output_len)
        params = SamplingParams(temperature=self.temperature, max_tokens=room, ignore_eos=self.ignore_eos, seed=0)
        request = Request(name, ids, params, self.start + record.sent, eos_ids=self.llm.config.eos_token_ids)
        self.llm.engine.add(request)
        self.open[name] = request, record

    def _note(self, event: TokenEvent, found: Run) -> None:
        if event.request_id not in self.open:
            return
        request, record = self.open[event.request_id]
        record.events.append((event.time - self.start, self._text(event)))
        if event.finish_reason is None:
            return
        del self.open[event.request_id]
        record.engine = from_request(request)
        record.prompt_tokens, record.cached_tokens = len(request.prompt_ids), request.num_cached or 0
        record.output_tokens, record.finish_reason = len(request.output_ids), event.finish_reason
        record.error = record.engine.error
        self.done += 1
        self.watch(found.records, self.done)

    def _text(self, event: TokenEvent) -> str:
        """The token's own text; halves of characters are not put together here."""
        if event.token_id is None or self.llm.tokenizer is None:
            return ""
        return self.llm.tokenizer.decode([event.token_id])
