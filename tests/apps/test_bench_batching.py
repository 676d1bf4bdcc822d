"""`minifer bench batching`: the law and the counting by hand, and every part once on the bundled model."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from minifer.apps import bench_batching
from minifer.apps.bench_batching_law import SHAPES, draw_lengths, fit_step_time, law, slot_steps
from minifer.apps.bench_batching_rows import Row, number, table
from minifer.apps.cli import INTERRUPTED, MISTAKE, main
from minifer.roofline.probes import Ceilings


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command on `tiny` with the smallest sizes, without seconds spent on ceilings."""
    smallest = replace(bench_batching.QUICK, requests=32, scheduler_steps=50, queue=20)
    monkeypatch.setattr(bench_batching, "QUICK", smallest)
    monkeypatch.setattr(bench_batching, "ceilings_of", lambda *_: Ceilings(1e9, 4e9, 1 << 20))

    def run(*words: str, status: int = 0) -> tuple[str, str]:
        figure = ["--figure", str(tmp_path / "b.png")] if "--figure" not in words else []
        got = main(["bench", "batching", "tiny", "--quick", "--room", "reference", *figure, *words])
        out, err = capsys.readouterr()
        assert got == status, err
        return out, err

    return run


def test_the_law_is_the_harmonic_number() -> None:
    assert law("exponential", 8) == pytest.approx(float(Fraction(761, 280)))
    assert law("uniform", 8) == pytest.approx(float(Fraction(16, 9)))
    assert [law(shape, 1) for shape in SHAPES] == [1, 1, 1]
    assert law("fixed", 64) == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_lengths_have_their_mean_and_come_from_the_seed(shape: str) -> None:
    lengths = draw_lengths(shape, 4000, 32, seed=3)
    assert sum(lengths) / 4000 == pytest.approx(32, rel=0.05)
    assert min(lengths) >= 1
    assert lengths == draw_lengths(shape, 4000, 32, seed=3)
    assert (lengths == draw_lengths(shape, 4000, 32, seed=4)) == (shape == "fixed")


def test_slot_steps_by_hand() -> None:
    """Two seats. Static: (1, 4) takes four steps and (1, 2) two: six steps of two seats. Continuous: what is useful."""
    static, continuous = (slot_steps(kind, [1, 4, 1, 2], batch=2) for kind in ("static", "continuous"))
    assert (static.slot_steps, len(static.steps)) == (12, 6)
    assert (continuous.slot_steps, len(continuous.steps)) == (8, 4)
    assert static.sequence_steps == continuous.sequence_steps == 8
    assert [step[1] for step in static.steps] == [2, 1, 1, 1, 2, 1]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gain_in_slot_steps_is_the_law(shape: str) -> None:
    lengths = draw_lengths(shape, 512, 24, seed=0)
    static, continuous = (slot_steps(kind, lengths, batch=8) for kind in ("static", "continuous"))
    assert continuous.slot_steps == sum(lengths)
    assert static.slot_steps / continuous.slot_steps == pytest.approx(law(shape, 8), rel=0.10)


def test_a_step_costs_a_and_c_for_each_sequence() -> None:
    steps = [(b, 3.0 + 0.5 * b) for b in (1, 2, 5, 8)]
    assert fit_step_time([*steps, (5, 1e6), (5, 3.0 + 0.5 * 5)]) == pytest.approx((3.0, 0.5)), "medians, not means"
    assert fit_step_time([(4, 2.0)]) == (2.0, 0.0)
    assert fit_step_time([]) == (0.0, 0.0)


def test_every_part_reports(bench: Any, tmp_path: Path) -> None:
    out, _ = bench("--json")
    found = json.loads(out)
    assert list(dict.fromkeys(row["part"] for row in found["rows"])) == list(bench_batching.PARTS)
    for row in found["rows"]:
        assert row["min"] <= row["median"] <= row["max"]
        assert min(row["samples"]) > 0
    assert found["conditions"]["seed"] == 0
    assert found["conditions"]["quiet"] is True
    assert found["figure"] == str(tmp_path / "b.png")
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    chunks = [row for row in found["rows"] if "worst_s" in row]
    assert [row["chunk"] for row in chunks] == [32, 256]
    assert all(worst > 0 for row in chunks for worst in row["worst_s"])
    (gain,) = [row for row in found["rows"] if row.get("measured_in") == "seconds" and row["shape"] == "exponential"]
    assert gain["static_steps"] > gain["continuous_steps"]


def test_a_part_of_it_as_text(bench: Any) -> None:
    out, _ = bench("--only", "scheduler,paged", "-r", "2")
    lines = out.splitlines()
    assert [line for line in lines if line in bench_batching.PARTS] == ["paged", "scheduler"]
    assert any(line.startswith("figure: ") for line in lines)
    assert "machine: " in out


def test_the_seed_decides_the_workload(bench: Any) -> None:
    def gains(seed: str) -> list[float]:
        rows = json.loads(bench("--only", "static", "-r", "1", "--seed", seed, "--json")[0])["rows"]
        return [row["median"] for row in rows if row["measured_in"] == "slot-steps"]

    assert gains("1") == gains("1") != gains("2")


def test_ctrl_c_prints_what_there_is(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_batching.PARTS["chunk"], "measure", stop)
    out, err = bench("--only", "prefix,chunk,scheduler", "--json", status=INTERRUPTED)
    found = json.loads(out)
    assert {row["part"] for row in found["rows"]} == {"prefix"}
    assert found["conditions"]["quiet"] is None
    assert "stopped" in err
    monkeypatch.setattr(bench_batching.PARTS["prefix"], "measure", stop)
    assert bench("--only", "prefix", status=INTERRUPTED)[0] == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "rumours"), "rumours"),
        (("--only", ""), "static"),
        (("-r", "0"), "repetitions"),
        (("-t", "0"), "threads"),
        (("--figure", "/nowhere/at/all.png"), "nowhere"),
    ],
)
def test_bad_input_is_named(bench: Any, words: tuple[str, ...], said: str) -> None:
    _, err = bench(*words, status=MISTAKE)
    assert said in err
    assert err.count("\n") == 1


def test_the_table() -> None:
    rows = [
        Row("paged", "fresh / contiguous", "x", (0.98, 0.97, 0.99), 1.0, "at least 0.9", True),
        Row("paged", "shuffled / contiguous", "x", (0.4,), 1.0, "at least 0.5", False),
        Row("scheduler", "deciding", "us", (1234.5, 1200.0, 1300.0)),
    ]
    lines = [" ".join(line.split()) for line in table(rows).splitlines()]
    assert lines[1:] == [
        "paged",
        "fresh / contiguous 0.98 (0.97 .. 0.99) x 1 at least 0.9: met",
        "shuffled / contiguous 0.4 x 1 at least 0.5: NOT met",
        "scheduler",
        "deciding 1,234 (1,200 .. 1,300) us",
    ]
    assert [number(value) for value in (0.0123, 9.876, 99.94, 123.4)] == ["0.0123", "9.88", "99.9", "123"]
