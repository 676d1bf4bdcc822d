"""`minifer step`: the demo shows what it promises, forward and back meet, and bad workloads are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from minifer.apps.cli import main
from minifer.apps.step_cli import draw, walk
from minifer.apps.stepper import Arrival, Stepper, load_workload
from minifer.limits import EngineConfig


@pytest.fixture
def demo() -> Stepper:
    limits, arrivals = load_workload("demo")
    return Stepper(arrivals, EngineConfig(**limits))


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["step", *words]) == 0
    return capsys.readouterr().out


def test_the_demo_shows_everything_once(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "demo")
    for word in (
        "prefill",
        "decode",
        "admitted",
        "tokens cached",
        "preempted",
        "has to wait",
        "copied block",
        "(cached)",
    ):
        assert word in out, f"the demo should show: {word}"
    assert out.rstrip().endswith("every answer is the one it would have been alone")


def test_the_demo_runs_on_either_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the batch runs to its end first" in said(capsys, "--scheduler", "static")


def test_forward_and_back_show_the_same(demo: Stepper) -> None:
    frames = list(walk(demo, iter("nnnbbnne0ebq"), 1000))
    assert [f.step for f in frames[:8]] == [0, 1, 2, 3, 2, 1, 2, 3]
    assert frames[4] == frames[2]
    assert frames[9].step == 0
    assert frames[10].done
    assert frames[11].step == frames[10].step - 1
    assert len(frames) == 12


def test_a_replay_is_the_same_run(demo: Stepper) -> None:
    other = Stepper(demo.arrivals, demo.config)
    other.frame(10_000)
    demo.frame(3)
    demo.frame(10_000)
    assert demo.frames == other.frames


def test_the_json_holds_every_frame(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(said(capsys, "demo", "--json"))
    assert [frame["step"] for frame in data["frames"]] == list(range(1, len(data["frames"]) + 1))
    last = data["frames"][-1]
    assert last["done"]
    assert sorted(last["finished"]) == ["ann", "bob", "cat", "dan", "dan.1", "eve", "fay"]
    assert {block["state"] for frame in data["frames"] for block in frame["blocks"]} == {"held", "idle", "blank"}


def test_a_script_presses_keys(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "demo", "--script", "n n b")
    assert [line.split(":")[0] for line in out.splitlines() if line.startswith("step")] == [
        "step 0",
        "step 1",
        "step 2",
        "step 1",
    ]
    assert main(["step", "demo", "--script", "nx"]) == 2
    assert "'x' means nothing" in capsys.readouterr().err


def test_a_csv_and_a_json_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.csv").write_text("id,arrival,prompt,shared,max_tokens,n\na,0,9,4,3,\nb,2,5,4,2,2\n")
    rows = [
        {"id": "a", "prompt": 9, "shared": 4, "max_tokens": 3},
        {"id": "b", "arrival": 2, "prompt": 5, "shared": 4, "max_tokens": 2, "n": 2},
    ]
    (tmp_path / "w.json").write_text(json.dumps({"requests": rows}))
    outs = [said(capsys, str(tmp_path / name)) for name in ("w.csv", "w.json")]
    assert outs[0] == outs[1]
    assert "b (4 tokens cached)" in outs[0]


def test_limits_of_the_command_line_go_first(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(said(capsys, "demo", "--num-blocks", "12", "--no-enable-prefix-caching", "--json"))
    assert (data["limits"]["num_blocks"], data["limits"]["block_size"]) == (12, 4)
    assert data["frames"][-1]["tokens_from_cache"] == 0


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("w.json", "{", "not JSON"),
        ("w.json", "7", "expected a list"),
        ("w.json", '[{"prompt": 3}]', "request 1: needs `prompt` and `max_tokens`"),
        ("w.json", '[{"prompt": 3, "max_tokens": 2, "color": 1}]', "request 1"),
        ("w.json", '[{"prompt": -3, "max_tokens": 2}]', "-3 is no whole number"),
        ("w.json", '[{"prompt": [1, "x"], "max_tokens": 2}]', "'x' is no whole number"),
        ("w.json", '[{"prompt": 1e9, "max_tokens": 2}]', "no whole number"),
        ("w.json", '[{"prompt": 2000000, "max_tokens": 2}]', "too long"),
        ("w.json", '[{"prompt": 100, "max_tokens": 2}]', "26 KV blocks"),
        ("w.json", '[{"prompt": 0, "max_tokens": 2}]', "empty"),
        ("w.json", '[{"id":"a","prompt":1,"max_tokens":2},{"id":"a","prompt":1,"max_tokens":2}]', "same id"),
        ("w.json", '{"limits": {"speed": 3}, "requests": []}', "'speed'"),
        ("w.csv", "prompt,max_tokens\n3,x\n", "line 2"),
        ("w.csv", "prompt,max_tokens\n3,2,1\n", "line 2"),
        ("w.txt", "\x00", "not JSON"),
    ],
)
def test_a_bad_workload_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, says: str
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["step", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_missing_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step", "nowhere.json"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_nothing_to_do_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.json").write_text("[]")
    assert said(capsys, str(tmp_path / "w.json")) == ""


def test_a_long_run_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(json.loads(said(capsys, "demo", "--json", "--max-steps", "5"))["frames"]) == 5


def test_a_frame_fits_a_terminal() -> None:
    stepper = Stepper(
        [Arrival("a-very-long-name-indeed", (1,) * 30, 40, n=3)], EngineConfig(num_blocks=250, block_size=4)
    )
    frame: Any = stepper.frame(30)
    lines = draw(frame, 4).splitlines()
    assert max(len(line) for line in lines[2:]) <= 110
    assert any("and 50 more" in line for line in lines)
