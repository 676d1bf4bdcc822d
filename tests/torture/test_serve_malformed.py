"""Ten thousand malformed requests: every one is answered, none with a 500, and nothing is left behind."""

import asyncio
import json
import os
import random
import time

import httpx
import psutil

from tests.serving import Running, running

REQUESTS = int(os.environ.get("MINIFER_MALFORMED", "10000"))
PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/api/generate",
    "/api/chat",
    "/api/show",
    "/tokenize",
    "/detokenize",
)
GOOD = {
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    "/api/generate": {"model": "tiny", "prompt": "a", "options": {"num_predict": 1}},
    "/api/chat": {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "options": {"num_predict": 1}},
    "/api/show": {"model": "tiny"},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [1]},
}
FIELDS = [
    "prompt",
    "messages",
    "model",
    "stream",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "max_tokens",
    "logprobs",
    "top_logprobs",
    "echo",
    "best_of",
    "suffix",
    "logit_bias",
    "tools",
    "response_format",
    "stream_options",
    "options",
    "context",
    "raw",
    "system",
    "images",
    "format",
    "template",
    "content",
    "tokens",
    "with_pieces",
    "name",
    "max_completion_tokens",
    "presence_penalty",
]


def strange(rng: random.Random, depth: int = 0) -> object:
    """A value that somebody should not have sent."""
    simple = (
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        -(2**63),
        10**40,
        0.5,
        -0.0,
        1e308,
        5e-324,
        "",
        "a",
        "\x00",
        "🦙" * 20,
    )
    texts = ("<|im_end|>", "\ud800", "../../etc/passwd", "{{7*7}}", "a" * 3000, "tiny", "\r\nX: y", "NaN")
    choice = rng.randrange(10 if depth < 4 else 8)
    if choice < 5:
        return rng.choice(simple)
    if choice < 8:
        return rng.choice(texts)
    if choice == 8:
        return [strange(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {
        rng.choice(("role", "content", "type", "text", "x")): strange(rng, depth + 1) for _ in range(rng.randrange(4))
    }


def broken_bytes(rng: random.Random, path: str) -> bytes:
    """A body with something wrong in it, from a single flipped bit to pure noise."""
    body = dict(GOOD[path])
    for _ in range(rng.randrange(1, 4)):
        body[rng.choice(FIELDS)] = strange(rng)
    data = json.dumps(body).encode()
    fate = rng.randrange(6)
    if fate == 0:
        return data[: rng.randrange(len(data))]
    if fate == 1:
        at = rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if fate == 2:
        return rng.randbytes(rng.randrange(300))
    return data


async def bombard(server: Running, count: int, seed: int) -> dict[int, int]:
    """`count` requests by 16 clients; how many came back with which status."""
    statuses: dict[int, int] = {}
    limits = httpx.Limits(max_connections=16)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False, limits=limits) as client:

        async def one(rng: random.Random, times: int) -> None:
            for _ in range(times):
                path = rng.choice(PATHS)
                body = broken_bytes(rng, path)
                reply = await client.post(path, content=body)
                statuses[reply.status_code] = statuses.get(reply.status_code, 0) + 1
                assert reply.status_code < 500, (path, body, reply.text)

        await asyncio.gather(*(one(random.Random(seed * 100 + i), count // 16) for i in range(16)))
    return statuses


def hung_up(server: Running, process: psutil.Process) -> bool:
    """Whether the server lets go of every connection; the clients are gone a moment before it knows."""
    for _ in range(100):
        open_ports = [(c.laddr.port, c.status) for c in process.net_connections("tcp")]
        if open_ports == [(server.port, psutil.CONN_LISTEN)]:
            return True
        time.sleep(0.1)
    return False


def test_ten_thousand_malformed_requests(record_property):
    process = psutil.Process()
    with running(engine={"max_num_seqs": 64}) as server:
        asyncio.run(bombard(server, max(160, REQUESTS // 10), seed=0))
        assert server.quiet(60)
        assert hung_up(server, process)
        server.log.clear()
        memory, files, tasks = process.memory_info().rss, process.num_fds(), server.service.fleet.unfinished
        statuses = asyncio.run(bombard(server, REQUESTS, seed=1))
        record_property("statuses", statuses)
        assert server.quiet(60)
        assert hung_up(server, process)
        server.log.clear()
        assert set(statuses) <= {200, 400, 404, 413}
        assert statuses[400] > REQUESTS / 3
        assert process.num_fds() <= files
        assert server.service.fleet.unfinished == tasks == 0
        assert process.memory_info().rss - memory < 30 << 20
        assert server.metric("kv_cache_usage_perc") == 0
        assert server.post("/v1/completions", GOOD["/v1/completions"]).status_code == 200
