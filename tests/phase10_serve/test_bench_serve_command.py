"""`minifer bench serve` as a command: what it prints, saves and draws, when it fails, and when it is stopped."""

import asyncio
import json
import os
import signal
import sys

import pytest
from scripted_server import ServerThread, answer, in_virtual_time

from minifer.apps import cli, serve_results
from minifer.apps.loadgen.local import run_local
from minifer.apps.loadgen.record import Record
from minifer.apps.loadgen.run import Run, run_load
from minifer.apps.view.serving_figures import draw, knee
from minifer.apps.workloads import Arrival, make_workload
from minifer.llm import LLM

SMALL = ["--vocab-size", "50", "--random-input-len", "4", "--random-output-len", "2"]

#: the keys of a file that vLLM 0.32's `bench serve --save-result --save-detailed` has written
VLLM_KEYS = """
date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency duration
completed failed total_input_tokens total_output_tokens request_throughput request_goodput output_throughput
total_token_throughput input_lens output_lens ttfts itls latencies start_times queue_times generated_texts errors
max_output_tokens_per_s max_concurrent_requests mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms
median_tpot_ms std_tpot_ms p99_tpot_ms mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms p99_e2el_ms
"""


def two(*_):
    return answer([(0.001, "a"), (0.002, "b")])


