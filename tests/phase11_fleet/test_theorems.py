"""What must hold of any fleet: work is conserved, nobody starves, a seed says everything, and queues obey the books."""

import json
import math

import pytest
from fleet_times import fitted
from hypothesis import given, settings
from hypothesis import strategies as st

from minifer.apps.serve.router import POLICIES
from minifer.apps.simulate.capacity import Setting, attained, capacity
from minifer.apps.simulate.fleet import Fleet, Replica
from minifer.apps.simulate.machine import datasheet_machine, model_config
from minifer.apps.simulate.outcome import simulate
from minifer.apps.simulate.steptime import Features
from minifer.apps.simulate.tally import Gaps
from minifer.apps.workloads import Arrival, arrival_times, make_workload
from minifer.errors import UsageError
from minifer.formats.trace_lines import read_trace
from minifer.limits import EngineConfig
from minifer.metrics import percentile

TIME = fitted((1, 2, 64), (0.011, 0.013, 0.09), key_s=1e-5, pair_s=1e-6)


def fleet_of(config, replicas=1, policy="round-robin", time=TIME, window=4096):
    return Fleet(lambda _: Replica(config, time, window), replicas, policy)


@st.composite
def traffic(draw):
    at, arrivals = 0.0, []
    for index in range(draw(st.integers(1, 40))):
        at += draw(st.sampled_from([0.0, 0.01, 0.3]))
        shared = (7,) * draw(st.sampled_from([0, 16, 40]))
        arrivals.append(Arrival(index, at, (*shared, 100 + index), draw(st.integers(1, 30))))
    return arrivals


@settings(max_examples=100)
@given(traffic(), st.integers(1, 4), st.sampled_from(POLICIES))
def test_work_is_conserved(arrivals, replicas, policy):
    """Every request is answered by one replica with as many tokens as it asked for, and nothing is left over."""
    fleet = fleet_of(EngineConfig(num_blocks=30, max_num_seqs=4, max_num_batched_tokens=64), replicas, policy)
    tally = fleet.run(arrivals)
    answered = sorted((m.prompt_tokens, m.output_tokens) for m in tally.finished)
    assert answered == sorted((len(a.prompt_ids), a.output_len) for a in arrivals)
    assert sum(r.engine.scheduler.num_added for r in fleet.replicas) == len(arrivals)
    for replica in fleet.replicas:
        assert not replica.requests
        assert replica.load(math.inf) == 0
        assert replica.engine.scheduler.pool.num_free == 30
        assert replica.executor.busy_s <= replica.clock.now() + 1e-9


@settings(max_examples=60)
@given(traffic(), st.integers(1, 4), st.sampled_from(POLICIES))
def test_no_replica_is_idle_while_it_has_work(arrivals, replicas, policy):
    """The clock of a replica moves only while it computes, or when it has nothing to do."""
    fleet = fleet_of(EngineConfig(num_blocks=60, max_num_seqs=4, max_num_batched_tokens=64), replicas, policy)
    everything_at_once = [Arrival(a.index, 0.0, a.prompt_ids, a.output_len) for a in arrivals]
    fleet.run(everything_at_once)
    for replica in fleet.replicas:
        assert replica.executor.busy_s == pytest.approx(replica.clock.now())


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_starves(policy):
    """One prompt in ten thousand is unlike all others, whose shared prefix one replica holds; all are served, and
    nobody waits longer than the work before him takes."""
    arrivals = [Arrival(i, 0.002 * i, ((7,) * 32 if i % 10 else (9,) * 32) + (100 + i,), 4) for i in range(600)]
    fleet = fleet_of(EngineConfig(num_blocks=200, max_num_seqs=8, max_num_batched_tokens=64), 3, policy)
    tally = fleet.run(arrivals)
    assert len(tally.finished) == 600
    added = [replica.engine.scheduler.num_added for replica in fleet.replicas]
    assert max(added) < 2 * min(added)  # even where the cache says to go to one of them
    waits = sorted(m.queue_time for m in tally.finished)
    assert waits[-1] <= max(r.clock.now() for r in fleet.replicas)
    assert waits[-1] < 3 * percentile(waits, 50) + 1


