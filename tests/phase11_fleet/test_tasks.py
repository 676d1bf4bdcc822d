"""The lab tasks of phase 11: the loop of the virtual clock, and a policy that has a price for everything."""

import pytest

from minifer.apps.simulate.fleet import Fleet, Replica
from minifer.apps.simulate.policies import cheapest, make_router
from minifer.apps.workloads import Arrival
from minifer.errors import UsageError
from minifer.limits import EngineConfig


class Slow:
    """Every step takes a second."""

    def seconds(self, features):  # noqa: ARG002
        return 1.0

    def decoding(self, decodes):  # noqa: ARG002
        return lambda _: 1.0


def fleet_of(replicas=1, policy="round-robin", leaps=True):
    config = EngineConfig(num_blocks=64, max_num_seqs=4, max_num_batched_tokens=64)
    return Fleet(lambda _: Replica(config, Slow(), 4096, leaps=leaps), replicas, policy)


@pytest.mark.task("11.1")
def test_everybody_is_answered(rng):
    """On the replica that the router chose; the tally has them all, and nothing is left over."""
    at, arrivals = 0.0, []
    for index in range(int(rng.integers(12, 20))):
        at += float(rng.uniform(0, 2))
        arrivals.append(
            Arrival(index, at, tuple(range(index, index + int(rng.integers(2, 30)))), int(rng.integers(1, 9)))
        )
    fleet, seen = fleet_of(3), []
    fleet.on_choice = lambda arrival, replica, _: seen.append((arrival.index, replica))
    tally = fleet.run(arrivals)
    assert seen == [(i, i % 3) for i in range(len(arrivals))]
    asked = sorted((len(a.prompt_ids), a.output_len) for a in arrivals)
    assert sorted((m.prompt_tokens, m.output_tokens) for m in tally.finished) == asked
    assert not any(replica.requests for replica in fleet.replicas)


@pytest.mark.task("11.1")
def test_who_is_there_when_a_step_begins_is_part_of_it():
    """The second request comes at 2.0, just when the first one's third step begins: both decode in it."""
    tally = fleet_of().run([Arrival(0, 0.0, (1, 2), 4), Arrival(1, 2.0, (3, 4), 1)])
    assert [(m.output_tokens, m.e2e) for m in tally.finished] == [(1, 1.0), (4, 4.0)]


@pytest.mark.task("11.1")
@pytest.mark.parametrize("leaps", [True, False])
def test_many_steps_at_once_end_at_the_next_arrival(leaps):
    """A long answer is under way; who comes at 3.5 has its first token at 5.0, not when the other has ended."""
    tally = fleet_of(leaps=leaps).run([Arrival(0, 0.0, (1, 2), 40), Arrival(1, 3.5, (3, 4), 1)])
    assert [(m.output_tokens, m.ttft) for m in tally.finished] == [(1, 1.5), (40, 1.0)]


@pytest.mark.task("11.1")
def test_the_replica_that_is_furthest_behind_goes_next():
    """Two replicas take turns by their clocks; at 2.25 the router knows that one of them has finished."""
    fleet, seen = fleet_of(2, "least-loaded"), []
    fleet.on_choice = lambda arrival, replica, why: seen.append((arrival.index, replica, why))
    fleet.run([Arrival(0, 0.0, (1,), 5), Arrival(1, 0.5, (2,), 1), Arrival(2, 1.0, (3,), 1), Arrival(3, 2.25, (4,), 1)])
    assert [(index, replica) for index, replica, _ in seen] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert [replica.num_steps for replica in fleet.replicas] == [5, 2]


@pytest.mark.task("11.1")
def test_no_traffic_no_time():
    """An empty workload ends at once; times that run backwards are refused."""
    assert fleet_of().run([]).finished == []
    with pytest.raises(UsageError, match="backwards"):
        fleet_of().run([Arrival(0, 1.0, (1,), 1), Arrival(1, 0.5, (1,), 1)])


@pytest.mark.task("11.2")
def test_a_hit_and_a_queue_have_one_currency(rng):
    """The replica with the least tokens to compute, each unfinished request counting `price` of them."""
    assert cheapest(100, [96, 0], [3, 0], price=20) == 0
    assert cheapest(100, [96, 0], [6, 0], price=20) == 1
    assert cheapest(1000, [0, 512, 256], [0, 5, 1], price=128) == 2
    matched, load = (16 * rng.permutation(9)).tolist(), rng.integers(0, 5, 9).tolist()
    cost = [m * -1 + 10 * n for m, n in zip(matched, load, strict=True)]
    assert cost[cheapest(200, matched, load, price=10)] == min(cost)


@pytest.mark.task("11.2")
def test_equals_go_to_the_idler_and_then_to_the_first(rng):
    """Where a hit just pays for a queue, the shorter queue; where all is equal, whose turn it is."""
    price = float(rng.integers(8, 64))
    assert cheapest(400, [2 * price, price, 0], [3, 2, 1], price=price) == 2
    assert cheapest(400, [0, 0, 0], [1, 1, 1], price=price) == 0
    assert type(cheapest(5, [0], [0])) is int


@pytest.mark.task("11.2")
def test_in_a_fleet_it_balances_and_remembers():
    """Without a cache to find, in turn; a known beginning is followed until two requests outweigh it."""
    router = make_router("cheapest", 3, block_size=16)
    assert [router.choose([i] * 16, [0, 0, 0]).replica for i in range(4)] == [0, 1, 2, 0]
    known = list(range(1000, 1192))
    first = router.choose(known, [0, 0, 0]).replica
    load = [0, 0, 0]
    load[first] = 1
    assert router.choose([*known, 7], load).replica == first
    load[first] = 2
    assert router.choose([*known, 8], load).replica != first


def test_a_policy_of_ones_own_is_asked():
    """A function in place of a name; what is no place is refused by name."""

    def last(length, matched, load):
        return len(load) - 1

    assert make_router(last, 3, block_size=16).choose([1, 2, 3], [0, 0, 0]).reason == "last"
    fleet = fleet_of(2, last)
    fleet.run([Arrival(i, 0.1 * i, (i, i), 1) for i in range(4)])
    assert [replica.engine.scheduler.num_added for replica in fleet.replicas] == [0, 4]  # always the one before
    with pytest.raises(UsageError, match="'everywhere'"):
        make_router(lambda *_: "everywhere", 2, block_size=16).choose([1], [0, 0])
    with pytest.raises(UsageError, match="no routing policy"):
        make_router("cheap", 2, block_size=16)
