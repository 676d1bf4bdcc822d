"""`minifer bench micro --peers` with peers made of a few lines of Python: one that works and several that do not."""

import json
import sys

import pytest

from minifer.apps import bench_micro, bench_peers, cli
from minifer.roofline.probes import Ceilings
from minifer.roofline.speed import Job

GOOD = """
import json, os, sys
model, threads = sys.argv[1:]
assert os.path.exists(model), model
print("chatter of the engine")
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    print("more chatter")
    if job["batch"] > 1:
        print(json.dumps({"error": "ValueError: one at a time"}), flush=True)
    else:
        print(json.dumps({"seconds": (job["n_prompt"] + job["n_gen"]) / (8 if job["warmup"] else 4)}), flush=True)
"""
DIES_AT_ONCE = "import sys; print('no such engine', file=sys.stderr); sys.exit(3)"
DIES_LATER = 'import sys; print(\'{"ready": true}\', flush=True); sys.stdin.readline(); sys.exit("out of memory")'
MUTE = "import time; time.sleep(60)"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a peer: `install(name, source of its driver)`."""
    monkeypatch.setenv("MINIFER_PEERS", str(tmp_path))
    monkeypatch.setattr(bench_micro, "measure_ceilings", lambda *_, **__: Ceilings(10e9, 100e9, 1, 2))

    def one(name, source, **more):
        (tmp_path / name).mkdir()
        (tmp_path / name / "driver.py").write_text(source)
        command = [sys.executable, str(tmp_path / name / "driver.py")]
        manifest = {"name": name, "version": "7", "form": "gguf", "command": command} | more
        (tmp_path / name / "peer.json").write_text(json.dumps(manifest))
        return tmp_path / name

    return one


def run(capsys, *words):
    status = cli.main(["bench", "micro", "tiny", "-p", "8", "-n", "4", "-r", "2", "--room", "reference", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_peer_takes_part(install, capsys):
    """Its rows stand beside ours: the same weights in its own form, its KV width, its refusal of one test."""
    install("good", GOOD, kv_width=2)
    status, out, err = run(capsys, "--peers", "--json", "-b", "1,2")
    assert status == 0
    rows = {(row["test"], row["backends"]): row for row in json.loads(out)["rows"]}
    assert list(rows) == [
        ("pp8", "minifer reference"), ("pp8", "good"), ("tg4", "minifer reference"), ("tg4", "good"),
        ("tg4 b2", "minifer reference"),
    ]  # fmt: skip
    good, ours = rows["tg4", "good"], rows["tg4", "minifer reference"]
    assert good["samples_ts"] == [4.0, 4.0]  # what it said, and not what it said while warming up
    assert (good["build_number"], good["type_k"], ours["type_k"]) == ("7", "f16", "f32")
    assert ours["bytes"] - good["bytes"] == 2 * 2 * 4 * 2 * 24 * (1 + 2 + 3 + 4)
    assert "tg4 b2 left out: good: ValueError: one at a time" in err


@pytest.mark.parametrize("form", ["gguf", "hf"])
def test_the_model_is_exported_in_the_form_a_peer_wants(install, capsys, form):
    """And nothing is left behind afterwards."""
    install("good", GOOD.replace("print(", f"print(model.endswith('.gguf') == {form == 'gguf'} or 1/0, ", 1), form=form)
    status, out, _ = run(capsys, "--peer", "good", "--json")
    assert (status, len(json.loads(out)["rows"])) == (0, 4)


def test_peers_that_fail_are_left_out(install, capsys):
    """One never starts, one dies at its first job: the reasons are on stderr, the others are measured."""
    install("a_dead", DIES_AT_ONCE)
    install("dying", DIES_LATER)
    install("good", GOOD)
    install("nothing", GOOD, command=["/nonexistent/program"])
    status, out, err = run(capsys, "--peers", "--json")
    assert status == 0
    assert [r["backends"] for r in json.loads(out)["rows"]] == ["minifer reference", "good"] * 2
    assert "left out: a_dead has ended: no such engine" in err
    assert "left out: dying has ended: out of memory" in err
    assert "left out: nothing cannot be started" in err


def test_a_mute_peer_is_given_up(install, monkeypatch, tmp_path):
    """A limit for starting; the process is ended."""
    install("mute", MUTE)
    monkeypatch.setattr(bench_peers, "START_S", 0.2)
    monkeypatch.setattr(bench_peers, "PATIENCE_S", 0.1)
    with (tmp_path / "log").open("w") as log, pytest.raises(bench_peers.PeerError, match=r"no answer for 0\.2 s"):
        bench_peers.PeerBench(bench_peers.chosen(["mute"])[0], tmp_path, 1, log)


def test_an_end_is_final(install, tmp_path, monkeypatch):
    """A driver that closes its output while its process lingers: every further question fails at once."""
    install("lingers", "import os, time; print('{\"ready\": true}', flush=True); os.close(1); time.sleep(60)")
    monkeypatch.setattr(bench_peers, "PATIENCE_S", 0.1)
    with (tmp_path / "log").open("w") as log:
        bench = bench_peers.PeerBench(bench_peers.chosen([])[0], tmp_path, 1, log)
        for _ in range(3):
            with pytest.raises(bench_peers.PeerError, match="lingers has ended"):
                bench.run(Job(n_gen=8))
        bench.close()


def test_a_driver_ends_when_it_is_closed(install, tmp_path):
    """By the end of its input."""
    install("good", GOOD)
    with (tmp_path / "log").open("w") as log:
        bench = bench_peers.PeerBench(bench_peers.chosen([])[0], tmp_path, 1, log)
        assert bench.run(Job(n_gen=8)) == 2.0
        bench.close()
    assert bench._process.returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [(("--peer", "bad"), "no peer is called 'bad': there are good"), (("--peers",), "install it again")],
)
def test_bad_names_and_bad_manifests(install, capsys, words, says):
    """Refused before the model is loaded."""
    folder = install("good", GOOD)
    if words == ("--peers",):
        (folder / "peer.json").write_text('{"name": "good"}')
    status, out, err = run(capsys, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err
