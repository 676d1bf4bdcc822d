"""minifer's arithmetic against vLLM's own client, on the same bytes.

`vllm bench serve` measures a server through `tests/peers/stamping_proxy.py`. From the times at which the bytes went
by, minifer's code computes TTFT, TPOT and ITL again; both must agree within 2 %.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripted_server import ServerThread, answer

from minifer.apps import bench_peers, cli, serve_results
from minifer.apps.loadgen.client import EventReader
from minifer.apps.loadgen.protocols import APIS
from minifer.apps.loadgen.record import Record
from minifer.apps.loadgen.run import Run
from minifer.apps.loadgen.wire import Answer

ROOT = Path(__file__).resolve().parents[2]
NUM_PROMPTS, OUTPUT, WITHIN = 16, 12, 0.02
ABOUT = dict.fromkeys(("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id"))
NOT_OURS = {"rtfx"}  # of speech recognition
MINIFER = (sys.executable, "-m", "minifer")


def recompute(stamps: Path) -> list[Record]:
    """The records of all completions that went through the proxy, in the order they were sent."""
    lines = [json.loads(line) for line in stamps.read_text("utf-8").splitlines()]
    lines = sorted((x for x in lines if x["path"].endswith("/completions")), key=lambda x: x["sent"])
    return [record_of(line, i) for i, line in enumerate(lines)]


def record_of(line, index):
    record = Record(index, line["sent"], wanted_output=OUTPUT, sent=line["sent"])
    reader, stamp = EventReader(APIS["openai"], record), [0.0]
    http = Answer(lambda data: reader.feed(data, stamp[0]))
    for stamp[0], text in line["received"]:
        http.feed(text.encode("latin-1"))
    reader.end(http.head.status, stamp[0])
    return record


class Proxy:
    """The stamping proxy as a process of its own."""

    def __init__(self, upstream: str, out: Path) -> None:
        script = ROOT / "tests" / "peers" / "stamping_proxy.py"
        command = [sys.executable, str(script), "--listen", "0", "--upstream", upstream, "--out", str(out)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{self.process.stdout.readline().strip()}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture
def vllm():
    """The program `vllm`, and a folder with a tokenizer."""
    path = bench_peers.peers_home() / "vllm_cpu" / "peer.json"
    if not path.exists():
        pytest.skip("vLLM is not installed as a peer")
    return json.loads(path.read_text("utf-8"))["vllm"]


def vllm_bench(vllm, url, tokenizer, folder, model="tiny", rate=5, prompt=24):
    """Run `vllm bench serve` and return what it saved."""
    words = f"""
        bench serve --backend openai --base-url {url} --model {model} --tokenizer {tokenizer} --dataset-name random
        --random-input-len {prompt} --random-output-len {OUTPUT} --num-prompts {NUM_PROMPTS} --request-rate {rate}
        --ignore-eos --seed 3 --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90
        --save-result --save-detailed --result-dir {folder} --result-filename vllm.json --disable-tqdm"""
    command = [vllm, *words.split()]
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((folder / "vllm.json").read_text("utf-8"))


def compare(found, records, duration):
    """Mean and median of the three, relative to vLLM's; `records` without vLLM's own test request."""
    ours = serve_results.vllm_json(Run(records[-NUM_PROMPTS:], duration), percents=(50, 90), detailed=True, about=ABOUT)
    names = [f"{what}_{metric}_ms" for metric in ("ttft", "tpot", "itl", "e2el") for what in ("mean", "median")]
    return {name: (ours[name], found[name], ours[name] / found[name] - 1) for name in names}, ours


@pytest.mark.peers
def test_vllms_client_measures_the_same(vllm, tiny_path, tmp_path):
    """Against a scripted server: 16 requests, TTFT 1 to 1.3 s, gaps of 100 to 175 ms, long beside a client's delay."""

    def script(i, body):
        gap = 0.1 + 0.005 * (i % 16)
        at = [1.0 + 0.02 * (i % 16) + gap * k for k in range(body.get("max_tokens", 1))]
        return finished(answer([(t, f" w{k}") for k, t in enumerate(at)], prompt=24))

    with ServerThread(script) as server, Proxy(server.url.removeprefix("http://"), tmp_path / "stamps.jsonl") as proxy:
        found = vllm_bench(vllm, proxy.url, tiny_path, tmp_path)
        time.sleep(0.2)
    table, ours = compare(found, recompute(tmp_path / "stamps.jsonl"), found["duration"])
    report(table)
    assert found["completed"] == ours["completed"] == NUM_PROMPTS
    assert set(found) - set(ours) == NOT_OURS, "every key that vLLM writes"
    assert found["total_output_tokens"] == ours["total_output_tokens"] == NUM_PROMPTS * OUTPUT
    assert all(abs(ratio) < WITHIN for *_, ratio in table.values()), table


