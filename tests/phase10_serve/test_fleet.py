"""Replicas that die, and a server that ends: who notices, and what is left."""

import asyncio
import json
import threading
import time

import pytest

from minifer.apps.serve.fleet import Fleet, QueueFull
from minifer.apps.serve.messages import Failed, Job, Load, Piece, Ready, Report
from minifer.apps.serve.router import Router
from minifer.errors import DeviceError
from minifer.limits import EngineConfig
from minifer.sampling_params import SamplingParams
from tests.serving import raw_request, running


class ScriptedReplica:
    """Stands in for a process: notes what it is sent, says what it is told to say."""

    def __init__(self, index: int, first=None) -> None:
        self.index, self.sent, self.starts = index, [], 0
        self.first = first or Ready("m", EngineConfig(num_blocks=8), 100, None, {})

    def start(self, on_message):
        self.starts += 1
        self.say = lambda message: on_message(self, message)
        asyncio.get_running_loop().call_soon(self.say, self.first)
        if isinstance(self.first, Failed):
            asyncio.get_running_loop().call_soon(self.say, None)

    def send(self, message):
        self.sent.append(message)

    def jobs(self):
        return [message.id for message in self.sent if isinstance(message, Job)]

    def token(self, name, reason=None, answer=0):
        self.say(Report([Piece(name, answer, "x", 5, -1.0, (), 0.5, reason)], Load(running=1), []))

    def kill(self):
        self.say(None)

    def join(self, _timeout_s):
        return True


def job(name, n=1):
    return Job(name, (1, 2, 3), SamplingParams(n=n), 0.0)


def scenario(test, replicas=2, **options):
    """Run a coroutine with a started fleet of scripted replicas."""

    async def play():
        made = [ScriptedReplica(i) for i in range(replicas)]
        fleet = Fleet(made, route="least-loaded", **options)
        await fleet.start()
        await test(fleet, *made)
        await fleet.close()

    asyncio.run(play())


async def settle():
    for _ in range(20):
        await asyncio.sleep(0.005)


def test_what_was_not_passed_on_is_done_again_and_the_other_never_knows():
    async def test(fleet, a, b):
        with fleet.ask([job("r1"), job("r2")]) as group:
            assert (a.jobs(), b.jobs()) == (["r1"], ["r2"])
            a.token("r1")  # has come, but nobody has taken it
            a.kill()
            assert b.jobs() == ["r2", "r1"]
            assert group.streams[0].pieces == []
            b.token("r1", "stop")
            b.token("r2", "stop")
            pieces = await group.whole()
        assert [[p.finish_reason for p in mine] for mine in pieces] == [["stop"], ["stop"]]
        assert not fleet.streams
        assert fleet.gauges.success["stop"] == 2

    scenario(test)


def test_the_router_forgets_the_dead_and_late_words_of_the_first_replica_count_for_nothing():
    async def test(fleet, a, b):
        fleet.router = Router("prefix-affinity", 2, block_size=2)
        with fleet.ask([job("r1")]) as group:
            (first,) = [r for r in (a, b) if r.jobs()]
            (second,) = [r for r in (a, b) if r is not first]
            assert fleet.router.matched(first.index, (1, 2, 3)) == 2
            first.kill()
            assert fleet.router.matched(first.index, (1, 2, 3)) == 0
            first.token("r1", "stop")  # was on its way when it died
            assert group.streams[0].open == {0}
            second.token("r1", "length")
            assert [p.finish_reason for (p,) in await group.whole()] == ["length"]

    scenario(test)


def test_what_was_passed_on_ends_with_an_error():
    async def test(fleet, a, b):
        with fleet.ask([job("r1")]) as group:
            a.token("r1")
            batches = group.batches()
            assert [piece.text for _, piece in await anext(batches)] == ["x"]
            a.kill()
            assert b.jobs() == []
            ((_, last),) = await anext(batches)
            assert last.finish_reason == "error"
            assert "died" in last.error
        assert fleet.gauges.success["error"] == 1

    scenario(test)


