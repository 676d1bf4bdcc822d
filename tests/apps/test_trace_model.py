"""A trace as numbers: worked out on paper, held against the real scheduler, and never trusted."""

import doctest
import importlib
import io
import json
import random
from dataclasses import asdict

import pytest
from hand_trace import HEADER, as_file, asked, closed, long_run, records, step, token
from scheduling import World, make_request

from minifer.apps.view.trace_blocks import History, Usage, computed_at
from minifer.apps.view.trace_model import Stay, Trace, build, load
from minifer.errors import FormatError
from minifer.metrics import from_request
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.static import StaticScheduler
from minifer.trace import TraceWriter


@pytest.fixture
def trace() -> Trace:
    return load(as_file(records()))


def test_the_lives_of_two_requests(trace: Trace) -> None:
    a, b = trace.lives
    assert (a.id, a.arrival, a.finished, a.reason, a.token_ids) == ("a", 0.0, 2.25, "length", [7, 8, 9])
    assert (b.arrival, b.scheduled, b.preempted, b.refused) == (0.5, 1.0, [(2, "a needed a block")], [(2, "no block")])
    first, second = a.metrics(), b.metrics()
    assert (first.ttft, first.itl, first.queue_time, first.prefill_time) == (1.0, (0.5, 0.75), 0.0, 1.0)
    assert (second.ttft, second.itl, second.queue_time, second.e2e) == (1.0, (1.5,), 0.5, 2.5)
    assert (second.cached_tokens, second.num_preemptions, second.output_tokens) == (4, 1, 2)
    assert (trace.zero, trace.seconds, trace.model, trace.block_size, trace.num_blocks) == (10.0, 3.0, "paper", 4, 6)
    assert (trace.piece(7), trace.piece(8)) == (" seven", None)


def test_steps(trace: Trace) -> None:
    assert [(s.number, s.start, s.end, s.batch, s.tokens(), s.tokens("prefill"), s.cached) for s in trace.steps] == [
        (1, 0.0, 1.0, 1, 6, 6, 0),
        (2, 1.0, 1.5, 2, 2, 1, 4),
        (3, 1.5, 2.25, 1, 1, 0, 0),
        (4, 2.25, 3.0, 1, 2, 2, 4),
    ]
    assert [s.waiting for s in trace.steps] == [0, 0, 1, 0]
    assert [s.finished for s in trace.steps] == [[], [], [0], [1]]


def test_slots_are_given_on(trace: Trace) -> None:
    assert trace.stays() == [Stay(0, 0, 0, 2), Stay(1, 1, 1, 1), Stay(1, 0, 3, 3)]
    assert trace.idle_spans() == []


def test_a_closed_batch_keeps_its_seats() -> None:
    trace = closed()
    assert trace.stays() == [Stay(0, 0, 0, 0), Stay(1, 1, 0, 2), Stay(2, 0, 3, 3)]
    assert trace.idle_spans() == [(0, 1, 2)]


def test_blocks_over_time(trace: Trace) -> None:
    history = History(trace)
    assert history.usage() == [
        Usage(held=2, shared=0, saved=0, idle=0, blank=4, written=6, wasted=2),
        Usage(held=3, shared=1, saved=1, idle=0, blank=3, written=8, wasted=4),
        Usage(held=2, shared=0, saved=0, idle=0, blank=4, written=8, wasted=0),
        Usage(held=2, shared=0, saved=0, idle=1, blank=3, written=6, wasted=2),
    ]
    now = {block: (cell.owners, cell.used, cell.idle) for block, cell in history.at(3).items()}
    assert now == {0: ([1], 4, False), 2: ([1], 2, False), 1: ([], 4, True)}
    assert [computed_at(trace.lives[1], index) for index in range(4)] == [0, 5, 5, 6]


@pytest.mark.parametrize("kind", [ContinuousScheduler, StaticScheduler])
def test_the_model_agrees_with_the_scheduler_that_was_recorded(kind: type) -> None:
    """Metrics, held and findable blocks, step by step, on random workloads with hits, chunks and preemptions."""
    preempted = found = 0
    for seed in range(12):
        world, file, idle = World(12, 4, kind, max_num_seqs=4, max_num_batched_tokens=40), io.StringIO(), []
        world.engine.trace = TraceWriter(file, config=asdict(world.config))
        run = world.run

        def watched(plan, requests, world=world, idle=idle, run=run):
            idle.append(set(world.scheduler.pool.prefix.idle))
            return run(plan, requests)

        world.run = watched
        drawn = random.Random(seed)
        common = [drawn.randrange(900) for _ in range(8)]
        for number in range(10):
            own = [drawn.randrange(900) for _ in range(drawn.randint(1, 9))]
            world.add(make_request(f"q{number}", common[: drawn.choice((0, 4, 8))] + own, drawn.randint(1, 12)))
            world.step()
        world.finish_all()
        trace = load(io.StringIO(file.getvalue()))
        history = History(trace)
        ran = [s for s in trace.steps if s.ran]
        for at, one in enumerate(ran):
            cells = history.at(one.index)
            assert sum(bool(c.owners) for c in cells.values()) == trace.num_blocks - one.free_blocks
            assert {block for block, c in cells.items() if c.idle} == idle[at]
            assert sum(c.used for c in cells.values() if c.owners) == history.usage()[one.index].written
        assert [life.metrics() for life in trace.lives] == [from_request(r) for r in world.asked]
        preempted += sum(len(life.preempted) for life in trace.lives)
        found += sum(s.cached for s in trace.steps)
    assert found > 50
    assert preempted > 5 or kind is StaticScheduler


