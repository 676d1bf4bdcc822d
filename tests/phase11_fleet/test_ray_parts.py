"""The parts of `minifer.apps.serve.ray`, played without a cluster: who is chosen, and what becomes of a job."""

import asyncio
from types import SimpleNamespace

import pytest

from minifer.apps.serve.messages import Job, Load, Piece
from minifer.errors import UsageError
from minifer.sampling_params import SamplingParams

pytestmark = pytest.mark.ray


def job(name="r1", ids=(1, 2, 3), n=1):
    return Job(name, tuple(ids), SamplingParams(n=n), 0.0)


def piece(name, reason=None):
    return Piece(name, 0, "x", 5, -1.0, (), 7.0, reason)


class Answer:
    """What a handle gives for a job: batches as scripted, then perhaps an error; notes that it was cancelled."""

    def __init__(self, batches):
        self.batches, self.cancelled = list(batches), False

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self.batches:
            raise StopAsyncIteration
        await asyncio.sleep(0.002)  # the other side reads in between
        batch = self.batches.pop(0)
        if isinstance(batch, Exception):
            raise batch
        if batch is None:
            await asyncio.sleep(60)
        return batch

    def cancel(self):
        self.cancelled = True


class Handle:
    """Stands in for the deployment's handle: each job gets the next script."""

    def __init__(self, *scripts):
        self.answers, self.given = [Answer(script) for script in scripts], []
        self.answer = SimpleNamespace(remote=self._remote)

    def options(self, *, stream):
        assert stream
        return self

    def _remote(self, job):
        self.given.append(job.id)
        return self.answers[len(self.given) - 1]


def scenario(test, *scripts):
    """Run a coroutine with `Actors` on a scripted handle."""
    ray = pytest.importorskip("minifer.apps.serve.ray")

    async def play():
        handle = Handle(*scripts)
        await test(ray.Actors(handle, 2, "least-loaded", 512), handle)

    asyncio.run(play())


def test_what_was_not_passed_on_is_done_again():
    async def test(fleet, handle):
        with fleet.ask([job()]) as group:
            (pieces,) = await group.whole()
        assert [p.finish_reason for p in pieces] == [None, "stop"]
        assert pieces[0].time != 7.0  # the time of its arrival here: that of another machine means nothing
        assert handle.given == ["r1", "r1"]
        assert fleet.gauges.success["stop"] == 1
        assert not fleet.streams

    scenario(test, [[piece("r1")], OSError("gone")], [[piece("r1")], [piece("r1", "stop")]])


def test_what_was_passed_on_ends_with_an_error():
    async def test(fleet, handle):
        with fleet.ask([job()]) as group:
            batches = group.batches()
            assert [p.text for _, p in await anext(batches)] == ["x"]
            ((_, last),) = await anext(batches)
        assert (last.finish_reason, handle.given) == ("error", ["r1"])
        assert "died" in last.error

    scenario(test, [[piece("r1")], OSError("gone")])


def test_twice_and_no_more_and_an_answer_without_an_end_counts_as_death():
    async def test(fleet, handle):
        with fleet.ask([job()]) as group:
            (pieces,) = await group.whole()
        assert pieces[-1].finish_reason == "error"
        assert handle.given == ["r1", "r1"]

    scenario(test, [OSError("gone")], [[piece("r1")]])


def test_whoever_leaves_ends_the_work():
    async def test(fleet, handle):
        with fleet.ask([job()]):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert handle.answers[0].cancelled
        assert not fleet.streams
        assert fleet.gauges.success["abort"] == 1

    scenario(test, [None])


def test_seats_are_those_who_were_seen_and_counters_survive_them():
    async def test(fleet, _handle):
        fleet.looked([("a", Load(prefix_queries=10)), ("b", Load(running=2))])
        assert (fleet.num_alive, fleet.seats[1].load.running) == (2, 2)
        fleet.looked([("b", Load(running=1))])
        assert fleet.num_alive == 1
        fleet.looked([("b", Load()), ("c", Load(prefix_queries=3))])
        assert fleet.seats[0].before["queries"] + fleet.seats[0].load.prefix_queries == 13
        assert (fleet.num_alive, fleet.restarts) == (2, 1)

    scenario(test)


def test_the_router_sends_a_prefix_where_it_was_and_forgets_the_dead():
    ray = pytest.importorskip("minifer.apps.serve.ray")
    router = object.__new__(ray.PrefixRouter)  # its base wants a whole cluster
    router._replica_queue_len_cache = SimpleNamespace(get=lambda _: None)
    router.initialize_state("prefix-affinity", 2, block_size=2)
    replicas = [
        SimpleNamespace(replica_id=SimpleNamespace(to_full_id_str=lambda i=i: f"replica-{i}")) for i in range(3)
    ]

    def choose(prompt, among):
        pending = SimpleNamespace(args=[job(ids=prompt)])
        (first,), others = asyncio.run(router.choose_replicas(among, pending))
        assert sorted([first, *others], key=id) == sorted(among, key=id)
        return replicas.index(first)

    router.places.update(["replica-0", "replica-1"])
    assert choose([1, 2, 3, 4], replicas[:2]) == 0
    assert choose([9, 9, 9, 9], replicas[:2]) == 1
    assert choose([1, 2, 3, 4, 5], replicas[:2]) == 0
    assert choose([1, 2, 7], replicas[:2]) == 0
    assert choose([1, 2, 3], [replicas[1]]) == 1
    for place in router.places.update(["replica-1", "replica-2"]):
        router.minifer.forget(place)
    assert choose([3, 3, 3, 3], replicas[1:]) == 2  # its place is that of replica 0, without what that remembered
    assert asyncio.run(router.choose_replicas(replicas[1:], None)) == [replicas[1:]]


def test_the_application_of_serve_run():
    ray = pytest.importorskip("minifer.apps.serve.ray")
    with pytest.raises(UsageError, match="model="):
        ray.app({})
    with pytest.raises(UsageError, match=r"8\.\.2"):
        ray.app({"model": "tiny", "replicas": "8..2"})
    ray.app({"model": "tiny", "replicas": "2..8", "num_blocks": "64"})
