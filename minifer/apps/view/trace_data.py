"""What a figure of a trace shows, as plain numbers: dictionaries and lists that JSON can hold.

A figure is drawn from one of these and from nothing else, `minifer trace --json` prints them, and the tests of the
figures are tests of these numbers. Times are milliseconds after the earliest arrival.

    timeline   slots of the batch: who sits where, in prefill or decode, and which seats are empty and paid for
    requests   the life of each request: waiting, prefill, decode, preempted
    latency    one request: queue, prefill, every token, TTFT and ITL
    load       each step: tokens by phase, requests running and waiting, preemptions
    cache      prefix cache: tokens found and tokens computed, by request
    blocks     the map of KV blocks over time, and how much of them is used, shared, wasted
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from minifer.apps.view.trace_blocks import History
from minifer.apps.view.trace_model import Life, Stay, Step, Trace, Work

Data = dict[str, Any]


def ms(seconds: float) -> float:
    """Milliseconds, to the microsecond, which is what a trace can tell."""
    return round(seconds * 1e3, 3)


def timeline(trace: Trace) -> Data:
    """Bars of the slots, and what they add up to: seat-steps that worked and seat-steps that were empty."""
    stays = trace.stays()
    bars = [bar for stay in stays for bar in _stay_bars(trace, stay)]
    for slot, first, last in trace.idle_spans():
        bars.append(_bar(trace, "empty seat", first, last) | {"slot": slot, "id": None})
    return {
        "slots": 1 + max((stay.slot for stay in stays), default=-1),
        "bars": bars,
        "steps": len(trace.steps),
        "ms": ms(trace.seconds),
        "seat_steps": sum(step.batch for step in trace.steps),
        "empty_seat_steps": sum(step.idle_seats for step in trace.steps),
        "scheduler": str(trace.about.get("scheduler", "")),
    }


def _stay_bars(trace: Trace, stay: Stay) -> Iterator[Data]:
    life = trace.lives[stay.life]
    works = [work for work in life.work if stay.first <= work.step <= stay.last]
    for state, first, last, tokens in _phases(works, stay.first, stay.last):
        yield _bar(trace, state, first, last) | {"slot": stay.slot, "id": life.id, "tokens": tokens}


def _phases(works: list[Work], first: int, last: int) -> Iterator[tuple[str, int, int, int]]:
    """Runs of steps in one phase, as (state, first step, last step, tokens fed in); in between it sat the step out."""
    at = first
    for (phase, _), run in groupby(enumerate(works), key=lambda pair: (pair[1].phase, pair[1].step - pair[0])):
        parts = [work for _, work in run]
        if parts[0].step > at:
            yield "sitting out", at, parts[0].step - 1, 0
        yield phase, parts[0].step, parts[-1].step, sum(work.count for work in parts)
        at = parts[-1].step + 1
    if at <= last:
        yield "sitting out", at, last, 0


def _bar(trace: Trace, state: str, first: int, last: int) -> Data:
    start, end = trace.steps[first].start, trace.steps[last].end
    return {"state": state, "start": ms(start), "end": ms(end), "steps": last - first + 1}


def requests(trace: Trace) -> Data:
    """One row for each request, in the order of arrival."""
    stays: dict[int, list[Stay]] = {life.index: [] for life in trace.lives}
    for stay in trace.stays():
        stays[stay.life].append(stay)
    return {"rows": [_row(trace, life, stays[life.index]) for life in trace.lives], "ms": ms(trace.seconds)}


def _row(trace: Trace, life: Life, stays: list[Stay]) -> Data:
    metrics = life.metrics()
    return {
        "id": life.id,
        "arrival": ms(life.arrival),
        "bars": list(_life_bars(trace, life, stays)),
        "tokens": [ms(stamp) for stamp in life.token_times],
        "preempted": [ms(trace.steps[step].start) for step, _ in life.preempted],
        "end": None if life.finished is None else ms(life.finished),
        "reason": life.reason,
        "prompt": len(life.prompt),
        "cached": life.cached,
        "output": len(life.token_ids),
        "ttft": None if metrics.ttft is None else ms(metrics.ttft),
        "itl": ms(statistics.median(metrics.itl)) if metrics.itl else None,
        "worst_itl": ms(max(metrics.itl)) if metrics.itl else None,
        "queue": None if metrics.queue_time is None else ms(metrics.queue_time),
    }


def _life_bars(trace: Trace, life: Life, stays: list[Stay]) -> Iterator[Data]:
    """From the arrival on: waiting, then the phases of each stay, with the time after a preemption between them."""
    since, state = life.arrival, "waiting"
    for stay in stays:
        start = trace.steps[stay.first].start
        if start > since:
            yield {"state": state, "start": ms(since), "end": ms(start)}
        for bar in _stay_bars(trace, stay):
            yield {name: bar[name] for name in ("state", "start", "end", "tokens")}
        since, state = trace.steps[stay.last].end, "preempted"
    end = trace.seconds if life.finished is None else life.finished
    if end > since and (not stays or life.last_step is None or life.last_step > stays[-1].last):
        yield {"state": state, "start": ms(since), "end": ms(end)}


def latency(trace: Trace, request_id: str | None = None) -> Data:
    """One request, by default the first that gave a token."""
    named = (life for life in trace.lives if life.token_times)
    life = trace.life(request_id) if request_id is not None else next(named, None)
    if life is None:
        return {"id": None, "tokens": []}
    metrics = life.metrics()
    optional = {"ttft": metrics.ttft, "queue": metrics.queue_time, "prefill": metrics.prefill_time,
                "decode": metrics.decode_time, "tpot": metrics.tpot, "e2e": metrics.e2e}  # fmt: skip
    return {
        "id": life.id,
        **{name: None if value is None else ms(value) for name, value in optional.items()},
        "itl": [ms(gap) for gap in metrics.itl],
        "median_itl": ms(statistics.median(metrics.itl)) if metrics.itl else None,
        "tokens": [
            {"time": ms(stamp - life.arrival), "id": token, "piece": trace.piece(token)}
            for stamp, token in zip(life.token_times, life.token_ids, strict=True)
        ],
        "chunks": [
            {"start": ms(trace.steps[w.step].start - life.arrival), "end": ms(trace.steps[w.step].end - life.arrival),
             "tokens": w.count} for w in life.works("prefill")
        ],
        "prompt": len(life.prompt),
        "cached": life.cached,
        "preemptions": len(life.preempted),
        "reason": life.reason,
    }  # fmt: skip


def load(trace: Trace) -> Data:
    """One row for each step."""
    return {"rows": [_load_row(step) for step in trace.steps], "budget": trace.config.get("max_num_batched_tokens")}


def _load_row(step: Step) -> Data:
    return {
        "step": step.number,
        "start": ms(step.start),
        "end": ms(step.end),
        "prefill": step.tokens("prefill"),
        "decode": step.tokens("decode"),
        "batch": step.batch,
        "running": step.running,
        "waiting": step.waiting,
        "empty_seats": step.idle_seats,
        "free_blocks": step.free_blocks,
        "cached": step.cached,
        "preempted": len(step.preempted),
        "sampled": step.sampled,
    }


def cache(trace: Trace) -> Data:
    """For every admission: tokens that the prefix cache had, and those that had to be computed."""
    rows: list[Data] = []
    for life in trace.lives:
        for nth, (step, found) in enumerate(life.admitted):
            until = life.admitted[nth + 1][0] if nth + 1 < len(life.admitted) else len(trace.steps)
            computed = sum(w.count for w in life.works("prefill") if step <= w.step < until)
            rows.append({"id": life.id, "again": nth > 0, "step": trace.steps[step].number, "found": found,
                         "computed": computed})  # fmt: skip
    found, computed = sum(row["found"] for row in rows), sum(row["computed"] for row in rows)
    rate = round(found / (found + computed), 4) if found + computed else None
    return {"rows": rows, "found": found, "computed": computed, "hit_rate": rate}


def blocks(trace: Trace) -> Data:
    """Every hold of a block with the times at which it fills, every idle time, and the pool's use step by step."""
    history = History(trace)
    computed = {life.index: [(work.step, work.computed) for work in life.work] for life in trace.lives}
    holds = []
    for hold in history.holds:
        steps = [(step, history.used(hold.place, done)) for step, done in computed[hold.life]
                 if hold.first <= step <= hold.last]  # fmt: skip
        found = history.at_start(hold)
        fill = [(trace.steps[hold.first].start, found), *((trace.steps[step].end, used) for step, used in steps)]
        kept = [fill[i] for i in range(len(fill)) if i == 0 or fill[i][1] != fill[i - 1][1]]
        holds.append({"block": hold.block, "id": trace.lives[hold.life].id, "owner": hold.life, "place": hold.place,
                      "start": ms(trace.steps[hold.first].start), "end": ms(trace.steps[hold.last].end),
                      "fill": [[ms(at), used] for at, used in kept]})  # fmt: skip
    idle = [{"block": free.block, "start": ms(trace.steps[free.first].start), "end": ms(trace.steps[free.last].end)}
            for free in history.idle]  # fmt: skip
    usage = [use._asdict() | {"start": ms(step.start), "end": ms(step.end)}
             for step, use in zip(trace.steps, history.usage(), strict=True)]  # fmt: skip
    return {"num_blocks": trace.num_blocks, "block_size": trace.block_size, "holds": holds, "idle": idle,
            "usage": usage, "bytes_per_token": trace.about.get("kv_bytes_per_token")}  # fmt: skip


def shared_spans(holds: Sequence[Data]) -> list[tuple[int, float, float]]:
    """When each block stood in more than one table: (block, start, end)."""
    events: dict[int, list[tuple[float, int]]] = {}
    for hold in holds:
        events.setdefault(hold["block"], []).extend([(hold["start"], 1), (hold["end"], -1)])
    spans: list[tuple[int, float, float]] = []
    for block, changes in events.items():
        count, since = 0, 0.0
        for at, change in sorted(changes):
            if count < 2 <= count + change:
                since = at
            elif count >= 2 > count + change:
                spans.append((block, since, at))
            count += change
    return spans


KINDS: dict[str, Callable[..., Data]] = {
    "timeline": timeline,
    "requests": requests,
    "latency": latency,
    "load": load,
    "cache": cache,
    "blocks": blocks,
}
"""What `minifer trace --what` can show, by name; `latency` may be given a request's id."""
