"""What the load generator measures, against a server whose every byte has a known time."""

import asyncio
import math

import pytest
from scripted_server import HEAD, ScriptedServer, answer, chunk, in_virtual_time, sse, text_event, usage_event

from minifer.apps import serve_results
from minifer.apps.loadgen.client import Server
from minifer.apps.loadgen.point import measure
from minifer.apps.loadgen.protocols import APIS, Ask
from minifer.apps.loadgen.run import run_load
from minifer.apps.loadgen.wire import Address
from minifer.apps.workloads import Arrival, arrival_times

ASK = Ask("tiny", ignore_eos=True)


def arrivals(times, output_len=4):
    return [Arrival(i, at, (5, 6, 7), output_len, "one two three") for i, at in enumerate(times)]


def load(script, times=(0.0,), backend="openai", limit=None, ask=ASK, **options):
    """Run a workload against a script in virtual time: the run, its JSON, and the server."""

    async def main():
        async with ScriptedServer(script, **options) as server:
            target = Server(Address.parse(server.url), APIS[backend])
            now = asyncio.get_running_loop().time

            async def send(arrival, record, since):
                await target.send(arrival, ask, record, since)

            run = await run_load(arrivals(times), send, max_concurrency=limit, now=now)
            return run, server

    run, server = in_virtual_time(main)
    return run, serve_results.vllm_json(run, max_concurrency=limit, detailed=True), server


def test_events_without_text_move_no_clock():
    """A role at 0.10, A, B, CD (two tokens) at 0.50, 0.52, 0.54, then finish and usage: exact to the last digit."""
    steps = [
        (0.0, HEAD),
        (0.10, sse({"choices": [{"delta": {"role": "assistant", "content": ""}}]})),
        (0.30, chunk(b": keep-alive\n\n")),
        (0.50, sse({"choices": [{"delta": {"content": "A"}}]})),
        (0.52, sse({"choices": [{"delta": {"content": "B"}}]})),
        (0.54, sse({"choices": [{"delta": {"content": "CD"}}]})),
        (0.56, sse({"choices": [{"delta": {}, "finish_reason": "stop"}]})),
        (0.57, usage_event(4)),
        (0.58, sse("[DONE]") + chunk(b"")),
    ]
    run, result, _ = load(lambda *_: steps, backend="openai-chat")
    metrics = run.records[0].metrics()
    assert metrics.ttft == pytest.approx(0.50, abs=1e-9)
    assert metrics.e2e == pytest.approx(0.54, abs=1e-9)
    assert metrics.itl == pytest.approx([0.02, 0.02], abs=1e-9)
    assert metrics.tpot == pytest.approx(0.04 / 3, abs=1e-9)
    assert run.records[0].text == "ABCD"
    assert result["total_output_tokens"] == 4
    assert result["itl_of"] == "event"


def test_the_first_gap_is_no_itl_and_tokens_are_not_events():
    run, result, _ = load(lambda *_: answer([(0.4, "a"), (0.5, "b"), (0.7, "c")], output=9, prompt=11))
    assert run.records[0].metrics().itl == pytest.approx([0.1, 0.2])
    assert (result["total_output_tokens"], result["total_input_tokens"]) == (9, 11)
    assert result["mean_tpot_ms"] == pytest.approx(300 / 8)
    assert result["tokens_from"] == "usage"


def test_itl_and_tpot_are_means_over_different_things():
    """3 tokens 10 ms apart and 11 tokens 40 ms apart: TPOT has one vote per request (25), ITL one per gap (35)."""
    logs = [[(1 + 0.01 * i, "x") for i in range(3)], [(1 + 0.04 * i, "x") for i in range(11)]]
    _, result, _ = load(lambda i, _: answer(logs[i]), times=(0.0, 0.5))
    assert result["mean_tpot_ms"] == pytest.approx(25)
    assert result["mean_itl_ms"] == pytest.approx(35)
    assert len([gap for gaps in result["itls"] for gap in gaps]) == 12