def bench(capsys, server, *words):
    status = cli.main(["bench", "serve", "--base-url", server.url, *SMALL, *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_table_says_what_it_shows(capsys):
    with ServerThread(two) as server:
        status, out, _ = bench(capsys, server, "--num-prompts", "5")
    assert status == 0
    head, row, *_ = [line.split() for line in out.splitlines() if line.strip()]
    assert head[:3] == ["rate", "sent", "done"]
    assert row[:3] == ["inf", "-", "5"]
    assert "gap between events, percentiles interpolate linearly" in out
    assert "ttft 2000 ms, tpot 100 ms" in out


def test_vllms_keys_are_all_there(capsys, tmp_path):
    with ServerThread(two) as server:
        words = "--num-prompts 4 --save-detailed --goodput ttft:5000 --metadata place=here --label us --json"
        status, out, _ = bench(capsys, server, *words.split(), "--result-dir", str(tmp_path))
        assert server.bodies[0]["model"] == "tiny", "the first that the server lists"
    assert status == 0
    (path,) = tmp_path.iterdir()
    saved = json.loads(path.read_text())
    assert path.name.startswith("us-infqps-tiny-2")
    assert [key for key in VLLM_KEYS.split() if key not in saved] == []
    assert saved["request_rate"] == "inf"
    assert (saved["place"], saved["goodput_slo_ms"]) == ("here", {"ttft": 5000.0})
    assert saved["conditions"]["client"] == "minifer bench serve"
    (point,) = json.loads(out)["points"]
    assert point["completed"] == 4
    assert point == {key: saved[key] for key in point}


def test_vllms_other_flags(capsys):
    """Host and port instead of a URL, the short names of lengths, sampling, and a name that only requests use."""
    with ServerThread(two) as server:
        port = server.url.rpartition(":")[2]
        words = f"--host 127.0.0.1 --port {port} --model tiny --served-model-name other --input-len 3 --output-len 2"
        more = "--top-k 5 --repetition-penalty 1.5 --num-prompts 1 --num-warmups 0 --send-ids --disable-tqdm"
        assert cli.main(["bench", "serve", *words.split(), *more.split()]) == 0
        (body,) = server.bodies
    assert (body["model"], len(body["prompt"]), body["max_tokens"]) == ("other", 3, 2)
    assert (body["top_k"], body["repetition_penalty"]) == (5, 1.5)
    assert "top_p" not in body


def test_several_rates_give_a_figure_and_a_file_each(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ServerThread(two) as server:
        status, out, _ = bench(capsys, server, "--num-prompts", "4", "--request-rate", "200,inf", "--save-result",
                               "--result-filename", "it.json", "--percentile-metrics", "ttft")  # fmt: skip
        prompts = [tuple(body["prompt"]) for body in server.bodies]
    assert status == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["it-200.0qps.json", "it-infqps.json", "serving.png"]
    assert "figure: serving.png" in out
    assert len(set(prompts)) == len(prompts) == 10, "2 x (4 and a warm-up), no prompt twice"
    saved = json.loads((tmp_path / "it-infqps.json").read_text())
    assert "median_tpot_ms" not in saved
    assert "median_ttft_ms" in saved
    assert saved["num_prompts"] == 4, "the warm-up is in no figure"


def test_failures_come_first_and_in_the_exit_status(capsys):
    def script(i, _):
        return two() if i % 2 else [(0.0, b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nfull")]

    with ServerThread(script) as server:
        status, out, _ = bench(capsys, server, "--num-prompts", "4", "--num-warmups", "0")
        assert status == 1
        assert out.splitlines()[0] == "2 requests failed and are in no figure; the first: HTTP 503: full"
        assert "2 (2 failed)" in out
        status, _, err = bench(capsys, server, "--num-prompts", "4")
    assert status == 2
    assert "the warm-up failed: HTTP 503: full" in err


def test_what_was_measured_before_a_server_went_is_shown(capsys):
    broken = [(0.0, b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")]
    with ServerThread(lambda i, _: two() if i < 3 else broken) as server:
        status, out, err = bench(capsys, server, "--num-prompts", "2", "--request-rate", "500,inf")
    assert status == 2
    assert "500" in out.splitlines()[1].split()
    assert "the warm-up failed: HTTP 500" in err


def test_an_answer_that_does_not_come_has_failed(capsys):
    with ServerThread(lambda *_: answer([(30.0, "late")])) as server:
        words = ["--num-prompts", "1", "--num-warmups", "0", "--request-timeout", "0.05"]
        status, out, _ = bench(capsys, server, *words)
    assert status == 1
    assert "the answer was not complete after 0.05 s" in out


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_gives_what_there_is(capsys):
    """The fourth of six requests never ends; the three before it are the result."""

    def script(i, _):
        if i == 3:
            os.kill(os.getpid(), signal.SIGINT)
            return answer([(60.0, "never")])
        return two()

    with ServerThread(script) as server:
        status, out, _ = bench(capsys, server, "--num-prompts", "6", "--num-warmups", "0", "--max-concurrency", "1")
    assert status == 130
    assert out.splitlines()[0] == "stopped early: 3 of 6 requests are not in the figures"
    assert "answers are shorter" not in out


def test_cancelling_marks_what_is_under_way():
    async def main():
        async def send(arrival, record, now):
            await asyncio.sleep(10 if arrival.index == 2 else 0.1)

        arrivals = [Arrival(i, 0.5 * i, (1,), 1) for i in range(5)]
        task = asyncio.create_task(run_load(arrivals, send, now=asyncio.get_running_loop().time))
        await asyncio.sleep(1.55)
        task.cancel()
        return await task

    run = in_virtual_time(main)
    assert run.interrupted
    assert [r.done for r in run.records] == [True, True, False, False, False]
    assert [r.unfinished for r in run.records] == [False, False, True, True, False]
    result = serve_results.vllm_json(run)
    assert (result["completed"], result["failed"], result["unfinished"]) == (2, 0, 3)


class Ticks:
    """A clock that moves 1 ms whenever it is read, and further only when somebody sleeps."""

    def __init__(self):
        self.time = 0.0

    def now(self):
        self.time += 0.001
        return self.time

    def sleep(self, seconds):
        self.time += seconds


def test_in_process_it_is_the_engine_that_stamps():
    """One stamp per token, from when the request was due; the answers are those of `generate`."""
    clock = Ticks()
    with LLM("tiny", clock=clock, room="reference") as llm:
        arrivals = make_workload(num_prompts=6, request_rate=20, tokenizer=llm.tokenizer, random_input_len=9,
                                 random_output_len=5, seed=2)  # fmt: skip
        run = run_local(llm, arrivals, ignore_eos=True, sleep=clock.sleep)
        texts = [r.text for r in run.records]
        limited = run_local(llm, arrivals, ignore_eos=True, max_concurrency=1, sleep=clock.sleep)
    assert [r.tokens for r in run.records] == [5] * 6
    assert [r.sent for r in run.records] == [a.at for a in arrivals]
    result = serve_results.vllm_json(run)
    assert result["itl_of"] == "token"
    assert [r.metrics().e2e for r in run.records] == pytest.approx([r.events[-1][0] - r.sent for r in run.records])
    assert all(len(r.metrics().itl) == 4 and r.metrics().ttft > 0 for r in run.records)
    assert result["total_input_tokens"] == 54
    assert result["median_queue_ms"] is not None
    late = serve_results.vllm_json(limited, max_concurrency=1)
    assert late["max_concurrent_requests"] == 1
    assert late["median_ttft_including_client_queue_ms"] > late["median_ttft_ms"]
    assert [r.text for r in limited.records] == texts


def test_in_process_command(capsys):
    status = cli.main(["bench", "serve", "--backend", "in-process", "--model", "tiny", "--num-prompts", "3",
                       "--random-input-len", "4", "--random-output-len", "2", "--ignore-eos", "--json"])  # fmt: skip
    assert status == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert (point["completed"], point["total_output_tokens"], point["itl_of"]) == (3, 6, "token")


def test_the_same_seed_twice_in_process_is_said_to_be_cached():
    with LLM("tiny", room="reference") as llm:
        arrivals = make_workload(num_prompts=2, tokenizer=llm.tokenizer, random_input_len=40, random_output_len=2)
        first, second = (serve_results.vllm_json(run_local(llm, arrivals, ignore_eos=True)) for _ in range(2))
    assert (first["total_cached_tokens"], first["warnings"]) == (0, [])
    assert second["warnings"][0].startswith("64 of 80 prompt tokens came out of the server's prefix cache")


@pytest.mark.parametrize(
    "words",
    [["--request-rate", "0"], ["--request-rate", "fast"], ["--burstiness", "-1"], ["--goodput", "itl:3"],
     ["--percentile-metrics", "speed"], ["--metric-percentiles", "101"], ["--max-concurrency", "0"],
     ["--num-warmups", "-1"], ["--extra-body", "[]"], ["--header", "x"], ["--random-range-ratio", "a"],
     ["--metadata", "x"], ["--figure", "/no/such/folder/x.png"], ["--num-prompts", "0"], ["--backend", "telnet"],
     ["--backend", "in-process", "--top-p", "0.5"], ["--backend", "in-process", "--header", "a=b"],
     ["--figure", "x.bmp"], ["--result-dir", __file__]],
)  # fmt: skip
def test_what_makes_no_sense_is_one_line(capsys, words):
    with ServerThread(two) as server:
        status, out, err = bench(capsys, server, *words)
        assert server.bodies == []
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_nobody_is_there(capsys):
    words = ["--base-url", "http://127.0.0.1:9", "--ready-check-timeout-sec", "0.1", "--num-prompts", "1"]
    assert cli.main(["bench", "serve", *SMALL, *words]) == 2
    assert "no server at 127.0.0.1:9" in capsys.readouterr().err


def point(rate, throughput):
    runs = Run([Record(0, 0.0, 4, 2, 0.0, [(0.5, "a"), (0.6, "b")], output_tokens=2)], 1 / throughput)
    return serve_results.vllm_json(runs, request_rate=rate)


def test_the_knee_is_where_a_server_stops_keeping_up(tmp_path):
    passed = [point(1.0, 0.98), point(2.0, 1.5), point(float("inf"), 1.6)]
    assert knee(passed) == pytest.approx(1.6)
    assert knee([point(1.0, 0.98), point(float("inf"), 1.6)]) is None, "no finite rate lies above it"
    assert knee([point(float("inf"), 1.6)]) is None
    assert draw({"a": passed, "b": passed[:1]}, tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    nothing = serve_results.vllm_json(Run([], 0.0))
    assert draw({"a": [nothing]}, tmp_path / "y.png") is None
    assert nothing["output_throughput"] is None
