"""`minifer bench compare`: turns, servers that stand still, the same work, the page."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from scripted_server import ServerThread, answer, chunk

from minifer.apps import cli
from minifer.apps.compare_same import agreement, same_work
from minifer.apps.loadgen.record import Record

OLLAMA = json.loads((Path(__file__).parent / "data" / "ollama_generate.json").read_text("utf-8"))
HERE = Path(__file__).resolve().parents[1]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="processes cannot be stopped there")

#: a whole server in a process: writes its port to a file, then does as a ScriptedServer does
PROCESS = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from scripted_server import ScriptedServer, answer
async def main():
    async with ScriptedServer(lambda *_: answer([(0.001, "a"), (0.002, "b")], prompt=4)) as server:
        open(sys.argv[2], "w").write(server.url)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def no_figure(request, monkeypatch):
    """Drawing takes half a second, and the page's test has one drawn."""
    if "page" not in request.node.name:
        monkeypatch.setattr("minifer.apps.view.serving_figures.draw", lambda *_: None)


def two(*_):
    return answer([(0.001, "a"), (0.002, "b")], prompt=4)


def compare(capsys, tmp_path, servers, *words, n=3):
    """Run the command on `{name: url}`; status, output, the JSON it wrote (or None)."""
    small = ["--vocab-size", "50", "--random-input-len", "4", "--random-output-len", "2", "--num-prompts", str(n)]
    names = [f"{name}={url}" for name, url in servers.items()]
    status = cli.main(["bench", "compare", *names, *small, "--result-dir", str(tmp_path / "out"), *words])
    out, err = capsys.readouterr()
    path = tmp_path / "out" / "compare.json"
    return status, out + err, json.loads(path.read_text()) if path.exists() else None


def test_all_get_the_same_requests_in_turns_that_reverse(capsys, tmp_path):
    order = []

    def note(name):
        return lambda *_: order.append(name) or two()

    with ServerThread(note("x")) as x, ServerThread(note("y")) as y:
        status, out, found = compare(capsys, tmp_path, {"x": x.url, "y": y.url}, "--rate", "100,200,inf")
        assert [b["prompt"] for b in x.bodies] == [b["prompt"] for b in y.bodies]
        assert {b["temperature"] for b in x.bodies + y.bodies} == {0.0}
        assert all(b["ignore_eos"] for b in x.bodies + y.bodies)
    assert status == 0
    assert order == [*"xxxx", *"yyyy", *"yyyy", *"xxxx", *"xxxx", *"yyyy"], "a warm-up and 3 requests each"
    assert [p["request_rate"] for p in found["points"]["x"]] == [100.0, 200.0, "inf"]
    assert found["same_work"]["100"][0]["equal_texts"] == 3
    assert "rate inf: y and x: 3 of 3 answers with equally many tokens, 3 equal texts" in out
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names >= {"compare.md", "compare.json", "x-100qps.json", "y-infqps.json"}


def test_the_page_holds_figures_and_conditions(capsys, tmp_path):
    with ServerThread(two, pages={"/version": {"version": "0.32.0"}}) as x, ServerThread(two) as y:
        compare(capsys, tmp_path, {"x": x.url, "y": y.url}, "--rate", "100,inf", "--model", "y=other")
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out" / "compare.md").read_text()
    for words in ("| 100 | x | 3 | 0 |", "| inf | y | 3 | 0 |", "| 100 | y | x | 3 | 3 | 3 | 3 | 100% |",
                  "| 100 | x / y |",
                  "(compare.png)", "model `other`", "version 0.32.0", "left alone: it shares the machine",
                  "usable_cores", "random, 4 tokens in, 2 out, 3 requests a point, seed 0", "load average before",
                  "Percentiles interpolate linearly"):  # fmt: skip
        assert words in page


def test_other_work_is_found_out(capsys, tmp_path):
    """One token less, or another text: said first, and in the exit status."""
    with ServerThread(two) as x, ServerThread(lambda *_: answer([(0.001, "a")], prompt=4)) as y:
        status, out, found = compare(capsys, tmp_path, {"x": x.url, "y": y.url}, "--rate", "inf")
    assert status == 1
    assert "rate inf: y: 3 of 3 answers differ from x's in the number of output tokens" in out.splitlines()
    assert found["same_work"]["inf"][0]["equal_output_tokens"] == 0
    with ServerThread(two) as x, ServerThread(lambda *_: answer([(0.0, "p"), (0.1, "q")], prompt=4)) as y:
        status, out, _ = compare(capsys, tmp_path, {"x": x.url, "y": y.url}, "--rate", "inf")
    assert status == 1
    assert "rate inf: y: its texts agree with x's over 0% only" in out