def test_answers_of_one_token_and_of_none():
    """They have no TPOT; the answer without tokens has no time at all. Nothing becomes 0 or NaN."""
    logs = [[(0.3, "x")], []]
    run, result, _ = load(lambda i, _: answer(logs[i], end=0.4), times=(0.0, 0.0))
    assert (result["one_token_answers"], result["zero_token_answers"], result["completed"]) == (1, 1, 2)
    assert result["ttfts"] == [pytest.approx(0.3), None]
    assert [result[f"{what}_{name}_ms"] for what in ("mean", "p99") for name in ("tpot", "itl")] == [None] * 4
    assert result["mean_ttft_ms"] == pytest.approx(300)
    assert result["request_goodput"] == pytest.approx(1 / run.duration)


def test_failures_are_counted_apart_and_enter_nothing():
    """A status, an error in a stream of status 200, a stream that breaks off, one that is cut in a chunk, no HTTP."""
    good = answer([(0.2, "a"), (0.3, "b")])
    scripts = [
        good,
        [(0.0, b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 5\r\n\r\nquiet")],
        [
            (0.0, HEAD),
            (0.001, text_event("a")),
            (0.002, sse({"error": {"message": "out of memory"}})),
            (0.002, chunk(b"")),
        ],
        [(0.0, HEAD), (0.001, text_event("a")), (0.002, chunk(b""))],
        [(0.0, HEAD), (0.001, text_event("a")), (0.002, b"ff\r\ndata: ")],
        [(0.0, b"SSH-2.0-OpenSSH_9\r\n\r\n")],
        [(0.0, HEAD), (0.001, sse("nonsense")), (0.002, chunk(b""))],
    ]
    run, result, _ = load(lambda i, _: scripts[i], times=[0.0 + i for i in range(7)])
    assert (result["completed"], result["failed"]) == (1, 6)
    errors = result["errors"]
    assert errors[0] == ""
    for error, words in zip(errors[1:], ("429: quiet", "out of memory", "without saying", "in the middle", "no HTTP",
                                         "not a JSON"), strict=True):  # fmt: skip
        assert words in error
    assert result["mean_ttft_ms"] == result["p99_ttft_ms"] == pytest.approx(200)
    assert result["output_throughput"] == pytest.approx(2 / run.duration)
    assert result["ttfts"][1:] == [None] * 6
    assert "6 requests failed" in result["warnings"][0]


def test_bytes_may_be_cut_anywhere():
    """The same answer in one piece, and a byte at a time, with CR LF line ends, a comment and many-byte characters."""
    body = ('data: {"choices": [{"text": "grün"}]}\r\n\r\n: ping\r\n\r\n'
            'data: {"choices": [{"text": "🙂", "finish_reason": "stop"}]}\n\n'
            'data: {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 2}}\n\n'
            "data: [DONE]\n\n").encode()  # fmt: skip
    whole = HEAD + chunk(body[:70]) + chunk(body[70:]) + chunk(b"")
    scripts = [[(0.5, whole)], [(0.5 + 0.001 * i, whole[i : i + 1]) for i in range(len(whole))]]
    run, result, _ = load(lambda i, _: scripts[i], times=(0.0, 1.0))
    assert result["generated_texts"] == ["grün🙂"] * 2
    assert result["output_lens"] == [3, 3]
    assert run.records[0].metrics().ttft == pytest.approx(0.5)
    at = whole.index(b"\n: ping")  # the end of the blank line behind the first event
    assert run.records[1].metrics().ttft == pytest.approx(0.5 + 0.001 * at, abs=1e-6)


def test_the_rate_is_kept_by_absolute_times():
    """1,000 requests at 200/s against a server that answers at once: every one is sent when it was due."""
    times = arrival_times(1000, 200.0, seed=3)

    async def main():
        async def send(arrival, record, now):
            await asyncio.sleep(0.0004)

        return await run_load(arrivals(times), send, now=asyncio.get_running_loop().time)

    run = in_virtual_time_fast(main)
    assert [r.sent for r in run.records] == pytest.approx(times, abs=1e-9)
    result = serve_results.vllm_json(run)
    assert result["realised_request_rate"] == pytest.approx(999 / times[-1])
    assert times[-1] == pytest.approx(5.0, abs=0.6)


def test_a_client_that_always_wakes_late_does_not_fall_behind():
    """Every timer rings 3 ms late: every request is sent up to 3 ms late, and the hundredth no later than the first."""

    async def main():
        loop = asyncio.get_running_loop()
        loop._jumping.oversleep = 0.003

        async def send(arrival, record, now):
            pass

        return await run_load(arrivals([0.1 * i for i in range(100)]), send, now=loop.time)

    late = [r.sent - r.due for r in in_virtual_time_fast(main).records[1:]]
    assert late == pytest.approx([0.003] * 99, abs=1e-6)


def in_virtual_time_fast(main):
    """Without sockets nothing has to be waited for before the time jumps."""
    import scripted_server

    idle, scripted_server.IDLE_S = scripted_server.IDLE_S, 0.0
    try:
        return in_virtual_time(main)
    finally:
        scripted_server.IDLE_S = idle


@pytest.mark.parametrize(("limit", "most"), [(None, 150), (40, 40)])
def test_as_many_are_under_way_as_was_said(limit, most):
    """150 at once are 150 at the server; with a limit, as many as that."""
    _run, result, server = load(lambda *_: answer([(1.0, "x")]), times=[0.0] * 150, limit=limit)
    assert server.most == most
    assert result["max_concurrent_requests"] == most
    assert result["completed"] == 150


def test_waiting_for_a_slot_is_on_the_second_clock():
    """One at a time, 1 s each, all due at 0: from its sending each takes 1 s, from when it was due 1, 2 and 3 s."""
    _run, result, _ = load(lambda *_: answer([(0.5, "x"), (1.0, "y")], output=11), times=[0.0] * 3, limit=1)
    assert result["ttfts"] == pytest.approx([0.5] * 3, abs=1e-6)
    assert result["median_ttft_including_client_queue_ms"] == pytest.approx(1500, abs=1e-3)
    assert result["p99_client_queue_time_ms"] == pytest.approx(1980, abs=1e-3)
    assert result["mean_e2el_including_client_queue_ms"] == pytest.approx(2000, abs=1e-3)
    assert result["median_e2el_ms"] == pytest.approx(1000, abs=1e-3)
    assert result["request_goodput"] == pytest.approx(1.0)
    assert result["request_goodput_including_client_queue"] == pytest.approx(2 / 3)
    assert "median_client_queue_time_ms" not in load(lambda *_: answer([(0.5, "x")]))[1]


def test_prompts_from_the_cache_are_said_to_be():
    """By the usage of each answer, or else by the difference of the server's metrics."""
    _, told, _ = load(lambda *_: answer([(0.1, "x")], prompt=100, cached=64), times=(0.0, 1.0))
    assert told["total_cached_tokens"] == 128
    assert "128 of 200 prompt tokens came out of the server's prefix cache" in told["warnings"][0]
    _, silent, _ = load(lambda *_: answer([(0.1, "x")], prompt=100, cached=0))
    assert silent["warnings"][0].startswith("1 answers are shorter") if silent["warnings"] else True

    async def main():
        hits = iter((40.0, 130.0))
        page = {"/metrics": lambda: f'# HELP x\nvllm:prefix_cache_hits_total{{engine="0"}} {next(hits)}\n'}
        async with ScriptedServer(lambda *_: answer([(0.1, "x")], prompt=100), page) as server:
            target = Server(Address.parse(server.url), APIS["openai"])
            return await measure(target, ASK, arrivals([0.0]), warmups=arrivals([0.0]))

    run, hits = asyncio.run(main())
    assert hits == 90
    assert "90 of 100" in serve_results.vllm_json(run, cache_hits=hits)["warnings"][0]


def test_percentiles_stand_beside_the_mean():
    logs = [[(0.001 * ms, "x")] for ms in (10, 20, 30, 40, 1000)]
    _, result, _ = load(lambda i, _: answer(logs[i]), times=[2.0 * i for i in range(5)])
    assert [result[f"{p}_ttft_ms"] for p in ("p50", "p90", "p95", "p99")] == pytest.approx([30, 616, 808, 961.6])
    assert result["mean_ttft_ms"] == pytest.approx(220)
    assert result["percentiles"] == "linear interpolation"
    assert math.isfinite(result["std_ttft_ms"])