def test_prefix_affinity_finds_more_than_dealing_out():
    arrivals = make_workload(
        "prefix_repetition",
        num_prompts=120,
        seed=3,
        request_rate=20,
        vocab_size=500,
        prefix_repetition_prefix_len=64,
        prefix_repetition_suffix_len=8,
        prefix_repetition_num_prefixes=12,
        prefix_repetition_output_len=4,
    )
    found = {}
    for policy in POLICIES:
        fleet = fleet_of(EngineConfig(num_blocks=24, max_num_seqs=4, max_num_batched_tokens=64), 4, policy)
        found[policy] = sum(m.cached_tokens for m in fleet.run(arrivals).finished)
    assert found["prefix-affinity"] > 1.5 * found["round-robin"]


def test_the_router_does_not_see_into_the_future():
    """A request that ends in a step which is still under way is unfinished for the router."""
    slow = fitted((1, 2), (1.0, 1.0))
    fleet = fleet_of(EngineConfig(num_blocks=30), 2, "least-loaded", slow)
    seen = []
    fleet.on_choice = lambda arrival, replica, reason: seen.append((arrival.index, replica, reason))
    fleet.run(
        [Arrival(0, 0.0, (1,), 1), Arrival(1, 0.5, (2,), 1), Arrival(2, 0.75, (3,), 1), Arrival(3, 1.75, (4,), 1)]
    )
    # At 0.75 both are busy until 1.0 and 1.5; at 1.75 replica 0 still computes the third until 2.0, replica 1 is done.
    assert [replica for _, replica, _ in seen] == [0, 1, 0, 1]
    assert seen[3][2] == "least loaded: 0 unfinished"


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    machine = datasheet_machine("l4", model_config("tiny"), max_num_seqs=8, max_num_batched_tokens=128)
    texts = []
    for run in (1, 2):
        path = tmp_path / f"trace-{run}.jsonl"
        arrivals = make_workload(
            num_prompts=30,
            seed=5,
            request_rate=400,
            vocab_size=900,
            random_input_len=40,
            random_output_len=9,
            random_range_ratio=0.5,
        )
        found = simulate(machine, arrivals, replicas=2, policy="least-loaded", trace=path)
        found["simulation"].pop("wall_s")
        texts.append((json.dumps(found), path.read_bytes(), path.with_name(f"{path.name}.1").read_bytes()))
    assert texts[0] == texts[1]


def test_the_trace_of_a_simulation_is_a_trace(tmp_path):
    machine = datasheet_machine("l4", model_config("tiny"), max_num_seqs=8, max_num_batched_tokens=128)
    arrivals = make_workload(num_prompts=12, seed=5, vocab_size=900, random_input_len=40, random_output_len=9)
    simulate(machine, arrivals, trace=tmp_path / "t.jsonl")
    kinds = [record["kind"] for record in read_trace(tmp_path / "t.jsonl")]
    assert kinds[0] == "header"
    assert kinds.count("request") == 12
    assert kinds.count("step") >= 9


# ---- queueing theory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_seat_and_one_token_is_the_queue_m_d_1(load):
    """Poisson arrivals, one server, a service time D that never varies: the mean wait is D load / (2 (1 - load)).

    Pollaczek and Khinchine. The bound is five standard errors of a mean over batches of the run.
    """
    service = 0.02
    time = fitted((1, 2), (service, service))
    times = arrival_times(16_000, load / service, seed=11)
    fleet = fleet_of(EngineConfig(num_blocks=2, max_num_seqs=1, enable_prefix_caching=False), time=time)
    tally = fleet.run(Arrival(i, at, (1, 2), 1) for i, at in enumerate(times))
    waits = [m.queue_time for m in tally.finished]
    batches = [sum(waits[i : i + 400]) / 400 for i in range(0, len(waits), 400)]
    mean = sum(batches) / len(batches)
    error = math.sqrt(sum((b - mean) ** 2 for b in batches) / len(batches) / (len(batches) - 1))
    expected = service * load / (2 * (1 - load))
    assert mean == pytest.approx(expected, abs=5 * error)
    assert error < 0.15 * expected  # else the comparison would say nothing


