"""What runs inside a replica's process: commands in, a step, one message out, over and over.

    while there is work:  take what has arrived  ->  engine.step()  ->  send one Report
    otherwise:            sleep until something arrives

The server above speaks of text and connections; here text becomes of token ids again only at the very end: each answer
has a decoder that never gives half a character, and a watch for its stop strings. Both live here and not in the server,
because an answer that has reached its stop string must not take another step.

If the pipe closes, the server is gone, and so is the reason to live.
"""

import contextlib
import os
import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from minifer.apps.serve.messages import ABORT, Costs, Failed, Job, Load, Piece, Ready, Report
from minifer.errors import MiniferError
from minifer.metrics import from_request
from minifer.scheduler.plan import StepPlan, TokenEvent
from minifer.scheduler.request import Request
from minifer.stop_strings import StopStrings
from minifer.tokenizer.stream import StreamDecoder
from minifer.trace import TraceWriter

if TYPE_CHECKING:
    from minifer.llm import LLM
    from minifer.tokenizer import Tokenizer


def main(pipe: Connection, model: str, options: Mapping[str, Any], about: Mapping[str, Any], trace: bool) -> None:
    """The whole life of a replica: load, say so, work until told to stop.

    `options` are those of `LLM`, and `cores`, the ones this process may use (None: all).
    """
    with contextlib.suppress(ValueError):  # a thread of a test cannot set handlers
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which tells its replicas what to do
    cores = options.get("cores")
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)  # before NumPy is loaded: BLAS and the CPU room both count what is left
    from minifer.llm import LLM

    with pipe, contextlib.suppress(EOFError, BrokenPipeError, ConnectionError):
        try:
            llm = LLM(model, **{name: value for name, value in options.items() if name != "cores"})
        except (MiniferError, OSError, MemoryError) as error:
            pipe.send(Failed(str(error) if isinstance(error, MiniferError) else f"{type(error).__name__}: {error}"))
            return
        with llm:
            worker = Worker(llm, pipe, about, trace)
            pipe.send(worker.ready(model))
            worker.work()


