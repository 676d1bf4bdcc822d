"""The server on Ray: what it refuses everywhere, and with `--ray` two real actors that answer, die and come back."""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from minifer import LLM
from minifer.apps import serve_cli
from minifer.apps.serve import ray_command
from minifer.errors import UsageError
from minifer.sampling_params import SamplingParams
from tests.serving import events_of

PROMPTS = ("Once upon a time", "The capital of", "Mia lived in", "A clock maker")
LONG = {"max_tokens": 900, "temperature": 0, "ignore_eos": True}


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve_cli.add_parser(parser.add_subparsers())
    return parser.parse_args(["serve", "tiny", *given])


def test_replicas_are_a_number_or_a_span():
    assert ray_command.check(arguments("--ray")) == (1, 1)
    assert ray_command.check(arguments("--ray", "--replicas", "3")) == (3, 3)
    assert ray_command.check(arguments("--ray", "--replicas", "2..8", "--address", "auto")) == (2, 8)


@pytest.mark.parametrize("replicas", ["8..2", "0", "0..2", "-1", "2..", "..3", "two", "1.5", "2...8", "1" * 6])
def test_replicas_out_of_order(replicas):
    with pytest.raises(UsageError, match="--replicas"):
        ray_command.check(arguments("--ray", f"--replicas={replicas}"))


@pytest.mark.parametrize(
    "option",
    ["--devices=cpu,cpu", "--trace=t.jsonl", "--live", "--max-connections=9", "--silence=9", "--read-timeout=9"],
)
def test_what_ray_decides_is_refused_and_not_ignored(option):
    with pytest.raises(UsageError, match=option.partition("=")[0] + " does not go with --ray"):
        ray_command.check(arguments("--ray", option))


def test_options_of_ray_need_ray():
    for option in ("--replicas=2", "--address=auto"):
        with pytest.raises(UsageError, match=r"say --ray too"):
            ray_command.check(arguments(option))


def test_without_ray_installed_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(ray_command.os, "environ", dict(os.environ))
    with pytest.raises(UsageError, match=r"pip install 'minifer\[ray\]'"):
        ray_command.run(arguments("--ray"))


@pytest.mark.parametrize("address", ["here", "10.0.0.1", "host:port", ":6379"])
def test_an_address_is_auto_or_host_and_port(address):
    with pytest.raises(UsageError, match="HOST:PORT"):
        ray_command._join(None, address)


def test_an_address_where_no_cluster_is():
    with pytest.raises(UsageError, match=r"no Ray cluster answers at 127\.0\.0\.1:9: start one"):
        ray_command._join(None, "127.0.0.1:9")


def test_a_cluster_that_goes_away():
    with socket.create_server(("127.0.0.1", 0)) as cluster:
        address = f"127.0.0.1:{cluster.getsockname()[1]}"
        assert ray_command._answers(address)
    with pytest.raises(ray_command.GoneAway, match=f"cluster at {address} has gone away"):
        ray_command._watch(address)


def test_the_reason_is_found_in_a_page_of_tracebacks():
    text = "Deploying failed\n  File x.py\nminifer.errors.DeviceError: replica 0 did not start: no such file\n\n  more"
    assert ray_command.reason_of(text) == "replica 0 did not start: no such file"
    assert ray_command.reason_of("one\ntwo\n") == "two"


# ---- with Ray ------------------------------------------------------------------------------------------------------


