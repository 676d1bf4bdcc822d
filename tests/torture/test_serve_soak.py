"""A server under a mixture of everything, for minutes: its memory stays flat and it ends where it began.

Rings, the router's memory and the pages of the KV cache fill up in the first minutes, so the last third is held against
the one before it. In ten minutes a third is 15,000 requests: half a kilobyte that each leaves behind would be seen.

MINIFER_SOAK_S sets the length in seconds (600 for the real one; the default only shows that the test works).
"""

import asyncio
import os
import random
import sys
import time

import httpx
import psutil

from tests.serving import running

SECONDS = float(os.environ.get("MINIFER_SOAK_S", "20"))
CLIENTS = 12


async def soak(url: str, until: float) -> dict[str, int]:
    """CLIENTS clients that ask, stream, leave and misbehave until the time is over."""
    counts: dict[str, int] = {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, limits=limits) as client:
        await asyncio.gather(*(one(client, random.Random(i), until, counts) for i in range(CLIENTS)))
    return counts


async def one(client: httpx.AsyncClient, rng: random.Random, until: float, counts: dict[str, int]) -> None:
    """One client's life."""
    kinds = (whole, stream, leave, wrong, chat, look)
    while time.monotonic() < until:
        kind = rng.choice(kinds)
        await kind(client, rng)
        counts[kind.__name__] = counts.get(kind.__name__, 0) + 1
        await asyncio.sleep(rng.random() * 0.05)


def ask(rng: random.Random) -> dict:
    """A prompt that shares its beginning with some others."""
    words = ["Once upon a time", "The fish", "He said 🦙"][rng.randrange(3)] + " x" * rng.randrange(40)
    return {"prompt": words, "max_tokens": rng.randrange(1, 40), "seed": rng.randrange(1000), "n": rng.randrange(1, 3)}


async def whole(client, rng):
    reply = await client.post("/v1/completions", json=ask(rng) | {"logprobs": 2, "echo": rng.random() < 0.2})
    assert reply.status_code == 200, reply.text


async def stream(client, rng):
    async with client.stream("POST", "/v1/completions", json=ask(rng) | {"stream": True}) as reply:
        text = (await reply.aread()).decode()
    assert text.endswith("data: [DONE]\n\n")


async def leave(client, rng):
    body = ask(rng) | {"stream": True, "max_tokens": 300, "ignore_eos": True}
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        async for _ in reply.aiter_bytes():
            break


async def wrong(client, rng):
    reply = await client.post("/v1/completions", content=rng.randbytes(rng.randrange(200)))
    assert reply.status_code == 400


async def chat(client, rng):
    messages = [{"role": "user", "content": "Hello" * rng.randrange(1, 5)}]
    body = {"model": "tiny", "messages": messages, "options": {"num_predict": 8}, "stream": rng.random() < 0.5}
    assert (await client.post("/api/chat", json=body)).status_code == 200


async def look(client, rng):
    path = rng.choice(["/metrics", "/health", "/v1/models", "/nothing", "/trace"])
    assert (await client.get(path)).status_code in (200, 404)


def memory_mb(pids: list[int]) -> float:
    """Resident memory of this process and the replicas."""
    return sum(psutil.Process(pid).memory_info().rss for pid in (os.getpid(), *pids)) / 2**20


def test_soak():
    with running(2, in_thread=False, fleet={"route": "prefix-affinity"}) as server:
        pids = [seat.replica.pid for seat in server.service.fleet.seats]
        asyncio.run(soak(server.url, time.monotonic() + min(30, SECONDS / 2)))  # caches and rings fill up
        assert server.quiet()
        server.log.clear()
        samples, end = [memory_mb(pids)], time.monotonic() + SECONDS
        total: dict[str, int] = {}
        while time.monotonic() < end:
            for name, count in asyncio.run(soak(server.url, time.monotonic() + max(5, SECONDS / 20))).items():
                total[name] = total.get(name, 0) + count
            assert server.quiet()
            server.log.clear()
            samples.append(memory_mb(pids))
        sys.stderr.write(
            f"\n{SECONDS:.0f} s, {sum(total.values())} requests {total}; MB {[round(s) for s in samples]}\n"
        )
        third = len(samples) // 3
        growth = (sum(samples[-third:]) - sum(samples[-2 * third : -third])) / third
        assert growth < 0.02 * samples[0] + 4, samples
        assert [seat.replica.pid for seat in server.service.fleet.seats] == pids
        assert server.metric("kv_cache_usage_perc") == server.metric("num_requests_running") == 0
        assert server.metric("request_success_total", finished_reason="error") == 0
