"""`minifer serve` as a command: what it refuses, what it says, how it ends."""

import json
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from minifer.apps.cli import main
from minifer.apps.serve_cli import cores_of
from minifer.formats.trace_lines import read_trace

COMMAND = [sys.executable, "-m", "minifer", "serve", "tiny", "--device", "cpu", "--port", "0"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--devices", "cpu,"], "--devices"),
        (["--devices", "tpu"], "unknown device"),
        (["--route", "luck"], "--route"),
        (["--max-queue", "0"], "--max-queue"),
        (["--shutdown-deadline", "-1"], "--shutdown-deadline"),
        (["--read-timeout", "nan"], "--read-timeout"),
        (["--api-key", ""], "API key"),
        (["--num-blocks", "0"], "--num-blocks must be at least 1"),
        (["--max-model-len", "9999"], "replica 0 did not start: max_model_len=9999"),
        (["--port", "65536"], "--port must be at most 65535, not 65536"),
        (["--host", ""], "--host is empty"),
        (["--devices", ""], "--devices is empty"),
        (["--api-key-file", sys.executable], "is not a text file"),
        (["--no-graph"], "--no-graph"),
    ],
)
def test_mistakes_are_one_line(capsys, words, said):
    assert main(["serve", "tiny", "--device", "cpu", "--port", "0", *words]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("minifer: ")
    assert said in error


def test_a_port_that_is_taken_is_found_out_before_loading(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "tiny", "--port", str(taken.getsockname()[1])]) == 2
    assert "ddress already in use" in capsys.readouterr().err


def test_a_device_that_is_none_is_found_out_before_anything_is_fetched(monkeypatch, capsys):
    monkeypatch.setattr("minifer.hub.locate", lambda *_, **__: pytest.fail("the model was fetched"))
    assert main(["serve", "smollm2-135m", "--port", "0", "--devices", "cpu,tpu"]) == 2
    assert capsys.readouterr().err == ("minifer: unknown device 'tpu': use auto, cpu, cuda, cuda:N or strict\n")


def test_shares_of_the_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5}, raising=False)
    assert cores_of(["cpu"]) == [None]
    assert cores_of(["cpu", "cpu"]) == [[0, 1, 2], [3, 4, 5]]
    assert cores_of(["cuda:0", "cpu", "cpu"]) == [None, [0, 1, 2], [3, 4, 5]]
    assert cores_of(["cpu"] * 8)[7] == [5]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_its_whole_life(tmp_path):
    """Two replicas, a key from a file, a trace of each; SIGTERM ends it, and the traces are whole."""
    (tmp_path / "key").write_text("sesame\n")
    options = ["--devices", "cpu,cpu", "--route", "round-robin", "--api-key-file", str(tmp_path / "key")]
    options += ["--trace", str(tmp_path / "trace.jsonl"), "--served-model-name", "mine"]
    process = subprocess.Popen([*COMMAND, *options], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "is served at" not in (line := process.stderr.readline()):
        assert line, "it did not start"
    assert "mine" in line
    assert "2 replicas" in line
    url = next(word for word in line.split() if word.startswith("http"))
    body = {"model": "mine", "prompt": "Once", "max_tokens": 3}
    for _ in range(2):
        reply = httpx.post(f"{url}/v1/completions", json=body, headers={"Authorization": "Bearer sesame"})
        assert reply.status_code == 200
    assert httpx.post(f"{url}/v1/completions", json=body).status_code == 401
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=30)[1]
    assert process.returncode == -signal.SIGTERM
    lines = [json.loads(line) for line in rest.splitlines()]
    assert [line["status"] for line in lines] == [200, 200, 401]
    assert "Traceback" not in rest
    for replica in range(2):
        records = list(read_trace(tmp_path / f"trace.jsonl.{replica}"))
        (request,) = [r for r in records if r["kind"] == "request"]
        assert (request["replica"], request["route"]) == (replica, "its turn")
