"""What the tests of the GPU room share: on which devices they run, how near the room must come, and models in it.

Everything runs on `strict`, where CuPy and the kernels are stand-ins on the CPU, and again on a real GPU with `--gpu`.
"""

from typing import Any

import numpy as np
import pytest

from minifer.apps.testing.kernel_cpu import why_no_compiler
from minifer.device import Device, select_device
from minifer.meter import Meter
from minifer.model.config import ModelConfig
from minifer.model.transformer import forward
from minifer.model.weights import Weights, build_weights
from minifer.ops import open_room
from minifer.ops.batch import make_batch
from minifer.ops.cuda_launch import act_dtype
from tests.models import tensors_of

needs_compiler = pytest.mark.skipif(why_no_compiler() is not None, reason=str(why_no_compiler()))

#: The devices on which a test of the room runs.
DEVICES = (pytest.param("strict", marks=needs_compiler), pytest.param("cuda", marks=pytest.mark.gpu))

#: How far a row of logits may be from the reference on the same (rounded) weights: |difference| / |row|, Euclidean.
#: The types round to 2^-24, 2^-11 and 2^-8, and that happens in a handful of places per layer.
NEAR = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}

Sequences = list[tuple[list[int], int, list[int]]]


class OnGpu:
    """A model with random weights in the GPU room, and beside it the reference with the same weights."""

    def __init__(self, config: ModelConfig, dtype: str, device: str, *, meter: Meter | None = None, **options: Any):
        self.config, self.dtype, self.device = config, dtype, select_device(device)
        weights = rounded(build_weights(config, tensors_of(config)), dtype)
        self.ops = open_room("cuda", config, self.device, meter, dtype=dtype, **options)
        self.weights = self.ops.prepare(weights)
        self.reference = open_room("reference", config, select_device("cpu"))
        self.plain = self.reference.prepare(weights)

    def store(self, num_blocks: int, block_size: int) -> Any:
        """A cache full of NaN: a slot that was never written cannot pass unnoticed."""
        return self.ops.new_store(num_blocks, block_size, poison=True)

    def logits(self, sequences: Sequences, store: Any, *, all_logits: bool = True) -> np.ndarray:
        """Logits of one step in the GPU room, on the host."""
        batch = make_batch(sequences, store.block_size, all_logits=all_logits, xp=self.device.xp)
        return np.array(self.device.to_host(forward(self.weights, batch, store, self.ops)), dtype=np.float32)

    def expected(self, ids: list[int]) -> np.ndarray:
        """The reference's logits for every token of one sequence."""
        store = self.reference.new_store(1, max(1, len(ids)), poison=True)
        return np.array(
            forward(self.plain, make_batch([(ids, 0, [0])], len(ids), all_logits=True), store, self.reference)
        )

    def assert_near(self, got: np.ndarray, want: np.ndarray) -> None:
        """Row by row, and finite."""
        assert got.shape == want.shape
        assert np.isfinite(got).all()
        off = np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)
        assert off.max() < NEAR[self.dtype], off


def rounded(weights: Weights, dtype: str) -> Weights:
    """The weights as they are after a trip through a narrower type, in float32."""
    narrow = act_dtype(dtype)
    return weights.map(lambda array: array.astype(narrow).astype(np.float32))


def host(device: Device, array: Any) -> np.ndarray:
    """A copy on the host."""
    return np.array(device.to_host(array))
