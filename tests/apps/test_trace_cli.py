"""`minifer trace` on the terminal and for Perfetto."""

import io
import json
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hand_trace import as_file, closed, long_run, records

from minifer.apps.cli import main
from minifer.apps.view import trace_data, trace_text
from minifer.apps.view.trace_model import Trace, build
from minifer.apps.view.trace_perfetto import perfetto


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "run.jsonl"
    path.write_text(as_file(records()).getvalue(), encoding="utf-8")
    return str(path)


@pytest.fixture
def trace() -> Trace:
    return build(records())


def test_lives_as_letters(trace: Trace) -> None:
    """24 columns for 3000 ms, so 8 for a second."""
    lines = trace_text.show(trace, "requests", None, width=37)
    assert lines[0] == "a            PPPPPPPPdddddddddd"
    assert lines[1] == "b                ....PPPPxxxxxxPPPPPP"
    assert lines[2] == "             0               3,000 ms"
    assert lines[3] == ". waiting   P prefill   d decode  ..."


def test_a_column_shows_what_fills_most_of_it() -> None:
    """Two short decodes together are longer than the prefill between them."""
    parts = [("decode", 0, 1.2), ("prefill", 1.2, 3), ("decode", 3, 4), ("waiting", 4, 6.1), ("decode", 6.1, 8)]
    assert trace_text.strip([{"state": s, "start": a, "end": b} for s, a, b in parts], 8, 2) == "d."


def test_slots_as_letters() -> None:
    lines = trace_text.show(closed(), "timeline", None, width=30)
    assert lines[0] == "2 slots, 4 steps, 2 of 7 se..."
    assert lines[1] == "   0  PPPPPP::::::::::::PPPPPP"
    assert lines[2] == "      a                 c"
    assert lines[3] == "   1  PPPPPPdddddddddddd"


def test_blocks_as_digits(trace: Trace) -> None:
    lines = trace_text.show(trace, "blocks", None, width=30)
    assert lines[:3] == [
        "   0  00000000****000000111111",
        "   1  000000000000000000''''''",
        "   2          1111      111111",
    ]
    lines = trace_text.show(trace, "blocks", None, width=80)
    assert "most held: 3 of 6 blocks; without sharing 4" in lines
    assert "           8 slots written, 4 held and not written" in lines


