"""kill -9 of a replica under load: its streams end with an error, its whole answers are done again, others go on."""

import asyncio
import os
import signal
import time

import httpx

from tests.serving import Running, running

ASK = {"prompt": "Once upon a time", "max_tokens": 120, "temperature": 1, "ignore_eos": True}


async def load(server: Running, results: list) -> None:
    """Forty requests, half of them streaming, and a kill while all of them run."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False, limits=limits) as client:

        async def one(i: int) -> None:
            body = ASK | {"seed": i, "stream": i % 2 == 0}
            reply = await client.post("/v1/completions", json=body)
            results.append((i, reply.status_code, reply.text))

        asking = [asyncio.create_task(one(i)) for i in range(40)]
        before = 40  # the run that told what to expect
        while sum(server.service.fleet.gauges.of["time_to_first_token_seconds"].counts) < before + 12:
            await asyncio.sleep(0.002)
        os.kill(server.service.fleet.seats[0].replica.pid, signal.SIGKILL)
        await asyncio.gather(*asking)


def test_kill_9_under_load():
    with running(2, in_thread=False, engine={"max_num_seqs": 8}, fleet={"route": "round-robin"}) as server:
        expected = {
            i: server.post("/v1/completions", ASK | {"seed": i}).json()["choices"][0]["text"] for i in range(40)
        }
        victim, other = (seat.replica.pid for seat in server.service.fleet.seats)
        results: list = []
        asyncio.run(load(server, results))
        assert len(results) == 40
        broken = [i for i, _, text in results if "has died" in text]
        for i, status, text in results:
            if i in broken:
                assert i % 2 == 0, "an answer that nobody had seen was not done again"
                assert status == 500 or text.endswith("data: [DONE]\n\n")
            elif i % 2:
                assert status == 200
                assert httpx.Response(200, text=text).json()["choices"][0]["text"] == expected[i]
            else:
                assert status == 200
                assert text.endswith("data: [DONE]\n\n")
        assert len(broken) <= 20  # those whose beginning was sent by the one that died; how many says the clock
        wait_for(lambda: server.get("/health").json()["replicas_alive"] == 2)
        now = [seat.replica.pid for seat in server.service.fleet.seats]
        assert now[0] != victim
        assert now[1] == other
        assert server.metric("replica_restarts_total") == 1
        assert server.quiet()
        for _ in range(4):
            assert server.post("/v1/completions", ASK).status_code == 200


def test_the_only_replica_dies_and_comes_back():
    """With nobody to move to, a whole answer waits for the restart, and a new request does too."""
    with running(1, in_thread=False) as server:
        expected = server.post("/v1/completions", ASK | {"seed": 5}).json()["choices"][0]["text"]

        async def play() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as client:
                first = asyncio.create_task(client.post("/v1/completions", json=ASK | {"seed": 5}))
                while not server.service.fleet.streams:
                    await asyncio.sleep(0.001)
                os.kill(server.service.fleet.seats[0].replica.pid, signal.SIGKILL)
                second = client.post("/v1/completions", json=ASK | {"seed": 5})
                return list(await asyncio.gather(first, second))

        replies = asyncio.run(play())
        assert [r.status_code for r in replies] == [200, 200]
        assert {r.json()["choices"][0]["text"] for r in replies} == {expected}


def test_health_says_when_nobody_is_there():
    with running(1, in_thread=False) as server:
        os.kill(server.service.fleet.seats[0].replica.pid, signal.SIGKILL)
        wait_for(lambda: server.get("/health").status_code == 503)
        wait_for(lambda: server.get("/health").status_code == 200)


def wait_for(condition, seconds: float = 60.0) -> None:
    """Until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_replicas_end_when_the_server_is_killed():
    """No orphan: a worker whose pipe has closed goes home."""
    import subprocess
    import sys

    import psutil

    command = [sys.executable, "-m", "minifer", "serve", "tiny", "--device", "cpu", "--port", "0", "--log", "off"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "is served at" not in (line := process.stderr.readline()):
        assert line, "it did not start"
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
