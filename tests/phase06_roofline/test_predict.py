"""Predictions: a step is a sum of maxima, and the places where one regime gives way to another."""

import json

import pytest

from minifer.apps.cli import main
from minifer.errors import UsageError
from minifer.hub import locate
from minifer.model.config import ModelConfig
from minifer.model.cost import Work
from minifer.roofline import predict
from minifer.roofline.predict import Roof, predict_ops, predict_step, total

LAPTOP = Roof("laptop", flops_per_s=160e9, read_bytes_per_s=20e9)


def shape(name: str) -> ModelConfig:
    return ModelConfig.from_hf(locate(f"random:{name}").config)


SMOLLM2 = shape("smollm2-135m")


def test_a_step_is_a_sum_of_maxima_and_not_a_maximum_of_sums():
    """At batch 32 the linear layers are bound by arithmetic and attention by reading, in one and the same step."""
    parts = predict_step(SMOLLM2, [Work(1, 1024)] * 32, LAPTOP)
    assert (parts["linears"].limiter, parts["attention"].limiter) == ("compute", "bandwidth")
    whole = total(parts)
    assert whole.seconds == pytest.approx(sum(p.seconds for p in parts.values()))
    assert whole.seconds > 1.2 * max(whole.compute_s, whole.bandwidth_s)


def test_the_classes_hold_every_operation_once():
    ops = predict_ops(SMOLLM2, [Work(3, 9)], LAPTOP)
    members = [op for group in predict.CLASSES.values() for op in group]
    assert sorted(members) == sorted(ops)
    parts = predict_step(SMOLLM2, [Work(3, 9)], LAPTOP)
    assert total(parts).roofline_s == pytest.approx(sum(op.seconds for op in ops.values()))


def test_attention_stays_on_the_slope_at_any_batch():
    """Its intensity is that of one sequence: each reads a cache of its own."""
    intensities = [
        predict_step(SMOLLM2, [Work(1, 512)] * batch, LAPTOP)["attention"].cost.intensity for batch in (1, 64)
    ]
    assert intensities[0] == pytest.approx(intensities[1])
    assert intensities[0] < LAPTOP.ridge


def test_overhead_is_added_and_can_rule():
    """1 ms for the step and 0.1 ms for each further sequence."""
    roof = Roof("slow caller", 1e15, 1e15, {"linears": (1e-3, 1e-4)})
    part = predict_step(SMOLLM2, [Work(1, 8)] * 4, roof)["linears"]
    assert part.overhead_s == pytest.approx(1.3e-3)
    assert part.limiter == "overhead"
    assert part.roof_s == part.overhead_s
    assert part.seconds == pytest.approx(part.roofline_s + 1.3e-3)


@pytest.mark.parametrize("roof", [LAPTOP, Roof("flat", 50e9, 25e9), Roof("steep", 90e12, 3.35e12)])
def test_the_batch_at_which_linears_turn_is_the_first(roof):
    """One sequence fewer, and they are still bound by reading."""
    found = predict.linears_turn_compute_bound(SMOLLM2, roof)
    for batch, limiter in ((found.batch, "compute"), (found.batch - 1, "bandwidth")):
        if batch:
            assert predict.linears(SMOLLM2, batch, roof).limiter == limiter


def test_linears_never_turn_where_activations_cost_more_than_products():
    found = predict.linears_turn_compute_bound(SMOLLM2, Roof("", 1e18, 1e9))
    assert found.batch is None
    assert found.why.startswith("never")


def test_the_batch_at_which_the_cache_weighs_as_much_as_the_weights():
    """538 MB of weights, 46,080 bytes per token: 11.4 sequences of 1,024 tokens, so the twelfth is too many."""
    assert predict.kv_equals_weights(SMOLLM2, 1024, LAPTOP).batch == 12
    assert predict.kv_equals_weights(SMOLLM2, 0, LAPTOP).batch is None
    small = Roof("small", 1e12, 1e11, memory_bytes=1e9)
    found = predict.kv_equals_weights(SMOLLM2, 1024, small)
    assert found.batch is None
    assert "do not fit 1 GB" in found.why


def test_a_window_bounds_the_cache():
    mistral = shape("mistral-7b")
    assert predict.kv_traffic(mistral, 100_000) == predict.kv_traffic(mistral, 4096)


def test_every_machine_of_the_table_has_a_source_and_a_date():
    table = predict.hardware()
    for row in table.values():
        assert row["source"]
        assert len(row["date"]) == len("2023-03")
    ridges = {name: round(predict.datasheet_roof(name, "bfloat16").ridge) for name in ("a100", "h200", "h100")}
    assert ridges == {"a100": 153, "h200": 206, "h100": 295}


def test_unknown_machines_and_formats_are_refused_by_name():
    with pytest.raises(UsageError, match="h100"):
        predict.datasheet_roof("h101", "bfloat16")
    with pytest.raises(UsageError, match="float16"):
        predict.datasheet_roof("t4", "bfloat16")
    assert predict.datasheet_roof("t4", "q8_0").flops_per_s == 65e12  # quantised weights are multiplied as float16


def test_a_config_json_and_a_machine_that_is_not_here(tmp_path, capsys):
    """8.03 billion parameters in 16 bits on 3,350 GB/s: a token takes at least 4.5 ms; and no weights are needed."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(locate("random:llama-3.1-8b").config))
    words = ["roofline", str(path), "--hardware", "h100", "--batch", "1,8,64", "--context", "1024"]
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {(row["phase"], row["batch"]): row for row in report["steps"]}
    assert rows["decode", 1]["seconds"] == pytest.approx((15.01e9 + 1024 * 131072) / 3.35e12, rel=0.01)
    assert rows["decode", 64]["limiter"] == "bandwidth"
    assert rows["prefill", 1]["limiter"] == "compute"
    assert all(row["fits"] for row in rows.values())
    assert report["crossings"]["linears_compute_bound"]["batch"] == pytest.approx(327, abs=3)
    assert main(words) == 0
    assert "decode 64 at 1,024" in capsys.readouterr().out


def test_the_table_can_be_read_on_the_command_line(capsys):
    assert main(["roofline", "--hardware", "list"]) == 0
    assert "NVIDIA H100" in capsys.readouterr().out
    assert main(["roofline", "random:llama-3.1-8b", "--hardware", "h100", "--batch", "one"]) == 2
    assert "1,8,64" in capsys.readouterr().err
