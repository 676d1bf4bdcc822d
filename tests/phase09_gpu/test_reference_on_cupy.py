"""Phase 09: the forward pass that a learner reads is the GPU's first version: `ops/reference.py`, unchanged, on CuPy.

On `strict` the comparison is exact, because both sides are NumPy in the end; what is tested is that nothing in the file
mixes host and device, waits, or asks for what CuPy lacks. On a GPU (`--gpu`) the numbers are its own.
"""

import numpy as np
import pytest

from minifer.device import select_device
from minifer.model.transformer import forward
from minifer.model.weights import build_weights
from minifer.ops import open_room
from minifer.ops.batch import make_batch
from tests.models import CONFIGS, prompt_of, tensors_of

DEVICES = ("strict", pytest.param("cuda", marks=pytest.mark.gpu))


def logits_on(device_name, config, sequences):
    device = select_device(device_name)
    ops = open_room("reference", config, device)
    weights = ops.prepare(build_weights(config, tensors_of(config)))
    store = ops.new_store(12, 4, poison=True)
    batch = make_batch(sequences, 4, all_logits=True, xp=device.xp)
    return device.to_host(forward(weights, batch, store, ops))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", CONFIGS)
def test_the_reference_runs_on_cupy(family, device):
    """A scattered sequence and a single token in one step: the same logits as in NumPy."""
    config = CONFIGS[family]
    ids = prompt_of(config, 18)
    sequences = [(ids, 0, [3, 1, 5, 2, 7]), (ids[4:5], 0, [9])]
    want = logits_on("cpu", config, sequences)
    np.testing.assert_allclose(logits_on(device, config, sequences), want, rtol=1e-4, atol=1e-5)


def test_it_waits_for_nothing_on_the_way():
    """Only the copies in and out make the host wait."""
    from minifer.apps.testing.strict_machine import machine

    config, device = CONFIGS["qwen3"], select_device("strict")
    ops = open_room("reference", config, device)
    weights, store = ops.prepare(build_weights(config, tensors_of(config))), ops.new_store(4, 4)
    batch = make_batch([(prompt_of(config, 9), 0, [2, 0, 1])], 4, xp=device.xp)
    machine.reset()
    forward(weights, batch, store, ops)
    assert machine.syncs == 0
    assert machine.uploads == 0
    assert machine.launches > 100, "array operation by array operation: why kernels are written at all"