def test_answers_of_one_prompt_share_its_blocks() -> None:
    world, file = World(12, 4, max_num_seqs=4), io.StringIO()
    world.engine.trace = TraceWriter(file, config=asdict(world.config))
    world.add(make_request("a", 9, 3, n=3))
    world.finish_all()
    trace = load(io.StringIO(file.getvalue()))
    assert [life.id for life in trace.lives] == ["a", "a.1", "a.2"]
    assert [life.cached for life in trace.lives] == [0, 8, 8]
    usage = History(trace).usage()
    assert [row.held for row in usage] == [12 - one.free_blocks for one in trace.steps]
    assert max(row.shared for row in usage) >= 2


def test_a_thousand_requests_take_no_time_at_all() -> None:
    trace = build(long_run())
    assert (len(trace.lives), len(trace.steps)) == (1000, 315)
    assert {stay.slot for stay in trace.stays()} == set(range(16))
    usage = History(trace).usage()
    assert (usage[0].held, usage[0].written, usage[4].written) == (32, 48, 16 * 7)


def change(number: int, **more: object) -> list[dict]:
    """The records with fields of one of them changed."""
    lines = json.loads(json.dumps(records()))
    lines[number] |= more
    return lines


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (change(2, seqs=[["z", "prefill", 0, 6, True]]), "step 1 of the trace names the request 'z'"),
        (change(2, seqs=[["a.1", "prefill", 0, 6, True]]), "never queued"),
        (change(2, seqs=[["a", "thinking", 0, 6, True]]), "phase 'thinking'"),
        (change(2, seqs=[["a", "prefill", -1, 6, True]]), "number -1"),
        (change(2, seqs=[["a", "prefill", 0, 10**60, True]]), "absurd size"),
        (change(2, tables={"a": [0, 6]}), "block 6 of 'a' is not in the pool"),
        (change(2, tables={"a": [-1]}), "block -1"),
        (change(2, end=9.0), "step 1 of the trace goes back in time"),
        (change(4, step=1), "goes back in time"),
        (change(4, start=10.5), "goes back in time"),
        (change(3, id="a"), "queued twice"),
        (change(3, arrival=float("1e300")), "no time in seconds"),
        (change(3, siblings=-2), "number -2"),
        (change(2, tokens=[["a", -4, None, None, None]]), "number -4"),
    ],
)
def test_what_contradicts_itself_is_named(lines: list[dict], says: str) -> None:
    with pytest.raises(FormatError) as caught:
        load(as_file(lines))
    assert says in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_billion_siblings_cost_nothing() -> None:
    lines = [HEADER, asked("a", 0.0, [1], siblings=10**9), step(1, 0.0, 1.0, [["a.7", "prefill", 0, 1, True]])]
    assert [life.id for life in load(as_file(lines)).lives] == ["a", "a.7"]


def test_a_record_may_begin_in_the_middle_of_a_run() -> None:
    lines = [HEADER, step(7, 5.0, 6.0, [["x", "decode", 9, 1, True]], tokens=[token("x", 3)])]
    with pytest.raises(FormatError, match="never queued"):
        build(lines)
    life = build(lines, partial=True).lives[0]
    assert (life.id, life.prompt, life.token_times, life.reason) == ("x", [], [1.0], None)


def test_a_run_that_was_cut_short_or_never_began() -> None:
    trace = build(records()[:-2])
    assert trace.lives[0].reason is None
    assert trace.stays() == [Stay(0, 0, 0, 1), Stay(1, 1, 1, 1)]
    nothing = build([HEADER])
    assert (nothing.seconds, nothing.stays(), History(nothing).usage()) == (0.0, [], [])


def test_ended_from_outside() -> None:
    """Between two steps, and while a step runs: its blocks are gone in the next one."""
    end = {"kind": "end", "time": 11.2, "id": "b", "reason": "abort", "error": None}
    last = step(3, 11.5, 12.0, [["a", "decode", 7, 1, True]])
    for place in (4, 5):  # before the line of the step that runs b, or after it
        lines = [*records()[:5], last]
        lines.insert(place, end)
        trace = build(lines)
        life = trace.lives[1]
        assert (life.reason, life.last_step, round(life.finished or 0, 3)) == ("abort", 1, 1.2)
        assert [row.held for row in History(trace).usage()] == [2, 3, 2]


def test_an_unknown_request_is_named(trace: Trace) -> None:
    with pytest.raises(FormatError, match="no request 'c'; it has a, b"):
        trace.life("c")


@pytest.mark.parametrize(
    "name", ["trace_model", "trace_blocks", "trace_build", "trace_data", "trace_text", "trace_perfetto"]
)
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(f"minifer.apps.view.{name}")
    assert doctest.testmod(module).failed == 0
