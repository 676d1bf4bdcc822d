"""Points under their roofs: shares worked by hand, gaps in words, and nothing above a roof without a reason."""

import pytest

from minifer.apps import roofline_report
from minifer.apps.roofline_report import Ground, explain, headline, points, predicted_row, remarks, step_row
from minifer.model.config import ModelConfig
from minifer.roofline.ceilings import Machine
from minifer.roofline.measure import Measured, Step
from minifer.roofline.predict import Roof, predict_step

CONFIG = ModelConfig(
    vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=4096, rms_norm_eps=1e-5, rope_theta=1e4,
    tie_word_embeddings=True,
)  # fmt: skip
OVERHEAD = {"linears": (1e-6, 0.0), "attention": (2e-6, 1e-6), "head": (0.0, 0.0), "other": (3e-6, 0.0)}
ROOF = Roof("here", flops_per_s=100e9, read_bytes_per_s=10e9, overhead_s=OVERHEAD)


def ground(cache_bytes: int = 1 << 10, cache_rate: float = 10e9, shapes: dict | None = None) -> Ground:
    reads = [{"threads": 2, "bytes": size, "bytes_per_s": rate} for size, rate in ((1, cache_rate), (1 << 40, 10e9))]
    reads.insert(1, {"threads": 2, "bytes": cache_bytes, "bytes_per_s": cache_rate})
    return Ground(CONFIG, ROOF, Machine(cache_bytes, reads, [], {}, None, {}), 2, shapes or {})


def measured(step: Step, factor: float, waits: float = 0.0) -> Measured:
    """As if every class took `factor` times its roof."""
    parts = {name: factor * part.roof_s for name, part in predict_step(CONFIG, step.work, ROOF).items()}
    return Measured(step, (sum(parts.values()),) * 5, parts, dict.fromkeys(parts, waits), 1e-7)


DECODE, PREFILL = Step(1, 1, 100), Step(1, 512, 512)


def test_a_point_by_hand():
    """The head of one row: 64,000 weights are 256,000 bytes, with input and output 260,256; 26.0256 us at 10 GB/s.
    It took twice that, so it stands at half its roof."""
    point = next(p for p in points(ground(), measured(DECODE, 2)) if p["op"] == "head")
    assert point["intensity"] == pytest.approx(128_000 / 260_256)
    assert point["roof_flops_per_s"] == pytest.approx(128_000 / 26.0256e-6)
    assert point["flops_per_s"] == pytest.approx(point["roof_flops_per_s"] / 2)
    assert point["share"] == pytest.approx(0.5)
    assert (point["limiter"], point["phase"]) == ("bandwidth", "decode")
    assert point["explained"].startswith("its time is 50% reading")


def test_every_point_has_the_keys_that_others_build_on():
    keys = {"phase", "op", "intensity", "flops_per_s", "roof_flops_per_s", "limiter", "share", "explained"}
    found = points(ground(), measured(PREFILL, 1.5)) + points(ground(), measured(DECODE, 1.5))
    assert len(found) == 6
    assert all(keys <= p.keys() for p in found)
    assert {p["limiter"] for p in found if p["op"] == "linears"} == {"compute", "bandwidth"}


def test_the_parts_of_a_step_add_up():
    found = points(ground(), measured(DECODE, 2))
    row = step_row(ground(), measured(DECODE, 2))
    drawn = sum(p["share_of_step"] for p in found)
    assert drawn == pytest.approx(1 - row["parts_s"]["other"] / sum(row["parts_s"].values()))
    assert row["predicted_s"] == pytest.approx(sum(row["predicted_parts_s"].values()))
    assert row["ratio"] == pytest.approx(row["measured_s"] / predicted_row(ground(), DECODE)["predicted_s"])


def test_above_the_roof_only_a_cache_explains():
    """Three times as fast as memory allows: right if the bytes fit a cache of that speed, and else a mistake."""
    seconds = predict_step(CONFIG, DECODE.work, ROOF)["head"].roof_s / 3
    least = predict_step(CONFIG, DECODE.work, ROOF)["head"]
    assert "stay in the last-level cache" in explain(ground(1 << 20, 40e9), DECODE, "head", least, seconds)
    assert explain(ground(1 << 10, 40e9), DECODE, "head", least, seconds) == ""  # too large for the cache
    assert explain(ground(1 << 20, 20e9), DECODE, "head", least, seconds) == ""  # faster than even the cache


