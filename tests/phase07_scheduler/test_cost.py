"""What deciding costs, counted instead of timed: instructions of Python per sequence and step.

The count is exact for a version of Python, and what it must not depend on is the point: the length of the contexts, of
the queue and of the pool. How long an instruction takes, `minifer bench batching MODEL --only scheduler` measures.
"""

import io
import json
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from scheduling import make_request

from minifer.clock import ManualClock
from minifer.engine import Engine
from minifer.limits import EngineConfig
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.plan import SeqResult, StepPlan, StepResult
from minifer.trace import TraceWriter

STEPS = 32
"""Two blocks' worth, so that taking a new block is in it."""


class Parrot:
    """An executor that always says 7, so that nothing is counted but the decisions."""

    def run(self, plan: StepPlan, requests: Any) -> StepResult:  # noqa: ARG002
        """A token for each sequence, at next to no cost."""
        return StepResult(tuple([SeqResult(seq.request_id, 7, 0.0) for seq in plan.seqs if seq.samples]))


def decoding(batch: int, context: int = 16, waiting: int = 0, spare: int = 0, **options: Any) -> Engine:
    """An engine whose `batch` answers are all in decode, with `waiting` more requests in the queue."""
    blocks = batch * (context // 16 + 8) + spare
    limits = EngineConfig(blocks, max_num_seqs=batch, max_num_batched_tokens=max(batch * context, batch))
    engine = Engine(ContinuousScheduler(limits), Parrot(), ManualClock(), **options)
    for number in range(batch + waiting):
        engine.add(make_request(f"r{number}", context, 100))
    engine.step()
    assert all(r.output_ids for r in engine.scheduler.running)
    assert len(engine.scheduler.running) == batch
    return engine


def instructions(call: Callable[[], Any], of: tuple[str, ...]) -> int:
    """How many instructions of Python `call` executes in the modules named."""
    count: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            count[frame.f_globals.get("__name__", "")] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return sum(times for name, times in count.items() if name.startswith(of))


def per_sequence(engine: Engine, of: tuple[str, ...] = ("minifer.scheduler", "minifer.kv_cache")) -> float:
    """Instructions per sequence and step, over `STEPS` decode steps."""
    batch = len(engine.scheduler.running)
    return instructions(lambda: [engine.step() for _ in range(STEPS)], of) / STEPS / batch


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the bounds are instructions of CPython 3.11")
def test_the_price_of_a_decision() -> None:
    """About 10 ns each in CPython 3.11, so below 10 us alone and below 5 us in company."""
    assert per_sequence(decoding(1)) < 850
    assert per_sequence(decoding(8)) < 550
    assert per_sequence(decoding(32)) < 525


@pytest.mark.parametrize("much", [{"context": 1600}, {"waiting": 300}, {"spare": 5000}], ids=str)
def test_what_it_does_not_depend_on(much: dict[str, int]) -> None:
    """A hundred times the context, a long queue, a large pool: to one in a hundred the same."""
    assert per_sequence(decoding(8, **much)) == pytest.approx(per_sequence(decoding(8)), rel=0.03)


def test_without_a_trace_its_code_never_runs() -> None:
    assert per_sequence(decoding(8), of=("minifer.trace", "json")) == 0
    assert per_sequence(decoding(8, trace=TraceWriter(io.StringIO())), of=("minifer.trace",)) > 0


def test_a_trace_costs_less_than_the_decision_it_records() -> None:
    """Which is itself a thousandth of a step; the rest is one call of the JSON encoder per step, written in C."""
    engine = decoding(8, trace=TraceWriter(io.StringIO()))
    assert per_sequence(engine, of=("minifer.trace", "json")) < 0.5 * per_sequence(decoding(8))


def test_a_trace_is_short_and_does_not_grow_with_the_context() -> None:
    """Of 100 blocks in a table a step writes none, unless one was added."""
    lengths = []
    for context in (16, 1600):
        file = io.StringIO()
        engine = decoding(8, context, trace=TraceWriter(file))
        start = file.tell()
        for _ in range(10):
            engine.step()
        lines = file.getvalue()[start:].splitlines()
        assert len(lines) == 10, "one line for each step"
        assert [json.loads(line)["tables"] for line in lines[1:]] == [{}] * 9
        lengths.append(sum(map(len, lines[1:])) / 9 / 8)
    assert max(lengths) < 100
    assert lengths[1] == pytest.approx(lengths[0], abs=2)