def test_how_far_texts_agree():
    def record(text, tokens=3, **more):
        return Record(0, 0.0, sent=0.0, events=[(1.0, text)], output_tokens=tokens, prompt_tokens=2, **more)

    assert [agreement("abcd", text) for text in ("abcd", "abxd", "ab", "")] == [1.0, 0.5, 0.5, 0.0]
    ours = [record("abcd"), record("abcd"), record("abcd"), record("abcd", error="x")]
    theirs = [record("abcd"), record("abxy", 4), record("abcz"), record("abcd")]
    (same,) = same_work({"a": ours, "b": theirs})
    assert (same.compared, same.equal_texts, same.equal_output_tokens, same.median_agreement) == (3, 1, 2, 0.75)
    assert same.faults == ["b: 1 of 3 answers differ from a's in the number of output tokens"]
    assert same_work({"a": ours}) == []


def test_ollama_takes_part_by_its_own_protocol(capsys, tmp_path, tiny_path):
    """A recorded exchange beside a server with OpenAI's API that gives the same answer."""
    lines = [json.loads(text) for _, text in OLLAMA["chunks"]]
    texts = [(0.01 * i, line["response"]) for i, line in enumerate(lines)]
    ndjson = [(0.0, OLLAMA["head"].encode()), *((0.01 * i, chunk(text.encode())) for i, (_, text) in
              enumerate(OLLAMA["chunks"])), (0.08, chunk(b""))]  # fmt: skip
    pages = {"/api/tags": OLLAMA["tags"], "/api/version": OLLAMA["version"]}
    with ServerThread(lambda *_: answer(texts, prompt=12)) as x, ServerThread(lambda *_: ndjson, pages=pages) as o:
        words = ["--random-input-len", "12", "--random-output-len", "8", "--tokenizer", str(tiny_path)]
        status, out, found = compare(capsys, tmp_path, {"x": x.url, "ollama": o.url}, "--rate", "inf", *words)
        assert set(o.paths) == {"/api/generate"}
        assert o.bodies[0]["prompt"] == x.bodies[0]["prompt"]
        assert o.bodies[0]["options"]["num_predict"] == 8
    assert status == 0, out
    assert found["points"]["ollama"][0]["total_output_tokens"] == 24
    about = found["conditions"]["servers"]["ollama"]
    assert (about["model"], about["version"], about["backend"]) == ("smollm2:135m", "0.12.6", "ollama")


