"""Phase 03: six families against transformers, on small random checkpoints of hostile shape, from both kinds of file.

The golden values were made once by `tests/make/goldens_families.py`; nothing of minifer took part.
"""

import json

import numpy as np
import pytest

from minifer.device import select_device
from minifer.incremental import Incremental
from minifer.model.load import load_model
from minifer.ops import open_room
from tests.models import ROOMS

FAMILIES = ("llama2", "llama3", "smollm2", "mistral", "qwen2", "qwen3")
FORMS = {"hf": ".", "gguf": "model.gguf"}


@pytest.fixture(scope="module", params=FAMILIES)
def golden(request, golden_path):
    folder = golden_path / "families" / request.param
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return folder, expected, np.load(folder / "expected.npz")["logits"]


@pytest.fixture(scope="module", params=[room for room in ROOMS if room in ("reference", "cpu")])
def sequence_of(request):
    rooms = []

    def make(path) -> Incremental:
        model = load_model(path)
        ops = open_room(request.param, model.config, select_device("cpu"), **ROOMS[request.param])
        rooms.append(ops)
        return Incremental(ops.prepare(model.weights), ops.new_store(1, 64, poison=True), ops)

    yield make
    for ops in rooms:
        ops.close()


@pytest.mark.parametrize("form", list(FORMS))
def test_logits_of_every_position(golden, sequence_of, form):
    folder, expected, logits = golden
    got = sequence_of(folder / FORMS[form]).step(expected["prompt_ids"], all_logits=True)
    np.testing.assert_allclose(got, logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", list(FORMS))
def test_greedy_tokens(golden, sequence_of, form):
    folder, expected, _ = golden
    sequence = sequence_of(folder / FORMS[form])
    logits, got = sequence.prefill(expected["prompt_ids"], chunk=5), []
    for _ in range(len(expected["greedy"])):
        got.append(int(logits[0].argmax()))
        logits = sequence.decode_step(got[-1])
    assert got == expected["greedy"]


def test_both_forms_hold_the_same_weights(golden):
    """Names translated, Q and K un-permuted: bit for bit, whether the file is a folder or a GGUF."""
    folder, _, _ = golden
    hf, gguf = load_model(folder), load_model(folder / "model.gguf")
    for a, b in zip(hf.weights.arrays(), gguf.weights.arrays(), strict=True):
        np.testing.assert_array_equal(a, b)
