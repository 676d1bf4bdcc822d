"""/metrics under vLLM's names: what it counts is what happened, and it comes back to rest by itself."""

import json
import socket
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving import raw_request, running

HISTOGRAMS = ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds")


def test_counts_after_finished_and_aborted_requests():
    """K finished, A given up by their clients: the first by reason, the second as aborts, and then nothing is left."""
    finished, aborted, tokens = 5, 4, 7
    with running(engine={"max_num_seqs": 3}) as server:
        for i in range(finished):
            body = {"prompt": f"Once {i}", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            server.post("/v1/completions", body)
        for i in range(aborted):
            leave_early(server, i)
        assert server.quiet()
        assert server.metric("request_success_total", finished_reason="length") == finished
        assert server.metric("request_success_total", finished_reason="abort") == aborted
        assert server.metric("request_success_total") == finished + aborted
        assert server.metric("time_to_first_token_seconds_count") == finished + aborted
        assert server.metric("e2e_request_latency_seconds_count") == finished
        assert server.metric("request_generation_tokens_sum") == finished * tokens
        assert server.metric("inter_token_latency_seconds_count") >= finished * (tokens - 1)
        for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert server.metric(gauge) == 0, gauge
        assert server.metric("prompt_tokens_total") >= finished


def leave_early(server, i: int) -> None:
    """Start a long stream and leave when its first token is there."""
    body = {"prompt": f"Twice {i}", "max_tokens": 900, "stream": True, "ignore_eos": True}
    with server.connect() as sock:
        sock.sendall(raw_request(body))
        assert b"200 OK" in sock.recv(65536)


def test_buckets_are_cumulative_and_end_with_the_count(server):
    server.post("/v1/completions", {"prompt": "Once", "max_tokens": 3})
    families = {f.name: f for f in text_string_to_metric_families(server.get("/metrics").text)}
    for name in HISTOGRAMS:
        samples = families[f"minifer:{name}"].samples
        buckets = [s.value for s in samples if s.name.endswith("_bucket")]
        count = next(s.value for s in samples if s.name.endswith("_count"))
        assert buckets == sorted(buckets)
        assert buckets[-1] == count > 0
        assert next(s for s in samples if s.name.endswith("_bucket") and s.value == count).labels["le"]
    vllm = {"minifer:num_requests_running", "minifer:num_requests_waiting", "minifer:kv_cache_usage_perc"}
    vllm |= {"minifer:prefix_cache_queries", "minifer:prefix_cache_hits", "minifer:num_preemptions"}
    assert vllm <= families.keys()


def test_a_shared_beginning_shows_as_prefix_hits(server):
    before = server.metric("prefix_cache_hits_total")
    body = {"prompt": list(range(300, 340)), "max_tokens": 1}
    server.post("/v1/completions", body)
    again = server.post("/v1/completions", body).json()["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == 32
    assert server.metric("prefix_cache_hits_total") >= before + 32


def test_the_trace_holds_the_routers_choice(server):
    server.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 2})
    lines = [json.loads(line) for line in server.get("/trace").text.splitlines()]
    assert lines[0]["kind"] == "header"
    assert lines[0]["about"]["replica"] == 0
    requests = [line for line in lines if line["kind"] == "request"]
    assert requests[-1]["replica"] == 0
    assert requests[-1]["route"]
    assert requests[-1]["matched_tokens"] >= 0
    assert server.get("/trace?replica=1").status_code == 400
    assert server.get("/trace?replica=-1").status_code == 400


def test_the_trace_of_a_server_is_a_trace(server, tmp_path):
    from minifer.formats.trace_lines import read_trace

    server.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 2})
    file = tmp_path / "trace.jsonl"
    file.write_text(server.get("/trace").text, encoding="utf-8")
    assert {record["kind"] for record in read_trace(file)} >= {"header", "request", "step"}


@pytest.mark.parametrize("replica", [0])
def test_the_live_trace_is_an_event_stream(server, replica):
    with server.client.stream("GET", f"{server.url}/trace/stream?replica={replica}") as reply:
        assert reply.headers["content-type"] == "text/event-stream"
        ask = {"prompt": "Now", "max_tokens": 2}
        asking = threading.Thread(target=server.post, args=("/v1/completions", ask))
        asking.start()
        kinds = []
        for line in reply.iter_lines():
            if line.startswith("data: "):
                kinds.append(json.loads(line[6:])["kind"])
            if "step" in kinds and "request" in kinds:
                break
        asking.join()
    assert kinds[0] == "header"
    assert isinstance(server.connect(), socket.socket)