def test_one_server_gone_leaves_what_was_measured(capsys, tmp_path):
    """Its warm-up fails at the second rate; the first rate is on the page, and as JSON on the screen."""
    broken = [(0.0, b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")]
    with ServerThread(two) as x, ServerThread(lambda i, _: broken if i > 3 else two()) as y:
        servers = {"x": x.url, "y": y.url}
        status, out, found = compare(capsys, tmp_path, servers, "--rate", "100,inf", "--json")
    assert status == 2
    printed, end = json.JSONDecoder().raw_decode(out)
    assert printed == found
    assert [(name, len(points)) for name, points in found["points"].items()] == [("x", 1), ("y", 1)]
    assert "the warm-up failed" in out[end:]


def test_failed_requests_are_in_the_exit_status(capsys, tmp_path):
    broken = [(0.0, b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")]
    with ServerThread(two) as x, ServerThread(lambda i, _: broken if i == 2 else two()) as y:
        status, out, found = compare(capsys, tmp_path, {"x": x.url, "y": y.url}, "--rate", "inf")
    assert status == 1
    assert "y, rate inf: 1 requests failed" in out
    assert found["same_work"]["inf"][0]["compared"] == 2


@pytest.fixture
def process(tmp_path):
    """A server in a process of its own: `(command, how to learn its URL, pid)`; ended afterwards."""
    url = tmp_path / "url"
    (tmp_path / "server.py").write_text(PROCESS)
    command = [sys.executable, str(tmp_path / "server.py"), str(HERE), str(url)]
    running = subprocess.Popen(command)
    while not (url.exists() and url.read_text()):
        assert running.poll() is None
    yield running, url.read_text()
    running.kill()
    running.wait()


@POSIX
def test_who_is_not_in_turn_stands_still_and_goes_on_afterwards(capsys, tmp_path, process):
    running, url = process
    seen = []

    def look(*_):
        seen.append(psutil.Process(running.pid).status())
        return two()

    with ServerThread(look) as x:
        status, out, found = compare(capsys, tmp_path, {"x": x.url, "y": url}, "--rate", "100,inf", "--pid",
                                     f"y={running.pid}")  # fmt: skip
    assert status == 0, out
    assert set(seen) == {psutil.STATUS_STOPPED}
    assert psutil.Process(running.pid).status() != psutil.STATUS_STOPPED
    assert found["conditions"]["servers"]["y"]["idle"] == "stopped (SIGSTOP)"


@POSIX
def test_what_is_started_here_ends_here(capsys, tmp_path, process):
    """Its port is known beforehand, as with a real server; each turn anew with --restart."""
    from minifer.apps import compare_peers

    running, url = process
    port = url.rpartition(":")[2]
    running.kill()
    running.wait()
    source = (tmp_path / "server.py").read_text().replace("ScriptedServer(", f"ScriptedServer(port={port}, script=")
    (tmp_path / "server.py").write_text(source)
    started, start = [], compare_peers._start
    with pytest.MonkeyPatch.context() as patch, ServerThread(two) as x:
        patch.setattr(compare_peers, "_start", lambda *words: started.append(start(*words)) or started[-1])
        for words, times in ((["--restart"], 2), ([], 1)):
            started.clear()
            command = f"{sys.executable} {tmp_path / 'server.py'} {HERE} {tmp_path / 'url'}"
            status, out, found = compare(capsys, tmp_path, {"x": x.url, "y": f"127.0.0.1:{port}"}, "--rate", "100,inf",
                                         "--start", f"y={command}", *words)  # fmt: skip
            assert status == 0, out
            assert [p.returncode is not None for p in started] == [True] * times
    assert found["conditions"]["servers"]["y"]["command"] == command


@POSIX
def test_ctrl_c_leaves_no_server_standing(capsys, tmp_path, process):
    running, url = process

    def stop(i, _):
        if i == 2:
            os.kill(os.getpid(), signal.SIGINT)
            return answer([(60.0, "never")])
        return two()

    with ServerThread(stop) as x:
        status, out, found = compare(capsys, tmp_path, {"x": x.url, "y": url}, "--rate", "inf", "--pid",
                                     f"y={running.pid}", "--max-concurrency", "1")  # fmt: skip
    assert status == 130
    assert "stopped early: 2 of 3 requests are not in the figures" in out
    assert found["conditions"]["interrupted"]
    assert psutil.Process(running.pid).status() != psutil.STATUS_STOPPED


@POSIX
def test_a_server_that_does_not_start_says_why(capsys, tmp_path):
    words = "import sys; sys.exit('no such model')"
    status, out, _ = compare(capsys, tmp_path, {"y": "127.0.0.1:9"}, "--start",
                             f'y={sys.executable} -c "{words}"')  # fmt: skip
    assert status == 2
    assert "y: it has ended; no server at 127.0.0.1:9" in out
    assert "no such model" in out


@pytest.mark.parametrize(
    "words",
    [["x"], ["x="], ["x=h:1", "x=h:2"], ["x=h:1", "--pid", "z=3"], ["x=h:1", "--pid", "x=me"],
     ["x=h:1", "--pid", "x=999999999"], ["x=h:1", "--backend", "x=telnet"], ["x=ftp://h"], ["a/b=h:1"],
     ["x=h:1", "--pid", "x=1", "--start", "x=true"], ["x=h:1", "--start", "x=/no/such/program"],
     ["x=h:1", "--goodput", "speed:1"]],
)  # fmt: skip
def test_what_makes_no_sense(capsys, tmp_path, words):
    assert cli.main(["bench", "compare", *words, "--result-dir", str(tmp_path), "--vocab-size", "9"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