@pytest.mark.peers
@pytest.mark.model
def test_vllms_client_measures_minifers_server_the_same(vllm, tmp_path):
    """The same against `minifer serve smollm2-135m` in a process of its own, which sends each token in one event.

    What is left is the time that vLLM's client takes on its way to the socket, 3 to 9 ms on two busy cores: the prompts
    are long enough for that to be little."""
    folder = bench_peers.peers_home() / "exports" / "smollm2-135m-f32"
    if not folder.exists():
        subprocess.run([*MINIFER, "export", "smollm2-135m", "--to", "hf", "-o", str(folder)], cwd=ROOT, check=True)
    with MiniferServer("smollm2-135m") as server, Proxy(server.host, tmp_path / "stamps.jsonl") as proxy:
        found = vllm_bench(vllm, proxy.url, folder, tmp_path, "smollm2-135m", rate=0.8, prompt=128)
        time.sleep(0.2)
    table, ours = compare(found, recompute(tmp_path / "stamps.jsonl"), found["duration"])
    report(table)
    assert ours["completed"] == NUM_PROMPTS
    assert found["total_output_tokens"] == ours["total_output_tokens"] == NUM_PROMPTS * OUTPUT
    assert all(abs(ratio) < WITHIN for *_, ratio in table.values()), table


class MiniferServer:
    """`minifer serve` on a free port."""

    def __init__(self, model: str) -> None:
        self.model = model

    def __enter__(self):
        command = [*MINIFER, "serve", self.model, "--port", "0", "--log", "off"]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if " is served at http://" in line:
                self.host = line.split("http://")[1].split()[0]
                return self
        raise AssertionError(f"the server ended with {self.process.wait()}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)
        self.process.stderr.close()


def finished(steps):
    """The finish reason with the last token, as vLLM's server has it: its client takes an empty event for a token."""
    tail = json.dumps({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}).encode()
    return [step for step in steps if tail not in step[1]]


def report(table):
    """Shown with `pytest -s`."""
    for name, (ours, theirs, ratio) in table.items():
        sys.stderr.write(f"{name:16} minifer {ours:9.3f} ms, vLLM {theirs:9.3f} ms, {100 * ratio:+.2f} %\n")


def test_the_proxy_forwards_and_stamps(tmp_path):
    """Offline: minifer's own client through the proxy; what it measured and what the stamps say are the same answer."""
    words = "--vocab-size 50 --num-prompts 3 --random-input-len 4 --random-output-len 2 --num-warmups 0"
    with ServerThread(lambda *_: answer([(0.01, "a"), (0.02, "b")])) as server:
        with Proxy(server.url.removeprefix("http://"), tmp_path / "stamps.jsonl") as proxy:
            status = cli.main(["bench", "serve", "--base-url", proxy.url, *words.split()])
        assert status == 0
    records = recompute(tmp_path / "stamps.jsonl")
    assert [(r.text, r.tokens, r.done) for r in records] == [("ab", 2, True)] * 3
    assert all(r.metrics().ttft > 0 for r in records)