def test_a_job_that_kills_is_tried_twice_and_no_more():
    async def test(fleet, a, b):
        with fleet.ask([job("poison")]) as group:
            a.kill()
            b.kill()
            (pieces,) = await group.whole()
        assert pieces[-1].finish_reason == "error"
        await settle()
        assert (a.starts, b.starts) == (2, 2)
        assert fleet.restarts == 2
        assert fleet.num_alive == 2

    scenario(test)


def test_without_a_living_replica_jobs_wait():
    async def test(fleet, a):
        a.kill()
        with fleet.ask([job("r1")]) as group:
            assert a.jobs() == []
            assert list(fleet.homeless) == ["r1"]
            await settle()
            assert a.jobs() == ["r1"]
            a.token("r1", "length")
            assert [p.finish_reason for (p,) in await group.whole()] == ["length"]

    scenario(test, replicas=1)


def test_leaving_aborts_and_is_counted_once():
    async def test(fleet, a):
        with fleet.ask([job("r1", n=2)]):
            a.token("r1")
        assert a.sent[-1] == ("abort", "r1")
        assert fleet.unfinished == 2
        a.token("r1", "abort")
        a.token("r1", "abort", answer=1)
        assert not fleet.streams
        assert fleet.gauges.success["abort"] == 2

    scenario(test, replicas=1)


def test_a_full_queue_refuses_all_of_a_request_or_nothing():
    async def test(fleet, a):
        group = fleet.ask([job("r1", n=3)])
        with pytest.raises(QueueFull) as full:
            fleet.ask([job("r2"), job("r3")])
        assert full.value.retry_s >= 1
        assert a.jobs() == ["r1"]
        assert group.streams[0].open == {0, 1, 2}

    scenario(test, replicas=1, max_queue=4)


def test_silence_with_work_is_death():
    async def test(fleet, a, b):
        with fleet.ask([job("r1")]):
            a.kill = lambda: a.say(None)
            fleet.streams["r1"].job = fleet.streams["r1"].job._replace(arrival=time.perf_counter())
            for _ in range(100):
                await asyncio.sleep(0.01)
                if b.jobs():
                    break
            await settle()
            assert b.jobs() == ["r1"]
            assert fleet.restarts >= 1

    scenario(test, silence_s=0.1)


def test_a_replica_that_cannot_start_says_why():
    async def play():
        fleet = Fleet([ScriptedReplica(0), ScriptedReplica(1, Failed("no memory"))])
        with pytest.raises(DeviceError, match="no memory"):
            await fleet.start()

    asyncio.run(play())


def test_counters_survive_a_death():
    async def test(fleet, a):
        a.say(Report([], Load(prefix_queries=10, prefix_hits=4), []))
        a.kill()
        await settle()
        a.say(Report([], Load(prefix_queries=5, prefix_hits=1), []))
        seat = fleet.seats[0]
        assert seat.before["queries"] + seat.load.prefix_queries == 15

    scenario(test, replicas=1)


def test_shutdown_finishes_what_can_be_finished(server):
    with running(deadline_s=20) as mine:
        found = []
        body = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
        asking = threading.Thread(target=lambda: found.append(mine.events("/v1/completions", body)))
        asking.start()
        while not mine.service.fleet.streams:
            time.sleep(0.005)
        mine.server.should_exit = True
        asking.join(30)
    *chunks, done = found[0]
    assert done == "[DONE]"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_shutdown_aborts_at_the_deadline_and_says_so():
    with running(deadline_s=0.3, engine={"max_num_seqs": 1}) as server, server.connect() as sock:
        body = {"prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "stream": True, "n": 60}
        sock.sendall(raw_request(body))
        sock.recv(100)
        server.server.should_exit = True
        data = b""
        while part := sock.recv(1 << 16):
            data += part
    assert b'"finish_reason":"abort"' in data
    assert data.rstrip().endswith(b"0")
    ends = [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith('data: {"id"')]
    assert sum(c["choices"][0]["finish_reason"] == "abort" for c in ends if c["choices"]) >= 1