def test_no_cache_explains_arithmetic_above_its_roof():
    least = predict_step(CONFIG, PREFILL.work, ROOF)["linears"]
    assert least.limiter == "compute"
    assert explain(ground(1 << 30, 1e12), PREFILL, "linears", least, least.roof_s / 2) == ""


def test_an_unexplained_point_is_reported():
    """The picture may be drawn, but nobody takes it home without this line."""
    where = ground()
    for factor, expected in ((0.5, 1), (1.2, 0)):
        report = {
            "points": points(where, measured(PREFILL, factor)),
            "ceilings": {"working_set_bytes": 1 << 30, "machine": {"cache_bytes": 1 << 10}},
        }
        told = [r for r in remarks(report, 0.0, 10e9, 10e9, 0.0, 2) if "no cache explains" in r]
        assert len(told) == expected


def test_a_machine_that_is_not_quiet_is_named():
    report = {"points": [], "ceilings": {"working_set_bytes": 1 << 30, "machine": {"cache_bytes": 1 << 10}}}
    assert remarks(report, 0.09, 10e9, 10.9e9, 0.5, 2) == []
    found = remarks(report, -0.11, 10e9, 12e9, 1.5, 2)
    assert len(found) == 3
    assert all(r.startswith("Machine not quiet") for r in found)
    assert remarks(report, 0, 10e9, 10e9, None, 2) == []


def test_a_working_set_in_the_cache_is_said():
    report = {"points": [], "ceilings": {"working_set_bytes": 1 << 20, "machine": {"cache_bytes": 1 << 30}}}
    assert "the cache's, not the memory's" in remarks(report, 0, 10e9, 10e9, None, 2)[0]


def test_gaps_are_told_from_the_known_to_the_unknown():
    """Twice the roof's time: of the other half a fifth is waiting, and what is left is called by its kind."""
    least = predict_step(CONFIG, PREFILL.work, ROOF)["attention"]
    seconds = 2 * least.roof_s
    words = explain(ground(), PREFILL, "attention", least, seconds, wait_s=0.1 * seconds)
    assert words.startswith("its time is 50% arithmetic")
    assert "10% waiting" in words
    assert "softmax" in words


def test_shapes_that_multiply_slowly_are_part_of_the_gap():
    """The model's own matrices run at half the peak: that is all of the gap."""
    shapes = {name: {"flops_per_s": 50e9, "bytes_per_s": 5e9} for name in ("qkv", "output", "gate_up", "down", "head")}
    for step, op in ((PREFILL, "linears"), (DECODE, "head")):
        least = predict_step(CONFIG, step.work, ROOF)[op]
        words = explain(ground(shapes=shapes), step, op, least, 2 * least.roof_s)
        share = float(words.split(", ")[1].split("%")[0])
        assert share == pytest.approx(50, abs=3)
        assert "shapes" in words


def test_overhead_can_be_the_roof():
    slow = Roof("", 1e15, 1e15, OVERHEAD)
    least = predict_step(CONFIG, DECODE.work, slow)["attention"]
    where = Ground(CONFIG, slow, ground().machine, 2, {})
    words = explain(where, DECODE, "attention", least, 4e-6)
    assert words.startswith("its time is 50% calls of Python")
    assert explain(where, DECODE, "attention", least, 2.1e-6).startswith("at its roof, calls")


def test_the_headline_has_one_prefill_and_the_two_ends_of_the_batch_sweep():
    steps = [Step(1, n, n) for n in (16, 400, 2048)] + [Step(b, 1, 128) for b in (1, 4, 64)] + [Step(1, 1, 999)]
    found = headline([p for s in steps for p in points(ground(), measured(s, 2))])
    assert {(p["phase"], p["length"], p["batch"], p["context"]) for p in found} == {
        ("prefill", 400, 1, 400), ("decode", 1, 1, 128), ("decode", 1, 64, 128),
    }  # fmt: skip
    assert headline([]) == []


def test_the_limits_of_tolerance_are_those_of_the_design():
    assert roofline_report.NOT_QUIET == 0.1
    assert roofline_report.ABOVE <= 1.1
