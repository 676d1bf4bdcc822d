"""`minifer demo`: the journey is recorded from a real run; without network it goes on with `tiny`."""

import json
import subprocess
import sys

import house
import pytest

from minifer.apps import cli, demo
from minifer.roofline.probes import Ceilings


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Ceilings without half a second of measuring; a folder of its own for the figure."""
    monkeypatch.setattr(demo, "_measure", lambda size: Ceilings(20e9, 200e9, size))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_json_tells_the_whole_journey(quick, capsys):
    """Counts and times agree with each other; the figure is where the answer says."""
    assert cli.main(["demo", "--model", "tiny", "--json", "--max-tokens", "9", "--ignore-eos", "Tell me a story."]) == 0
    out, err = capsys.readouterr()
    journey = json.loads(out)
    assert err == ""
    assert journey["tokens"]["output"] == 9
    assert len(journey["itl_s"]) == 8
    assert journey["decode"]["tokens"] == 8
    assert journey["prefill"]["tokens"] == journey["tokens"]["prompt"]
    assert 0 < journey["tokenize_s"] < journey["ttft_s"]
    assert journey["decode"]["seconds"] == pytest.approx(sum(journey["itl_s"]))
    assert journey["kv_cache"] == {"bytes_per_token": 2 * 4 * 2 * 24 * 4, "tokens": journey["tokens"]["prompt"] + 8}
    assert journey["ceilings"]["drift"] == 0
    assert journey["conditions"]["dtype"] == "float32"
    assert journey["figure"] == str(quick / demo.FIGURE)
    assert (quick / demo.FIGURE).stat().st_size > 10_000


def test_the_answer_comes_before_the_numbers(quick, capsys):
    """Question, answer, stations, figure; in at most 20 lines of 100 characters."""
    assert cli.main(["demo", "--model", "tiny", "--max-tokens", "9", "--figure", "here.png"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny: ")
    assert lines[2] == f"> {demo.TINY_QUESTION}"
    names = [line.split("  ")[0].strip() for line in lines]
    assert [n for n in names if n in ("text", "tokens", "prefill", "KV cache", "decode", "TTFT", "ITL")] == [
        "text", "tokens", "prefill", "KV cache", "decode", "TTFT", "ITL",
    ]  # fmt: skip
    assert lines[-1] == "figure: here.png"
    assert (quick / "here.png").exists()
    assert max(map(len, lines[4:])) <= demo.WIDTH


def test_offline_it_goes_on_with_tiny(quick, capsys, monkeypatch):
    """Not cached and no way to fetch: it says so and still shows a journey."""
    monkeypatch.setenv("MINIFER_OFFLINE", "1")
    monkeypatch.setenv("MINIFER_HOME", str(quick / "home"))
    assert cli.main(["demo", "--max-tokens", "5"]) == 0
    out, err = capsys.readouterr()
    assert "MINIFER_OFFLINE" in err
    assert "going on with `tiny`" in err
    assert out.startswith("tiny: ")


def test_one_answer_only(capsys):
    """A journey has one traveller."""
    assert cli.main(["demo", "--n", "2"]) == 2
    assert "n must be 1" in capsys.readouterr().err


@pytest.mark.model
def test_the_capital_of_france(smollm2_path, tmp_path):
    """The main job, as a newcomer starts it."""
    command = [sys.executable, "-m", "minifer", "demo", "What is the capital of France?"]
    figure = ["--figure", str(tmp_path / "demo.png")]
    result = subprocess.run([*command, *figure], capture_output=True, text=True, cwd=house.ROOT, check=True)
    assert "\nThe capital of France is Paris.\n" in result.stdout
    assert "tokens    37 in" in result.stdout
    assert (tmp_path / "demo.png").exists()


def test_a_figure_in_a_folder_that_is_not_there_is_refused_before_the_run(capsys):
    """Not after the model has answered."""
    assert cli.main(["demo", "--figure", "no-such-folder/x.png"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no-such-folder" in captured.err
