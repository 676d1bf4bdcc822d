"""From the lines of a trace to the lives and steps of `trace_model.py`, one line at a time.

A line has the right form when it comes here; whether it makes sense is asked here: time that runs backwards, a request
that was never queued, a block that the pool does not have. What is wrong is named with its step.
"""

from collections.abc import Callable, Mapping
from typing import Any

from minifer.apps.view.trace_model import Life, Step, Trace, Work, _whole
from minifer.errors import FormatError

LARGEST = 2**53
"""No count, position or block is larger: beyond it a browser could not even write the number down."""


class Builder:
    """Takes records in their order; `finish` gives the trace."""

    def __init__(self, partial: bool = False) -> None:
        self.partial = partial
        self.config: Mapping[str, Any] = {}
        self.about: Mapping[str, Any] = {}
        self.lives: list[Life] = []
        self.steps: list[Step] = []
        self._known: dict[str, Life] = {}
        self._takes: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "header": self._header,
            "request": self._request,
            "step": self._step,
            "end": self._end,
        }

    def take(self, record: Mapping[str, Any]) -> None:
        """Note one line."""
        self._takes[record["kind"]](record)

    def finish(self) -> Trace:
        """The trace, its clock set to 0 at the earliest arrival."""
        starts = [life.arrival for life in self.lives] + [step.start for step in self.steps[:1]]
        zero = min(starts, default=0.0)
        for life in self.lives:
            life.arrival -= zero
            life.queued -= zero
            life.token_times = [stamp - zero for stamp in life.token_times]
            life.scheduled = None if life.scheduled is None else life.scheduled - zero
            life.finished = None if life.finished is None else life.finished - zero
        for step in self.steps:
            step.start -= zero
            step.end -= zero
        return Trace(self.config, self.about, self.lives, self.steps, zero)

    # ---- one method for each kind of line --------------------------------------------------------------------------

    def _header(self, record: Mapping[str, Any]) -> None:
        self.config, self.about = record["config"], record["about"]

    def _request(self, record: Mapping[str, Any]) -> None:
        name = record["id"]
        where = f"request {name!r}"
        old = self._known.get(name)
        if old is not None and old.reason is None:
            raise FormatError(f"{where} of the trace was queued twice")
        arrival, now = _time(record["arrival"], where), _time(record["time"], where)
        siblings, most = _count(record["siblings"], where), _count(record["max_tokens"], where)
        self._born(name, arrival, now, record["prompt"], most, priority=record["priority"], siblings=siblings)

    def _end(self, record: Mapping[str, Any]) -> None:
        life = self._find(record["id"], "an end", _time(record["time"], "an end"))
        self._close(life, record["reason"], record["error"], record["time"], len(self.steps) - 1)

    def _step(self, record: Mapping[str, Any]) -> None:
        number = _count(record["step"], "a step of the trace")
        where = f"step {number} of the trace"
        start, end = _time(record["start"], where), _time(record["end"], where)
        before = self.steps[-1] if self.steps else None
        if end < start or (before is not None and (start < before.end or number <= before.number)):
            raise FormatError(f"{where} goes back in time")
        running, waiting, seats, free = (_count(value, where) for value in record["load"])
        step = Step(len(self.steps), number, start, end, [], running, waiting, seats, free, counts=record["counts"])
        step.copies = [(a, b) for a, b in record["copies"]]
        self.steps.append(step)
        self._decisions(step, record, where)
        self._work(step, record, where)
        self._tokens(step, record, where)

    # ---- the parts of a step ---------------------------------------------------------------------------------------

    def _decisions(self, step: Step, record: Mapping[str, Any], where: str) -> None:
        for name, why in record["preempted"]:
            life = self._find(name, where, step.start)
            life.preempted.append((step.index, why))
            life.tables.append((step.index, ()))
            step.preempted.append((life.index, why))
        for name, found in record["admitted"]:
            life = self._find(name, where, step.start)
            life.admitted.append((step.index, _count(found, where)))
            step.admitted.append((life.index, found))
        for name, why in record["refused"]:
            life = self._find(name, where, step.start)
            life.refused.append((step.index, why))
            step.refused.append((life.index, why))

    def _work(self, step: Step, record: Mapping[str, Any], where: str) -> None:
        most = _whole(self.config.get("num_blocks")) or LARGEST
        for name, table in record["tables"].items():
            life = self._find(name, where, step.start)
            wrong = next((block for block in table if not 0 <= block < most), None)
            if wrong is not None:
                raise FormatError(f"{where}: block {_short(wrong)} of {name!r} is not in the pool")
            life.tables.append((step.index, tuple(table)))
        for name, phase, first, count, samples in record["seqs"]:
            life = self._find(name, where, step.start)
            if phase not in ("prefill", "decode"):
                raise FormatError(f"{where}: {name!r} is in the phase {phase[:40]!r}, not prefill or decode")
            work = Work(step.index, phase, _count(first, where), _count(count, where), samples)
            life.work.append(work)
            step.ran.append((life.index, work))
            if life.scheduled is None:
                life.scheduled = step.start
            if life.reason is not None:  # ended while this step was under way: the table was written once more
                life.tables.append((step.index + 1, ()))
                life.last_step = step.index

    def _tokens(self, step: Step, record: Mapping[str, Any], where: str) -> None:
        for name, token, logprob, reason, error in record["tokens"]:
            life = self._find(name, where, step.start)
            if token is not None:
                step.sampled += 1
                life.token_ids.append(_count(token, where))
                life.token_times.append(step.end)
                life.token_steps.append(step.index)
                life.logprobs.append(logprob)
            if reason is not None:
                step.finished.append(life.index)
                self._close(life, reason, error, step.end, step.index)

    def _close(self, life: Life, reason: str, error: str | None, now: float, last_step: int) -> None:
        life.reason, life.error, life.finished, life.last_step = reason, error, now, last_step
        if life.tables and life.tables[-1][1]:
            life.tables.append((last_step + 1, ()))

    # ---- names -----------------------------------------------------------------------------------------------------

    def _find(self, name: str, where: str, now: float) -> Life:
        """The request of that name; `id.2` of a request with siblings comes to life when it is first named."""
        if name in self._known:
            return self._known[name]
        family, _, number = name.rpartition(".")
        parent = self._known.get(family)
        counts = parent is not None and number.isascii() and number.isdigit() and len(number) < 9
        if parent is not None and counts and 1 <= int(number) <= parent.siblings:
            born = parent.arrival, parent.queued, parent.prompt, parent.max_tokens
            return self._born(name, *born, priority=parent.priority, parent=parent.index)
        if self.partial:
            return self._born(name, now, now, [], 0)
        raise FormatError(f"{where} names the request {name[:40]!r}, which was never queued")

    def _born(self, name: str, arrival: float, queued: float, prompt: list[int], max_tokens: int, **more: Any) -> Life:
        life = Life(len(self.lives), name, arrival, queued, prompt, max_tokens, **more)
        self.lives.append(life)
        self._known[name] = life
        return life


def _time(value: float, where: str) -> float:
    """A time in seconds that can be drawn. JSON has no infinity, but 1e999 is one."""
    if not abs(value) < LARGEST:
        raise FormatError(f"{where} has the time {_short(value)}, which is no time in seconds")
    return float(value)


def _count(value: int, where: str) -> int:
    if not 0 <= value < LARGEST:
        raise FormatError(f"{where} has the number {_short(value)} where a count belongs")
    return value


def _short(value: float) -> str:
    """A number that may have thousands of digits, which Python refuses to write."""
    return str(value) if abs(value) < LARGEST * LARGEST else "of absurd size"
