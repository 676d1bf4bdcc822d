"""`minifer kernel`: what it shows, and what happens when something is broken on purpose."""

import json

import pytest

from minifer.apps.cli import main
from minifer.apps.testing.kernel_cpu import why_no_compiler
from minifer.apps.testing.kernel_sources import kernel_files
from minifer.apps.testing.kernel_specs import SPECS

pytestmark = pytest.mark.skipif(why_no_compiler() is not None, reason=str(why_no_compiler()))


def run(capsys, *words):
    """The exit status and what was printed."""
    status = main(["kernel", *words])
    return status, capsys.readouterr()


def test_a_kernel_beside_numpy(capsys):
    """Grid, blocks, barriers, and the largest error."""
    status, out = run(capsys, "run", "paged_attention", "--on", "cpu", "--seed", "3")
    assert status == 0
    assert "paged_split: grid 3 x 2 x 2 = 12 blocks of 128 threads" in out.out
    assert "barrier 1  paged_split.cu, line" in out.out
    assert "order 3, beside NumPy in float64:" in out.out
    assert "allowed" in out.out
    assert "right" in out.out


def test_a_missing_barrier_shows_in_some_orders_only(capsys):
    """The natural order is right; shuffled ones are not."""
    status, out = run(capsys, "run", "sample_advance", "--drop-barrier", "8", "--json")
    orders = json.loads(out.out)["orders"]
    assert status == 1
    assert orders[0] == {"seed": 0, "right": True, "fault": None, "buffers": orders[0]["buffers"]}
    assert not any(order["right"] for order in orders[1:4])
    _, out = run(capsys, "run", "sample_advance", "--drop-barrier", "8")
    assert "without shuffling, luck decides" in out.out


def test_a_planted_fault(capsys):
    """By its name in the bank."""
    status, out = run(capsys, "run", "rms_norm", "--mutant", "rms_norm_ignores_rows")
    assert status == 1
    assert "with the planted fault rms_norm_ignores_rows in rms_norm.cu" in out.out
    assert "wrong in every order of threads" in out.out


def test_a_reader_s_own_kernel(capsys, tmp_path, monkeypatch):
    """By --source, and from a lab folder; the first lines say whose it is."""
    mine = tmp_path / "ops" / "kernels" / "swiglu.cu"
    mine.parent.mkdir(parents=True)
    mine.write_text(kernel_files()["swiglu.cu"].replace("* up", "* up * 2.0f"), encoding="utf-8")
    status, out = run(capsys, "run", "swiglu", "--source", str(mine), "--dtype", "float32")
    assert status == 1
    assert f"{mine} (SHA-256 " in out.out
    monkeypatch.setenv("MINIFER_LAB", str(tmp_path))
    assert run(capsys, "run", "swiglu", "--dtype", "float32")[0] == 1
    assert run(capsys, "run", "embed")[0] == 0


def test_the_list_and_the_sources(capsys):
    """Every spec is in the list; a source is printed as it is."""
    assert {row["name"] for row in json.loads(run(capsys, "list", "--json")[1].out)} == set(SPECS)
    assert run(capsys, "show", "embed")[1].out == kernel_files()["embed.cu"]
    shown = json.loads(run(capsys, "show", "paged_attention", "--json")[1].out)
    assert set(shown["files"]) == {"paged_split.cu", "paged_combine.cu"}
    assert shown["parameters"]["paged_combine"][0]["name"] == "part_stats"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("run", "nothing"), "there is no kernel 'nothing'"),
        (("show", "nothing"), "there is no kernel 'nothing'"),
        (("run", "embed", "--drop-barrier", "1"), "this kernel meets 0 barriers"),
        (("run", "embed", "--mutant", "nothing"), "there is no planted fault 'nothing'"),
        (("run", "embed", "--source", "not-there.cu"), "not-there.cu cannot be read"),
        (("run", "embed", "--shape", "9"), "has shapes 0 to 2"),
        (("run", "embed", "--seed", "-1"), "--seed must be at least 0, not -1"),
        (("run", "paged_split", "--head-dim", "7"), "an even count"),
        (("run", "embed", "--on", "strict", "--drop-barrier", "1"), "needs --on cpu"),
    ],
)
def test_mistakes_are_one_line(capsys, words, complaint):
    """With what was wrong and what there is."""
    status, out = run(capsys, *words)
    assert status == 2
    assert complaint in out.err
    assert out.err.count("\n") == 1
