"""`minifer roofline MODEL` from end to end on a model of next to no size, with ceilings that take no time."""

import json
import math

import pytest

from minifer.apps import roofline_run
from minifer.apps.cli import main
from minifer.roofline import ceilings, probes
from minifer.roofline.measure import measure_step

WORDS = ["--prompt", "4,9", "--batch", "1,3", "--context", "16,32", "--threads", "1", "--repeats", "2"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path):
    """Probes of no size, a cache folder of its own, a model that is there without a download."""
    monkeypatch.setenv("MINIFER_HOME", str(tmp_path / "home"))
    measure = ceilings.measure
    monkeypatch.setattr(ceilings, "measure", lambda *args: measure(*args, limit_s=0.001))
    for module in (probes, ceilings):
        monkeypatch.setattr(module, "GEMM_SIZE", 64)
    monkeypatch.setattr(probes, "LEAST_BYTES", 1 << 16)
    monkeypatch.setattr(ceilings, "last_level_cache_bytes", lambda: 1 << 16)
    monkeypatch.setattr("minifer.roofline.measure.PATIENCE_S", 0.01)
    monkeypatch.setattr("minifer.roofline.measure.MANY", 3)
    monkeypatch.setattr("minifer.roofline.measure.timer_seconds", lambda: 1e-7)
    for name, value in (("GENERATED", 3), ("CEILING_S", 0.01), ("SHAPE_S", 0.001)):
        monkeypatch.setattr(roofline_run, name, value)
    monkeypatch.setattr("minifer.apps.view.roofline_figures.draw_all", lambda *_: [])


def test_a_run_predicts_first_and_writes_everything_down(tmp_path, capsys):
    assert main(["roofline", "tiny", *WORDS, "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert told.index("Predicted, before anything is measured") < told.index("Measured (median")
    assert told.index("Measured (median") < told.index("Where the points stand")
    report = json.loads((tmp_path / "roofline.json").read_text())
    assert report["complete"] is True
    steps = [(row["phase"], row["batch"], row["length"], row["context"]) for row in report["steps"]]
    assert steps == [
        ("prefill", 1, 4, 4), ("prefill", 1, 9, 9), ("decode", 1, 1, 16), ("decode", 3, 1, 16), ("decode", 1, 1, 32),
    ]  # fmt: skip
    assert len(report["points"]) == 3 * len(steps)
    keys = {"phase", "op", "intensity", "flops_per_s", "roof_flops_per_s", "limiter", "share", "explained"}
    assert all(keys <= point.keys() for point in report["points"])
    assert all(math.isfinite(point["share"]) and point["share"] > 0 for point in report["points"])
    assert {"read_bytes_per_s", "flops_per_s", "drift", "after", "overhead_s"} <= report["ceilings"].keys()
    assert {"numpy", "cpu", "load_average", "blas", "openblas_coretype"} <= report["conditions"].keys()
    assert [(row["prompt"], row["batch"]) for row in report["requests"]] == [(4, 1), (9, 1), (16, 3)]
    assert len(list((tmp_path / "home").glob("ceilings-*.json"))) == 1


def test_json_is_all_that_is_printed(tmp_path, capsys):
    assert main(["roofline", "tiny", *WORDS, "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "roofline.json").read_text())


def test_ctrl_c_leaves_what_was_measured(tmp_path, monkeypatch, capsys):
    count = []

    def interrupted(*args, **options):
        count.append(1)
        if len(count) == 3:
            raise KeyboardInterrupt
        return measure_step(*args, **options)

    monkeypatch.setattr(roofline_run, "measure_step", interrupted)
    assert main(["roofline", "tiny", *WORDS, "--out", str(tmp_path)]) == 130
    report = json.loads((tmp_path / "roofline.json").read_text())
    assert len(report["steps"]) == 2
    assert report["complete"] is False
    assert "roofline.json" in capsys.readouterr().out


def test_a_step_that_needs_too_much_memory_is_refused_and_the_rest_goes_on(tmp_path, capsys):
    """3 x 16 tokens of `tiny` need 74 kB of cache, 32 tokens 49 kB."""
    words = ["roofline", "tiny", *WORDS, "--out", str(tmp_path), "--max-kv-gb", "0.00005"]
    assert main(words) == 0
    report = json.loads((tmp_path / "roofline.json").read_text())
    assert len(report["refused"]) == 1
    assert "decode 3 at 16" in report["refused"][0]
    assert report["refused"][0] in capsys.readouterr().out
    assert len(report["steps"]) == 4


def test_nothing_measured_is_an_error(tmp_path, capsys):
    words = ["roofline", "tiny", *WORDS, "--out", str(tmp_path), "--max-kv-gb", "0.0000001"]
    assert main(words) == 2
    assert "nothing could be measured" in capsys.readouterr().err
    assert not (tmp_path / "roofline.json").exists()


@pytest.mark.model
def test_smollm2_stands_where_it_should(tmp_path, capsys):
    """Prefill is bound by arithmetic, decode by reading; no claim about how fast either is."""
    words = ["--prompt", "256", "--batch", "1", "--context", "128", "--repeats", "2"]
    assert main(["roofline", "smollm2-135m", *words, "--out", str(tmp_path), "--json"]) == 0
    limiters = {(p["phase"], p["op"]): p["limiter"] for p in json.loads(capsys.readouterr().out)["points"]}
    assert limiters["prefill", "linears"] == "compute"
    assert limiters["decode", "linears"] == "bandwidth"
