"""Seconds from features: the roofline's sum, the fitted sum, and the fit itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifer.apps.simulate.fit import Sample, errors, fit
from minifer.apps.simulate.machine import Split, datasheet_machine, model_config
from minifer.apps.simulate.steptime import Curve, Features, FittedTime, RooflineTime, chunk_work
from minifer.errors import CapacityError, UsageError
from minifer.model.config import ModelConfig
from minifer.model.cost import Work
from minifer.roofline.predict import Roof, predict_step, total

LLAMA = ModelConfig(1003, 96, 200, 5, 6, 2, 24, 4096, 1e-5, 1e4)
QWEN = ModelConfig(1003, 96, 200, 5, 6, 3, 40, 4096, 1e-5, 1e4, attention_bias=True, qk_norm=True, sliding_window=100)
OVERHEAD = {"linears": (1e-4, 1e-6), "attention": (2e-4, 3e-5), "head": (1e-5, 0.0)}
ROOF = Roof("here", flops_per_s=3e10, read_bytes_per_s=2e9, overhead_s=OVERHEAD)


@pytest.mark.parametrize("config", [LLAMA, QWEN])
@pytest.mark.parametrize("width", [4, 0.625])
@given(
    decodes=st.lists(st.integers(1, 4000), max_size=9),
    chunks=st.lists(st.tuples(st.integers(2, 700), st.integers(0, 3000)), max_size=3),
    extra=st.integers(0, 3),
)
def test_the_roofline_of_features_is_the_roofline_of_the_step(config, width, decodes, chunks, extra):
    if not decodes and not chunks:
        return
    spans = [(length, length + before) for length, before in chunks]
    logits = len(decodes) + min(extra, len(spans))
    work = [Work(1, context) for context in decodes] + [Work(*span) for span in spans]
    expected = total(predict_step(config, work, ROOF, num_logits=logits, weight_bytes=width)).seconds
    seen = sum(min(context, config.window()) for context in decodes)
    found = RooflineTime(config, ROOF, weight_bytes=width).seconds(Features(len(decodes), seen, logits, tuple(spans)))
    assert found == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 40), st.integers(0, 60), st.integers(1, 50))
def test_chunk_work_counts_what_each_query_sees(length, before, window):
    context = before + length
    seen = [range(max(0, position - window + 1), position + 1) for position in range(before, context)]
    assert chunk_work(length, context, window) == (len(set().union(*seen)), sum(map(len, seen)))


def test_a_machine_that_obeys_the_formula_is_fitted_exactly():
    decoding, rows = Curve((1, 4, 8), (0.02, 0.03, 0.05)), Curve((2, 16, 64, 200), (0.025, 0.06, 0.11, 0.3))
    true = FittedTime(decoding, rows, 2e-6, 5e-4, 1e-3, 4e-3, 3e-8, 1e-6)
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(400):
        decodes = int(rng.integers(0, 9))
        chunks = tuple((int(n), int(n + rng.integers(0, 2000))) for n in rng.integers(2, 90, rng.integers(0, 3)))
        if not decodes and not chunks:
            continue
        features = Features(decodes, int(rng.integers(0, 9000)) * bool(decodes), decodes + len(chunks) % 2, chunks)
        samples.append(Sample(features, true.seconds(features)))
    found = fit(samples, window=1 << 40)
    assert max(abs(e) for e in errors(samples, found)) < 0.02


def test_an_interruption_does_not_move_the_fit():
    steps = [Features(b, 100 * b, b) for b in (1, 2, 4, 8)] + [Features(0, 0, 1, ((n, n),)) for n in (8, 64)]
    samples = [Sample(f, 0.01 + 0.002 * f.rows) for f in steps for _ in range(9)]
    samples[3] = Sample(samples[3].features, 4.0)
    found = fit(samples, 1000)
    assert [found.seconds(f) for f in steps] == pytest.approx([0.01 + 0.002 * f.rows for f in steps], rel=1e-6)


def test_no_price_is_negative():
    samples = [Sample(Features(b, 1000 - 100 * b, b), 0.01 * b) for b in (1, 2, 3, 4, 6, 8)]
    samples += [Sample(Features(0, 0, 1, ((n, 2 * n),)), 0.1 - 0.001 * n) for n in (2, 8, 30)]
    found = fit(samples, 1000)
    prices = (found.key_s, found.decode_s, found.logit_s, found.chunk_s, found.pair_s, found.chunk_key_s)
    assert min(*prices, *found.decoding_curve.seconds, *found.rows_curve.seconds) >= 0


def test_both_kinds_of_steps_have_to_be_measured():
    with pytest.raises(UsageError, match="no step of reading prompts was measured"):
        fit([Sample(Features(1, 10, 1), 0.01)] * 5, 100)


# ---- machines of the datasheet ---------------------------------------------------------------------------------------


def test_all_reduce_is_written_out():
    """Four machines: each sends 2 x 3/4 of [rows, 96] numbers of 2 bytes twice per layer, in 6 hops."""
    once, per_row = Split(4, link_bytes_per_s=1e9, latency_s=1e-6).all_reduce_s(LLAMA, width=2)
    assert once == pytest.approx(2 * 5 * 6 * 1e-6)
    assert per_row == pytest.approx(2 * 5 * 1.5 * 96 * 2 / 1e9)


def test_two_machines_halve_the_work_and_add_the_sums():
    config = model_config("tiny")
    one = datasheet_machine("h100", config).time
    two = datasheet_machine("h100", config, tensor_parallel=2, link_latency_s=1e-6).time
    step = Features(4, 2000, 4)
    sums = 2 * config.num_hidden_layers * (2 * 1e-6 + 4 * config.hidden_size * 2 / 450e9)
    assert two.seconds(step) == pytest.approx(one.seconds(step) / 2 + sums)


def test_efficiency_scales_the_roofs():
    config, step = model_config("tiny"), Features(3, 900, 3, ((40, 80),))
    full, half = (datasheet_machine("h100", config, efficiency=e).time.seconds(step) for e in (1.0, 0.5))
    assert half == pytest.approx(2 * full)


def test_a_model_that_does_not_fit_is_refused_with_all_numbers():
    big = ModelConfig(128256, 8192, 28672, 80, 64, 8, 128, 8192, 1e-5, 5e5)
    with pytest.raises(CapacityError) as refusal:
        datasheet_machine("h100", big)
    for number in ("72.0 GB", "80 GB", "141.1 GB", "5.24 MB", "more machines"):
        assert number in str(refusal.value)
    assert datasheet_machine("h100", big, tensor_parallel=4).config.num_blocks > 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "abacus"}, "no figures for the hardware 'abacus'"),
        ({"dtype": "int3"}, "unknown dtype 'int3'"),
        ({"tensor_parallel": 4}, "6 attention heads cannot be split over 4"),
        ({"efficiency": 0}, "above 0 to 1"),
        ({"max_model_len": 99999}, "exceeds the model's context"),
        ({"num_blocks": 10**9}, "at most"),
    ],
)
def test_bad_machines_are_refused(options, words):
    with pytest.raises((UsageError, CapacityError), match=words):
        datasheet_machine(**{"name": "h100", "model": model_config("tiny"), **options})
