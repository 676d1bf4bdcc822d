"""Phase 03: SmolLM2-135M as transformers computes it. Text is a bad oracle, so logits and likelihoods are compared.

Needs the weights: run with `--model`. The golden values were made once by `tests/make/goldens_smollm2.py`.
"""

import json

import numpy as np
import pytest

from minifer.device import select_device
from minifer.incremental import Incremental
from minifer.model.load import load_model
from minifer.ops import open_room
from minifer.sampling import log_softmax

pytestmark = pytest.mark.model

ROOMS = ("reference", "cpu")
TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def golden(golden_path):
    return json.loads((golden_path / "smollm2.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=ROOMS)
def sequence(request, smollm2_path):
    model = load_model(smollm2_path)
    ops = open_room(request.param, model.config, select_device("cpu"))
    weights = ops.prepare(model.weights)
    yield Incremental(weights, ops.new_store(1, 512, poison=True), ops)
    ops.close()


@pytest.fixture(autouse=True)
def rewind(sequence):
    sequence.truncate(0)


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize("chunk", [None, 2])
def test_greedy_continuation(sequence, golden, index, chunk):
    want = golden["prompts"][index]
    logits, got = sequence.prefill(want["prompt_ids"], chunk), []
    for _ in range(32):
        got.append(int(logits[0].argmax()))
        logits = sequence.decode_step(got[-1])
    assert got == want["greedy32"]


@pytest.mark.parametrize("index", range(6))
def test_logits_of_likely_and_of_random_tokens(sequence, golden, index):
    want = golden["prompts"][index]
    logits = sequence.step(want["prompt_ids"], all_logits=True)
    logprobs = log_softmax(np.array(logits))
    for row in want["logits"]:
        at = row["position"]
        assert np.argsort(-logits[at], kind="stable")[:3].tolist() == row["top_ids"][:3]
        np.testing.assert_allclose(logits[at][row["top_ids"]], row["top_logits"], atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(logits[at][row["random_ids"]], row["random_logits"], atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(logprobs[at][row["top_ids"]], row["top_logprobs"], atol=TOLERANCE, rtol=0)


def test_negative_log_likelihood_of_a_text(sequence, golden):
    """The number that notices a wrong RoPE base (+0.08) where the next token does not."""
    ids = golden["nll"]["ids"]
    logprobs = log_softmax(np.array(sequence.step(ids, all_logits=True)))
    nll = -logprobs[np.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(nll, golden["nll"]["token_nll"], atol=TOLERANCE, rtol=0)
    assert nll.mean() == pytest.approx(golden["nll"]["mean_nll"], abs=2e-4)