def test_one_request_token_by_token(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", file, "--request", "a", "--width", "60"]) == 0
    out = capsys.readouterr().out
    assert "a: 6 prompt tokens, 0 of them cached, 3 tokens out" in out
    assert "| TTFT 1,000 ms" in out
    assert "queue 0, prefill 1,000, decode 1,250, e2e 2,250 ms" in out
    assert "ITL: 2 gaps, median 625, 500 to 750 ms" in out
    assert "' seven'" in out


@pytest.mark.parametrize("kind", trace_data.KINDS)
@pytest.mark.parametrize("width", [1, 30, 47, 80, 200])
def test_no_line_is_wider_than_the_window(kind: str, width: int, trace: Trace) -> None:
    for one in (trace, closed(), build(records()[:1]), build(long_run(40, 4))):
        lines = [*trace_text.summary(one, width), *trace_text.show(one, kind, None, width)]
        assert max(map(len, lines)) <= max(width, trace_text.NARROWEST)
        assert all(line.isprintable() for line in lines)


def test_colour_only_adds_to_the_letters(trace: Trace) -> None:
    for kind in trace_data.KINDS:
        plain = trace_text.show(trace, kind, None, 80)
        colored = trace_text.show(trace, kind, None, 80, color=True)
        assert [re.sub(r"\x1b\[\d+m", "", line) for line in colored] == plain
    assert "\x1b[34mPPP" in "".join(trace_text.show(trace, "requests", None, 80, color=True))


def test_a_pipe_gets_no_colour_and_a_terminal_does(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(["trace", file])
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    main(["trace", file])
    assert "\x1b[34m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(["trace", file])
    assert "\x1b" not in capsys.readouterr().out


def test_names_from_a_file_cannot_move_the_cursor() -> None:
    lines = json.loads(json.dumps(records()).replace('"a"', '"\\u001b[2Jx"'))
    shown = "\n".join(line for kind in trace_data.KINDS for line in trace_text.show(build(lines), kind, None, 120))
    assert "\x1b" not in shown
    assert "\\x1b[2Jx" in shown


def test_long_runs_end_in_time() -> None:
    trace = build(long_run())
    for kind in trace_data.KINDS:
        assert len(trace_text.show(trace, kind, None, 100)) <= trace_text.MOST_LINES + trace_text.ENDING + 1


def test_json_holds_the_numbers_of_the_view(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", file, "--what", "queue", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert (out["what"], len(out["rows"]), out["files"]) == ("load", 4, [])


def test_figure_and_perfetto_are_files(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, json_file = tmp_path / "x.svg", tmp_path / "sub" / "x.json"
    assert main(["trace", file, "--what", "blocks", "--figure", str(svg), "--perfetto", str(json_file)]) == 0
    assert capsys.readouterr().out.split() == [str(svg), str(json_file)]
    assert b"blocks of a run of paper: 2 requests in 4 steps" in svg.read_bytes()
    assert json.loads(json_file.read_text())["displayTimeUnit"] == "ms"


def test_two_runs_on_one_clock(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(as_file(long_run(4, 2)).getvalue(), encoding="utf-8")
    words = ["trace", file, "--what", "timeline", "--beside", str(other)]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["beside"]["steps"] == 10
    assert main(words) == 0
    assert "paper: 4 requests" in capsys.readouterr().out
    assert main([*words, "--figure", str(tmp_path / "both.svg")]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--request", "c"], "no request 'c'; it has a, b"),
        (["--request", "a", "--what", "load"], "--request belongs to --what latency"),
        (["--beside", "x.jsonl"], "--beside belongs to --what timeline"),
        (["--figure", "x.pdf"], "x.pdf: a figure is written as .svg or .png"),
        (["--what", "weather"], "weather"),
    ],
)
def test_mistakes_are_one_line(file: str, words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", file, *words]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_what_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["trace", str(tmp_path / "none.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO("{}\n"))
    assert main(["trace", "-"]) == 2
    assert "line 1 of the trace" in capsys.readouterr().err


# ---- Perfetto --------------------------------------------------------------------------------------------------------


def test_every_event_has_the_fields_of_its_phase(trace: Trace) -> None:
    """What the Trace Event Format asks of each phase that is used."""
    needed = {"X": {"ts", "dur"}, "C": {"ts", "args"}, "i": {"ts", "s"}, "M": {"args"}, "s": {"ts", "id"},
              "f": {"ts", "id", "bp"}}  # fmt: skip
    for one in (trace, closed(), build(long_run(50, 4))):
        events = json.loads(json.dumps(perfetto(one), allow_nan=False))["traceEvents"]
        for event in events:
            assert {"ph", "name", "pid", "tid"} | needed[event["ph"]] <= event.keys()
            assert isinstance(event["pid"], int)
            assert isinstance(event["tid"], int)
            assert event.get("dur", 0) >= 0
            assert event.get("ts", 0) >= 0
        assert {event["ph"] for event in events} >= {"X", "C", "i", "M"}


def test_the_mapping(trace: Trace) -> None:
    events = perfetto(trace)["traceEvents"]
    slices = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert [s for s in slices if s[0] == 1] == [
        (1, 1, "step 1", 0.0, 1e6), (1, 1, "step 2", 1e6, 5e5), (1, 1, "step 3", 1.5e6, 7.5e5),
        (1, 1, "step 4", 2.25e6, 7.5e5),
    ]  # fmt: skip
    assert (2, 2, "b prefill", 1e6, 5e5) in slices
    assert [s[2:] for s in slices if s[:2] == (3, 2)] == [
        ("waiting", 5e5, 5e5), ("prefill", 1e6, 5e5), ("preempted", 1.5e6, 7.5e5), ("prefill", 2.25e6, 7.5e5),
    ]  # fmt: skip
    assert next((e["name"], e["ts"]) for e in events if e["ph"] == "i" and e["tid"] == 1) == (" seven", 1e6)
    arrow = [(e["ph"], e["ts"], e["id"]) for e in events if e["ph"] in "sf"]
    assert arrow == [("s", 1.5e6, 2000), ("f", 2.25e6, 2000)]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(1, 1): "steps", (2, 1): "slot 0", (2, 2): "slot 1", (3, 1): "a", (3, 2): "b"}


def test_slices_of_a_thread_never_overlap() -> None:
    """Perfetto nests overlapping slices, and would show them as calls of each other."""
    for one in (build(records()), closed(), build(long_run(60, 8))):
        threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for event in perfetto(one)["traceEvents"]:
            if event["ph"] == "X":
                threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        for spans in threads.values():
            ordered = sorted(spans)
            assert all(one[1] <= other[0] + 1e-3 for one, other in pairwise(ordered))
