"""The simulation decides nothing: with one replica its steps are the engine's, and a leap is many single steps."""

from types import SimpleNamespace

import pytest
from fleet_times import fitted
from hypothesis import given, settings
from hypothesis import strategies as st

from minifer.apps.serve.router import POLICIES
from minifer.apps.simulate.fleet import Fleet, Replica, request_of
from minifer.apps.simulate.steptime import Features
from minifer.apps.workloads import Arrival
from minifer.clock import ManualClock
from minifer.engine import Engine
from minifer.errors import CapacityError
from minifer.limits import EngineConfig
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.fake import FakeExecutor

TIME = fitted(
    (1, 2, 40),
    (0.011, 0.013, 0.09),
    logit_s=0.001,
    decode_s=0.0005,
    key_s=1e-5,
    chunk_s=0.002,
    pair_s=1e-6,
    chunk_key_s=2e-6,
)


class Plans:
    """A recorder that keeps what was decided, in words and with its blocks."""

    def __init__(self):
        self.seen = []

    def added(self, request, now):
        self.seen.append(("added", request.id, now))

    def stepped(self, plan, events, now):
        self.seen.append((str(plan), plan.seqs, plan.copies, [e.request_id for e in events if e.finish_reason], now))

    def ended(self, events):
        raise AssertionError(events)


@st.composite
def workloads(draw, most=24):
    """Arrivals with shared prefixes, bursts, and answers of one token, for a pool that is too small for all."""
    config = EngineConfig(
        num_blocks=draw(st.integers(6, 40)),
        block_size=draw(st.sampled_from([1, 3, 4, 16])),
        max_num_seqs=draw(st.integers(1, 5)),
        max_num_batched_tokens=draw(st.integers(5, 40)),
        enable_prefix_caching=draw(st.booleans()),
    )
    at, arrivals = 0.0, []
    for index in range(draw(st.integers(1, most))):
        at += draw(st.sampled_from([0.0, 0.0, 0.004, 0.05, 0.7]))
        prefix = (7,) * draw(st.sampled_from([0, 5, 17]))
        prompt = (*prefix, *(100 + index for _ in range(draw(st.integers(1, 30)))))
        arrivals.append(Arrival(index, at, prompt, draw(st.integers(1, 50))))
    return config, arrivals


def drive_engine(config, arrivals, window):
    """The oracle: an engine with the fake model on a virtual clock, fed by a plain loop; no fleet, no leap."""
    clock, plans = ManualClock(), Plans()
    fake = FakeExecutor(config.num_blocks, config.block_size)

    class Timed:
        def run(self, plan, requests):
            decodes = [s for s in plan.seqs if len(s.tokens) == 1]
            seen = sum(min(s.context, window) for s in decodes)
            chunks = tuple((len(s.tokens), s.context) for s in plan.seqs if len(s.tokens) > 1)
            logits = sum(s.samples for s in plan.seqs)
            clock.advance(TIME.seconds(Features(len(decodes), seen, logits, chunks)))
            return fake.run(plan, requests)

    engine = Engine(ContinuousScheduler(config), Timed(), clock, plans)
    todo = list(arrivals)
    while todo or engine.has_work:
        if not engine.has_work and todo[0].at > clock.now():
            clock.advance(todo[0].at - clock.now())
        while todo and todo[0].at <= clock.now():
            try:
                engine.add(request_of(todo.pop(0)))
            except CapacityError:
                continue
        if engine.has_work:
            engine.step()
    return plans.seen


@settings(max_examples=80)
@given(workloads())
def test_one_replica_takes_exactly_the_decisions_of_the_engine(workload):
    config, arrivals = workload
    plans = Plans()
    Fleet(lambda _: Replica(config, TIME, 1000, plans), 1).run(arrivals)
    simulated, real = plans.seen, drive_engine(config, arrivals, 1000)
    # The engine's tokens come from the fake model and differ; what was decided about them does not.
    assert [_without_tokens(s) for s in simulated] == [_without_tokens(s) for s in real]


def _without_tokens(seen):
    if seen[0] == "added":
        return seen[:2]
    said, seqs, copies, ended, now = seen
    return said, [seq._replace(tokens=len(seq.tokens)) for seq in seqs], copies, ended, now


def state_of(replica):
    """Everything about an engine that a later decision can depend on."""
    scheduler = replica.engine.scheduler
    pool = scheduler.pool
    prefix = (dict(pool.prefix._block_of), list(pool.prefix.idle), pool.prefix.evictions) if pool.prefix else None
    counts = (pool.allocated, pool.adjacent, pool.copied, scheduler.num_steps, scheduler.num_preemptions)
    return pool.refs, bytes(pool._blank), prefix, counts, replica.clock.now(), replica.num_steps


@settings(max_examples=80)
@given(workloads(), st.sampled_from([9, 33, 1000]), st.integers(1, 3), st.sampled_from(POLICIES))
def test_leaping_is_many_single_steps(workload, window, replicas, policy):
    config, arrivals = workload
    outcomes = []
    for leaps in (False, True):
        fleet = Fleet(lambda _, leaps=leaps: Replica(config, TIME, window, leaps=leaps), replicas, policy)
        tally = fleet.run(arrivals)
        outcomes.append((tally.finished, tally.gaps, tally.refused, [state_of(r) for r in fleet.replicas]))
        for replica in fleet.replicas:
            replica.engine.scheduler.pool.check()
    assert outcomes[0] == outcomes[1]


def test_a_long_answer_is_nearly_all_leap():
    fleet = Fleet(lambda _: Replica(EngineConfig(num_blocks=100), TIME, 1000), 1)
    fleet.run([Arrival(0, 0.0, (1, 2, 3), 500)])
    (replica,) = fleet.replicas
    assert replica.num_steps == 500
    assert replica.num_leapt == 498  # all but the prompt and the last token


def test_a_leap_ends_where_somebody_arrives():
    """A request that comes during a long answer is seated at the first step that starts after its arrival."""
    fleet = Fleet(lambda _: Replica(EngineConfig(num_blocks=100), TIME, 1000), 1)
    second = Arrival(1, 1.0, (9,) * 10, 2)
    tally = fleet.run([Arrival(0, 0.0, (1, 2, 3), 400), second])
    waited = min(metrics.queue_time for metrics in tally.finished if metrics.output_tokens == 2)
    assert 0 <= waited < TIME.seconds(Features(1, 400, 1))


@pytest.mark.parametrize("params", [{"n": 2}, {"stop_token_ids": (5,)}])
def test_answers_that_may_end_early_are_not_leapt_over(params, monkeypatch):
    import minifer.apps.simulate.fleet as fleet_module

    def with_params(arrival):
        request = request_of(arrival)
        values = {"n": 1, "max_tokens": arrival.output_len, "ignore_eos": True, "stop_token_ids": (), **params}
        return type(request)(request.id, request.prompt_ids, SimpleNamespace(**values), request.arrival)

    monkeypatch.setattr(fleet_module, "request_of", with_params)
    replica = Replica(EngineConfig(num_blocks=100), TIME, 1000)
    replica.add(with_params(Arrival(0, 0.0, (1, 2, 3), 40)))
    replica.step(1e9)
    before = replica.engine.scheduler.num_steps
    replica.step(1e9)
    assert replica.engine.scheduler.num_steps == before + 1