class Lines(TraceWriter):
    """A trace whose lines are kept until the next report takes them. `routes` is what the router said of a request."""

    def __init__(self, config: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Begin with the header line."""
        self.lines: list[str] = []
        self.routes: dict[str, Mapping[str, Any]] = {}
        self.step_tokens = 0
        super().__init__(self, config, about)  # type: ignore[arg-type]  # of a file it needs only write()

    def stepped(self, plan: StepPlan, events: list[TokenEvent], now: float) -> None:
        """Record a step, and note its size."""
        self.step_tokens = plan.num_tokens
        super().stepped(plan, events, now)

    def write(self, line: str) -> None:
        """Take one line, its end included."""
        self.lines.append(line)

    def taken(self) -> list[str]:
        """The lines since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def _write(self, record: Mapping[str, Any]) -> None:
        route = self.routes.pop(record["id"], None) if record["kind"] == "request" else None
        super()._write({**record, **route} if route else record)


class StepCounter(Lines):
    """Where no trace is wanted: it only notes how many tokens the last step computed."""

    def stepped(self, plan: StepPlan, _events: list[TokenEvent], _now: float) -> None:
        """Note the size of the step."""
        self.step_tokens = plan.num_tokens

    def taken(self) -> list[str]:
        """No lines."""
        return []

    def _write(self, _record: Mapping[str, Any]) -> None:
        self.routes.clear()


class Answer:
    """One of the n answers of a job: its request, its decoder, its stop strings."""

    def __init__(self, job: Job, request: Request, tokenizer: "Tokenizer | None") -> None:
        self.job, self.request = job, request
        self.decoder = StreamDecoder(tokenizer) if tokenizer else None
        self.watch = StopStrings(job.params.stop)

    def text_of(self, event: TokenEvent) -> str:
        """The text that is safe to show after this event; a model without a vocabulary speaks in numbers."""
        text = ""
        if event.token_id is not None and event.token_id not in self.request.stop_ids:
            text = self.watch.push(self.decoder.push(event.token_id) if self.decoder else f" {event.token_id}")
        if event.finish_reason is not None and self.watch.stopped is None:
            text += self.watch.push(self.decoder.finish() if self.decoder else "")
            text += "" if self.watch.stopped else self.watch.finish()
        return text


class Worker:
    """The engine of an LLM behind a pipe. One thread does everything."""

    def __init__(self, llm: "LLM", pipe: Connection, about: Mapping[str, Any], trace: bool) -> None:
        """Take the engine over: from now on nobody else may step it."""
        from dataclasses import asdict

        from minifer.apps.serve.scoring import ScoringExecutor

        self.llm, self.engine, self.pipe, self.about = llm, llm.engine, pipe, about
        self.scorer = ScoringExecutor(llm.engine.executor)  # type: ignore[arg-type]  # an LLM's is a ModelExecutor
        kind = Lines if trace else StepCounter
        self.recorder = kind(asdict(llm.limits), {"model": llm.name, **about})
        self.engine.executor, self.engine.trace = self.scorer, self.recorder
        self.answers: dict[str, Answer] = {}
        self.pieces: list[Piece] = []

    def ready(self, model: str) -> Ready:
        """What the server wants to know of the model."""
        llm = self.llm
        vocabulary = llm.tokenizer.vocabulary.file if llm.tokenizer else None
        return Ready(llm.name or model, llm.limits, llm.vocab_size, vocabulary, {"device": llm.device.name})

    def work(self) -> None:
        """Until a QUIT: take commands, step, report. Waits while there is nothing to do."""
        self._report(0)  # the header of the trace
        while True:
            changed = False
            while not self.engine.has_work or self.pipe.poll(0):
                if changed and not self.engine.has_work and not self.pipe.poll(0):
                    self._report(0)
                    changed = False
                command = self.pipe.recv()
                if isinstance(command, Job):
                    self._add(command)
                elif command[0] == ABORT:
                    self._end(command[1], "abort")
                else:
                    return
                changed = True
            for event in self.engine.step():
                self._take(event)
            self._report(self.recorder.step_tokens)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _add(self, job: Job) -> None:
        """Queue a job. What can't run is answered with an error; the server checked already, so that is rare."""
        eos = self.llm.config.eos_token_ids
        request = Request(job.id, job.prompt_ids, job.params, job.arrival, eos_ids=eos)
        if job.route is not None:
            self.recorder.routes[job.id] = job.route
        if job.score is not None:
            self.scorer.want(request, job.score, self.llm.limits.block_size)
        answers = {r.id: Answer(job, r, self.llm.tokenizer) for r in (request, *request.siblings)}
        try:
            self.engine.add(request)
        except MiniferError as error:
            self.scorer.forget(job.id)
            now = self.engine.clock.now()
            self.pieces += [
                Piece(job.id, a.request.index, "", None, None, (), now, "error", str(error)) for a in answers.values()
            ]
            return
        self.answers |= answers

    def _end(self, job_id: str, reason: str) -> None:
        """Give up every answer of a job that is still running."""
        names = [name for name, answer in self.answers.items() if answer.job.id == job_id]
        for name in names:
            for event in self.engine.finish(name, reason):
                self._take(event)

    def _take(self, event: TokenEvent) -> None:
        """Turn one event of the engine into a piece, and end the request where its text says so."""
        answer = self.answers.get(event.request_id)
        if answer is None:  # ended by its stop string in this very step
            return
        text, reason = answer.text_of(event), event.finish_reason
        if answer.watch.stopped is not None:
            if answer.request.finished is None:
                self.engine.finish(event.request_id, "stop")
            reason = "stop"
        costs = None
        if reason is not None:
            del self.answers[event.request_id]
            costs = _costs(answer.request)
        index, scores = answer.request.index, self._scores(answer)
        fields = (text, event.token_id, event.logprob, event.top, event.time, reason, event.error, costs, scores)
        self.pieces.append(Piece(answer.job.id, index, *fields))

    def _scores(self, answer: Answer) -> Any:
        """The prompt's log-probabilities, once, with the first piece of the first answer; position 0 has none."""
        if answer.job.score is None or answer.request.index or answer.job.id not in self.scorer.wanted:
            return None
        scores = self.scorer.forget(answer.job.id) or {}
        return tuple(scores[i] for i in sorted(scores))

    # ---- reporting ---------------------------------------------------------------------------------------------------

    def _report(self, step_tokens: int) -> None:
        pieces, self.pieces = self.pieces, []
        self.pipe.send(Report(pieces, self._load(step_tokens), self.recorder.taken()))

    def _load(self, step_tokens: int) -> Load:
        s = self.engine.scheduler
        used = 1 - s.pool.num_free / s.config.num_blocks
        waiting = len(s.waiting) + sum(map(len, s.unborn.values()))
        prefix = s.prefix_queries, s.prefix_hits
        return Load(len(s.running), waiting, used, *prefix, s.num_preemptions, step_tokens)


def _costs(request: Request) -> Costs:
    m = from_request(request)
    return Costs(m.queue_time, m.prefill_time, m.decode_time, m.prompt_tokens, m.cached_tokens, m.output_tokens)
