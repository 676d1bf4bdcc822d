"""Small random models for tests: shapes that tell apart what SmolLM2's 9/3 heads cannot."""

from importlib.util import find_spec
from typing import Any

import numpy as np

from minifer.device import select_device
from minifer.incremental import Incremental
from minifer.meter import Meter
from minifer.model.config import ModelConfig
from minifer.model.weights import build_weights, random_tensors
from minifer.ops import open_room

BASE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
    "rms_norm_eps": 3e-5,
    "rope_theta": 500.0,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 16,
}

#: One configuration per idea that a family brings, all of hostile shape.
CONFIGS = {
    "llama2": ModelConfig(**BASE),
    "llama3": ModelConfig(
        **BASE | {"num_attention_heads": 6, "rope_scaling": LLAMA3_ROPE, "tie_word_embeddings": True}
    ),
    "smollm2": ModelConfig(**BASE | {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}),
    "mistral": ModelConfig(**BASE | {"num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 7}),
    "qwen2": ModelConfig(**BASE | {"num_attention_heads": 6, "attention_bias": True}),
    "qwen3": ModelConfig(**BASE | {"head_dim": 10, "qk_norm": True, "output_bias": True}),
}


def tensors_of(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors with nothing left at its neutral value: norms are not 1, biases not 0."""
    tensors = random_tensors(config, seed)
    rng = np.random.default_rng(seed + 1)
    for name, array in tensors.items():
        scale = 0.3 if array.ndim == 1 else 4.0
        tensors[name] = (array * scale + (0.2 * rng.standard_normal(array.shape) if array.ndim == 1 else 0)).astype(
            "f4"
        )
    return tensors


#: The rooms of this installation that run on a CPU, and how they are opened. Two ranks must agree with one.
ROOMS: dict[str, dict[str, Any]] = {"reference": {}}
if find_spec("minifer.ops.cpu"):
    ROOMS |= {"cpu": {"threads": 1}, "cpu-2": {"threads": 2}, "cpu-invariant": {"threads": 3, "batch_invariant": True}}


class Fixture:
    """A model in a room, and sequences in it."""

    def __init__(self, config: ModelConfig, room: str = "reference", *, seed: int = 0, meter: Meter | None = None):
        self.config = config
        self.ops = open_room(room.partition("-")[0], config, select_device("cpu"), meter, **ROOMS[room])
        self.weights = self.ops.prepare(build_weights(config, tensors_of(config, seed)))

    def close(self) -> None:
        """End the room."""
        self.ops.close()

    def sequence(self, capacity: int = 64) -> Incremental:
        """A fresh sequence on a poisoned cache: a slot that was never written would show as NaN."""
        return Incremental(self.weights, self.ops.new_store(1, capacity, poison=True), self.ops)


def prompt_of(config: ModelConfig, length: int, seed: int = 0) -> list[int]:
    """`length` random token ids."""
    return np.random.default_rng(seed).integers(0, config.vocab_size, length).tolist()