@pytest.mark.parametrize("seats", [1, 3, 8])
def test_a_full_batch_serves_seats_tokens_per_step(seats):
    """With all seats always taken, tokens per second are seats over the time of a step of so many rows."""
    time = fitted((1, 2, 8), (0.010, 0.012, 0.020))
    config = EngineConfig(num_blocks=400, max_num_seqs=seats, max_num_batched_tokens=512)
    tally = fleet_of(config, time=time).run([Arrival(i, 0.0, (i, 1), 500) for i in range(4 * seats)])
    tokens = sum(m.output_tokens for m in tally.finished)
    assert tokens / tally.duration == pytest.approx(seats / time.seconds(Features(seats, 0, seats)), rel=0.01)


def test_a_fleet_of_n_serves_n_times_as_much():
    arrivals = [Arrival(i, 0.0, (i, 1), 100) for i in range(64)]
    config = EngineConfig(num_blocks=400, max_num_seqs=4)
    one, four = (fleet_of(config, n).run(arrivals).duration for n in (1, 4))
    assert one / four == pytest.approx(4, rel=1e-6)


# ---- gaps, capacity --------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=200), st.floats(0, 100))
def test_counted_gaps_have_the_percentiles_of_the_list(micros, percent):
    gaps = Gaps()
    gaps.add([m / 1e6 for m in micros])
    assert gaps.percentile(percent) == pytest.approx(percentile(micros, percent))


@pytest.fixture
def machine():
    return datasheet_machine("l4", model_config("tiny"), efficiency=0.02, max_num_seqs=4, max_num_batched_tokens=64)


def test_capacity_is_the_edge(machine):
    """At the rate found the promise is kept, and a tenth above it is not."""
    slo = {"ttft": 30.0, "tpot": 5.0}

    def workload(rate):
        return make_workload(
            num_prompts=120, seed=2, request_rate=rate, vocab_size=900, random_input_len=60, random_output_len=20
        )

    base = Setting(chunk=64)
    found = capacity(machine, base, workload, slo, target=0.9)
    assert attained(machine, base, workload(found.rate), slo) == found.attained >= 0.9
    assert attained(machine, base, workload(found.rate * 1.1), slo) < 0.9
    twice = capacity(machine, Setting(chunk=64, replicas=2, policy="least-loaded"), workload, slo, target=0.9)
    # More than twice, because two share their bursts.
    assert 1.8 < twice.rate / found.rate < 3.2


def test_a_promise_that_nobody_can_keep_has_no_capacity(machine):
    arrivals = [Arrival(i, float(i), (1, 2, 3), 4) for i in range(20)]
    found = capacity(machine, Setting(), lambda _: arrivals, {"ttft": 1e-6}, target=0.9)
    assert (found.rate, found.attained) == (0.0, 0.0)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_time_does_not_run_backwards():
    arrivals = [Arrival(0, 1.0, (1,), 1), Arrival(1, 0.5, (1,), 1)]
    with pytest.raises(UsageError, match=r"time runs backwards: arrival 1 comes at 0\.5 s, after one at 1\.0 s"):
        fleet_of(EngineConfig(num_blocks=4)).run(arrivals)


def test_a_request_larger_than_the_machine_is_refused_and_counted():
    fleet = fleet_of(EngineConfig(num_blocks=4, block_size=4))
    tally = fleet.run([Arrival(0, 0.0, (1,) * 20, 3), Arrival(1, 0.0, (1, 2), 3)])
    assert [index for index, _ in tally.refused] == [0]
    assert "needs 6 KV blocks for 20 prompt tokens + 3 new ones, but the whole pool has 4" in tally.refused[0][1]
    assert len(tally.finished) == 1


def test_nobody_is_answered_before_he_asked():
    fleet = fleet_of(EngineConfig(num_blocks=60, max_num_seqs=4), 2, "least-loaded")
    tally = fleet.run(Arrival(i, 0.05 * i, (i, 1, 2), 30) for i in range(50))
    assert all(m.ttft > 0 and m.e2e >= m.ttft for m in tally.finished)