class Served:
    """`minifer serve tiny --ray` in a process of its own."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "minifer", "serve", *options]
        path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        self.said: list[str] = []

    def url(self) -> str:
        """Where it listens, once it does."""
        for line in self.process.stderr or ():
            self.said.append(line)
            if found := re.search(r"served at (http://\S+);", line):
                return found.group(1)
        raise AssertionError(f"it did not start: {self.said}")

    def actors(self, deployment: str = "Engine") -> list[psutil.Process]:
        """The processes of the replicas."""
        mine = psutil.Process(self.process.pid).children(recursive=True)
        return [p for p in mine if f"ServeReplica:minifer:{deployment}" in " ".join(_cmdline(p))]

    def stop(self) -> int:
        """Ctrl-C; nothing may be left of it."""
        mine = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        _, alive = psutil.wait_procs(mine, 20)
        assert not alive
        return code


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    pytest.importorskip("ray.serve")
    server = Served("tiny", "--ray", "--replicas", "2..3", "--port", "0", "--num-blocks", "2048")
    server.address = server.url()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def solo() -> dict[str, str]:
    """What one engine says alone."""
    with LLM("tiny", device="cpu") as llm:
        params = SamplingParams(temperature=0, max_tokens=LONG["max_tokens"], ignore_eos=True)
        return {prompt: llm.generate(prompt, params)[0].text for prompt in PROMPTS}


def ask(served, **body):
    return httpx.post(f"{served.address}/v1/completions", json=body, timeout=60, trust_env=False)


@pytest.mark.ray
def test_both_actors_answer_and_say_what_one_engine_says(served, solo):
    def one(i):
        return ask(served, prompt=PROMPTS[i % 4], **LONG).json()["choices"][0]["text"]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(16))) == [solo[PROMPTS[i % 4]] for i in range(16)]
    for _ in range(100):
        page = httpx.get(f"{served.address}/metrics", trust_env=False).text
        queries = [
            float(n) for n in re.findall(r"^minifer:prefix_cache_queries_total\{.*?\} (\S+)$", page, re.MULTILINE)
        ]
        if sum(n > 0 for n in queries) >= 2:
            break
        threading.Event().wait(0.1)
    assert sum(n > 0 for n in queries) >= 2
    assert httpx.get(f"{served.address}/health", trust_env=False).json()["replicas_alive"] >= 2


@pytest.mark.ray
def test_a_prefix_goes_where_its_blocks_are(served):
    """128 tokens that both have never seen; then, one after the other, prompts that begin with them."""
    ids = [5 + (7 * i) % 200 for i in range(128)]
    cached = []
    for i in range(6):
        usage = ask(served, prompt=[*ids, 300 + i], max_tokens=1).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 128, 128, 128, 128, 128]


@pytest.mark.ray
def test_it_streams_to_the_openai_client(served, solo):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{served.address}/v1", api_key="none")
    stream = client.completions.create(
        model="tiny", prompt=PROMPTS[0], max_tokens=20, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    chunks = [chunk.choices[0] for chunk in stream if chunk.choices]
    assert len(chunks) >= 20
    assert chunks[-1].finish_reason == "length"
    text = "".join(chunk.text for chunk in chunks)
    assert len(text) > 20
    assert solo[PROMPTS[0]].startswith(text)


@pytest.mark.ray
def test_errors_keep_their_form(served):
    reply = ask(served, prompt="x", max_tokens=-1)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "max_tokens")
    assert httpx.get(f"{served.address}/health", headers={"Host": "evil"}, trust_env=False).status_code == 403


@pytest.mark.ray
def test_an_actor_that_is_killed_loses_nothing_in_silence(served, solo):
    """Whoever waited for the whole answer gets it, done again; whoever had a part of it is told."""
    begun = [threading.Event() for _ in range(12)]

    def whole(i):
        return ask(served, prompt=PROMPTS[i % 4], **LONG)

    def streamed(i):
        data = b""
        body = {"prompt": PROMPTS[i % 4], **LONG, "stream": True}
        with httpx.stream("POST", f"{served.address}/v1/completions", json=body, timeout=60, trust_env=False) as reply:
            for part in reply.iter_raw():
                data += part
                begun[i].set()
        return events_of(data)

    victims = served.actors()
    assert len(victims) >= 2
    with ThreadPoolExecutor(24) as pool:
        streams = [pool.submit(streamed, i) for i in range(12)]
        assert all(event.wait(60) for event in begun)
        victims[0].suspend()
        wholes = [pool.submit(whole, i) for i in range(12)]
        threading.Event().wait(0.5)  # about half of them have been sent to the one that is dying
        victims[0].kill()
        replies = [future.result(90) for future in wholes]
        ends = [future.result(90) for future in streams]
    assert [reply.status_code for reply in replies] == [200] * 12
    assert [reply.json()["choices"][0]["text"] for reply in replies] == [solo[PROMPTS[i % 4]] for i in range(12)]
    cut = 0
    for i, events in enumerate(ends):
        choices = [event["choices"][0] for event in events if isinstance(event, dict) and event.get("choices")]
        text = "".join(choice["text"] for choice in choices)
        if any(isinstance(event, dict) and "error" in event for event in events):
            cut += 1
            assert solo[PROMPTS[i % 4]].startswith(text)
        else:
            assert text == solo[PROMPTS[i % 4]]
            assert choices[-1]["finish_reason"] == "length"
    assert 0 < cut < 12
    for _ in range(300):
        if len([p for p in served.actors() if p != victims[0]]) >= 2:
            break
        threading.Event().wait(0.1)
    assert len([p for p in served.actors() if p != victims[0]]) >= 2
    assert ask(served, prompt=PROMPTS[1], **LONG).json()["choices"][0]["text"] == solo[PROMPTS[1]]


@pytest.mark.ray
def test_a_queue_brings_another_actor(served):
    """Three times a full batch each, for as long as it takes: the span of 2..3 is used up."""
    over = threading.Event()

    def keep_asking():
        while not over.is_set():
            assert ask(served, prompt="x", **LONG).status_code == 200

    with ThreadPoolExecutor(48) as pool:
        asking = [pool.submit(keep_asking) for _ in range(48)]
        for _ in range(600):
            if len(served.actors()) == 3:
                break
            threading.Event().wait(0.1)
        found = len(served.actors())
        over.set()
        for future in asking:
            future.result(60)
    assert found == 3
