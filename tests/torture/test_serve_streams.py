"""Five hundred streams, clients that leave, read slowly or fall silent: afterwards everything is as it was."""

import asyncio
import json
import random
import time

import pytest

from tests.serving import Running, raw_request, running

CLIENTS = 500


@pytest.fixture(scope="module")
def busy():
    """One real replica with few blocks, so that requests have to wait for each other."""
    with running(in_thread=False, engine={"num_blocks": 96, "max_num_seqs": 16}, fleet={"max_queue": 2000}) as server:
        yield server


async def client(server: Running, rng: random.Random, number: int) -> str:
    """One stream that is read to its end, or left at a random moment, politely or not."""
    tokens = rng.randrange(1, 40)
    body = {"prompt": f"Once {number % 7}", "max_tokens": tokens, "seed": number, "stream": True, "ignore_eos": True}
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(raw_request(body, headers="Connection: close\r\n"))
    await writer.drain()
    fate = rng.choice(["read", "read", "leave at once", "leave", "reset"])
    data = b""
    if fate == "read":
        data = await reader.read()
    elif fate != "leave at once":
        data = await reader.read(rng.randrange(1, 3000))
    if fate == "reset":
        writer.transport.abort()
    writer.close()
    if fate == "read":
        assert data.startswith(b"HTTP/1.1 200")
        assert b"data: [DONE]" in data
        assert data.count(b'"finish_reason":"length"') == 1
    return fate


async def flood(server: Running, seed: int) -> dict[str, int]:
    """CLIENTS at once."""
    rng = random.Random(seed)
    fates = await asyncio.gather(*(client(server, random.Random(rng.random()), i) for i in range(CLIENTS)))
    return {fate: fates.count(fate) for fate in set(fates)}


@pytest.mark.parametrize("seed", range(3))
def test_five_hundred_streams_with_random_disconnects(busy, seed):
    before = busy.metric("request_success_total")
    fates = asyncio.run(flood(busy, seed))
    assert busy.quiet(120), [seat.load for seat in busy.service.fleet.seats]
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert busy.metric(gauge) == 0
    ended = busy.metric("request_success_total") - before
    # Who left at once may have done so before the request was whole; everybody else is counted.
    assert CLIENTS - fates.get("leave at once", 0) <= ended <= CLIENTS
    assert busy.metric("request_success_total", finished_reason="error") == 0
    assert len(busy.server.server_state.connections) <= 2, "connections are left"
    assert busy.post("/v1/completions", {"prompt": "Once", "max_tokens": 2}).status_code == 200


def test_slow_readers_hold_no_blocks_and_are_cut_in_the_end():
    """A client that asks for much and reads nothing: its answer is computed, its blocks are free, then it is cut."""
    engine = {"num_blocks": 512, "max_num_seqs": 8}
    with running(engine=engine, send_timeout_s=1.5) as server:
        socks = []
        for i in range(4):
            sock = server.connect()
            sock.setsockopt(1, 8, 4096)  # SO_RCVBUF: the kernel takes little
            body = {"prompt": f"Go {i}", "max_tokens": 900, "n": 8, "stream": True, "ignore_eos": True, "logprobs": 20}
            sock.sendall(raw_request(body))
            socks.append(sock)
        while not server.service.fleet.streams:
            time.sleep(0.01)
        others = [server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 3}).status_code for _ in range(3)]
        assert others == [200] * 3
        assert server.quiet(120)
        deadline = time.monotonic() + 60
        while len(server.server.server_state.connections) > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(server.server.server_state.connections) <= 1, "slow readers were not cut"
        for sock in socks:
            sock.close()


def test_half_open_sockets_cost_nothing_and_are_cut():
    """Connections that say nothing, half a request line, half a header, half a body."""
    halves = [b"", b"GE", b"POST /v1/completions HTTP/1.1\r\nHo", raw_request({"prompt": "x"})[:-3]]
    with running(read_timeout_s=1.0) as server:
        socks = [server.connect() for _ in range(200)]
        for i, sock in enumerate(socks):
            sock.sendall(halves[i % len(halves)])
        assert server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 3}).status_code == 200
        deadline = time.monotonic() + 20
        while len(server.server.server_state.connections) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(server.server.server_state.connections) <= 1
        assert not server.service.fleet.streams
        for sock in socks:
            sock.close()


def test_a_second_request_that_never_ends_is_cut_too():
    with running(read_timeout_s=1.0) as server, server.connect() as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200 OK" in sock.recv(4096)
        sock.sendall(b"GET /hea")
        data = b"x"
        while data:
            try:
                data = sock.recv(4096)
            except ConnectionResetError:
                data = b""


def test_a_stream_in_flight_is_longer_than_the_patience_for_requests():
    """The clock for a request's arrival must not run while an answer is written."""
    with running(read_timeout_s=0.2, engine={"max_num_seqs": 64}) as server:
        body = {"prompt": "Once", "max_tokens": 900, "n": 8, "ignore_eos": True}
        *chunks, done = server.events("/v1/completions", body)
        assert done == "[DONE]"
        assert sum(json.loads(json.dumps(c))["choices"][0]["finish_reason"] == "length" for c in chunks) == 8
