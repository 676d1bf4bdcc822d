"""The trace: complete enough to draw everything from, cheap, and never trusted when it is read."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from scheduling import World, make_request

from minifer.errors import FormatError
from minifer.formats.trace_lines import mismatch, read_trace, schema
from minifer.scheduler.plan import StepPlan, TokenEvent
from minifer.trace import TraceWriter


def recorded(world: World) -> tuple[io.StringIO, TraceWriter]:
    file = io.StringIO()
    trace = TraceWriter(
        file, config={"num_blocks": 8}, about={"model": "fake"}, counts=lambda: {"steps": len(world.plans)}
    )
    world.engine.trace = trace
    return file, trace


@pytest.fixture
def lines() -> list[str]:
    """A run with everything in it: hits, chunks, a fork with copies, preemption, an abort."""
    world = World(7, 4, max_num_seqs=4, max_num_batched_tokens=8)
    file, trace = recorded(world)
    world.add(make_request("a", 9, 12, n=2), make_request("b", 9, 12), make_request("c", 3, 4))
    for _ in range(3):
        world.step()
    world.finish("c")
    world.finish_all()
    world.add(make_request("d", world.asked[0].prompt_ids, 2))
    world.finish_all()
    trace.close()
    assert not trace._tables, "what is over must not be remembered"
    return file.getvalue().splitlines(keepends=True)


def read(lines: list[str]) -> list[dict[str, Any]]:
    return list(read_trace(io.StringIO("".join(lines))))


def test_every_kind_of_line_is_written_and_valid(lines: list[str]) -> None:
    records = read(lines)
    assert {record["kind"] for record in records} == {"header", "request", "step", "end"}
    steps = [record for record in records if record["kind"] == "step"]
    for part in ("copies", "admitted", "preempted", "refused", "tokens", "tables"):
        assert any(step[part] for step in steps), f"this run should show {part}"
    assert steps[-1]["counts"] == {"steps": len(steps)}
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert all(step["end"] == step["start"] + 1 for step in steps if step["seqs"])
    assert steps[-1]["load"][3] <= 7


def test_tables_can_be_followed(lines: list[str]) -> None:
    """A table is written when it changes, and is long enough for every sequence in every step."""
    tables: dict[str, list[int]] = {}
    written = 0
    for step in (record for record in read(lines) if record["kind"] == "step"):
        tables |= step["tables"]
        written += len(step["tables"])
        for name, _, start, count, _ in step["seqs"]:
            assert len(tables[name]) * 4 >= start + count
    assert written < sum(len(record["seqs"]) for record in read(lines) if record["kind"] == "step")


def test_the_tokens_of_a_trace_are_the_answers() -> None:
    world = World(7, 4, max_num_seqs=4)
    file, _ = recorded(world)
    world.add(make_request("a", 6, 5, n=2), make_request("b", 3, 7))
    world.finish_all()
    said: dict[str, list[int]] = {}
    for record in read(file.getvalue().splitlines(keepends=True)):
        for name, token, _, _, _ in record.get("tokens", []):
            said.setdefault(name, []).append(token)
    assert said == {r.id: r.output_ids for r in world.asked}


def test_a_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with TraceWriter(path) as trace:
        trace.stepped(StepPlan(1, 0.0), [TokenEvent("ü\u2028", 5, float("-inf"), (), None, 1.0)], 1.0)
    header, step = read_trace(path)
    assert header["minifer_trace"] == 1
    assert step["tokens"] == [["ü\u2028", 5, None, None, None]]  # JSON knows no infinity
    with pytest.raises(FormatError, match="cannot be read"):
        list(read_trace(tmp_path / "none.jsonl"))
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(FormatError, match="UTF-8"):
        list(read_trace(path))


def test_a_trace_cut_anywhere_names_the_line(lines: list[str]) -> None:
    text = "".join(lines[:6])
    for end in [*range(0, len(text), 17), text.index("\n") + 1]:
        if text[:end].endswith("\n"):
            assert len(read([text[:end]])) == text[:end].count("\n")
        else:
            with pytest.raises(FormatError, match="trace"):
                read([text[:end]])


@pytest.mark.parametrize(
    ("number", "change", "says"),
    [
        (1, '{"kind": "step"}\n', "header"),
        (1, '{"kind":"header","minifer_trace":99,"config":{},"about":{}}\n', "minifer_trace should be 1"),
        (2, "not json\n", "line 2"),
        (2, "[1, 2]\n", "line 2"),
        (2, "null\n", "line 2"),
        (2, '{"kind": ["step"]}\n', "line 2"),
        (2, '{"kind": "rumour"}\n', "unknown kind 'rumour'"),
        (2, '{"kind":"header","minifer_trace":1,"config":{},"about":{}}\n', "one header"),
        (2, '{"kind":"end","time":NaN,"id":"a","reason":"x","error":null}\n', "NaN"),
        (2, '{"kind":"end","time":1,"id":"a","reason":"x"}\n', ".error is missing"),
        (2, '{"kind":"end","time":true,"id":"a","reason":"x","error":null}\n', ".time should be number"),
        (2, '{"kind":"end","time":1,"id":7,"reason":"x","error":null}\n', ".id should be string, not 7"),
        (2, "[" * 100_000 + "\n", "line 2"),
        (2, '{"kind":"end","time":' + "9" * 5000 + ',"id":"a","reason":"x","error":null}\n', "line 2"),
    ],
)
def test_a_damaged_line_is_named(lines: list[str], number: int, change: str, says: str) -> None:
    damaged = [*lines[: number - 1], change, *lines[number:]]
    with pytest.raises(FormatError) as caught:
        read(damaged)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_wrong_row_is_named_by_its_path(lines: list[str]) -> None:
    step = next(json.loads(line) for line in lines if '"kind":"step"' in line)
    step["seqs"][0][2] = "three"
    with pytest.raises(FormatError, match=r'\.seqs\[0\]\[2\] should be integer, not "three"'):
        read([lines[0], json.dumps(step) + "\n"])
    step["seqs"][0] = step["seqs"][0][:3]
    with pytest.raises(FormatError, match=r"\.seqs\[0\] should have 5 entries, not 3"):
        read([lines[0], json.dumps(step) + "\n"])


def test_the_schema_says_the_same_to_another_validator(lines: list[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    for line in lines:
        jsonschema.validate(json.loads(line), schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"kind": "end", "time": 1, "id": 7, "reason": "x", "error": None}, schema())


def test_our_reading_of_the_schema() -> None:
    rule = {"type": "object", "required": ["a"], "additionalProperties": {"type": ["integer", "null"]}}
    assert mismatch({"a": 1, "b": None}, rule) == ""
    assert mismatch({"a": 1, "b": "x"}, rule, "it") == 'it.b should be integer or null, not "x"'
    assert mismatch([], rule, "it") == "it should be object, not []"


def test_without_a_trace_nothing_is_recorded() -> None:
    world = World()
    world.add(make_request("a", 4, 4))
    world.finish_all()
    assert world.engine.trace is None
