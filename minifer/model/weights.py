"""From a model's files to the tree of its weights.

The tree is the architecture: whoever reads `LayerWeights` has seen every matrix of a Llama block. Files hold the same
tensors under flat names; those of Hugging Face are used throughout (GGUF's are translated by `formats/`), each is
checked for its shape against the configuration, and each must be there exactly once.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from minifer.errors import FormatError
from minifer.model.config import ModelConfig


@dataclass(frozen=True)
class LayerWeights:
    """One transformer block. Matrices are stored `[out, in]`, so that a linear map is `x @ W.T`.

    With E hidden, H query heads and K kv heads of size D, F feed-forward: `wq [H*D, E]`, `wk` and `wv [K*D, E]`,
    `wo [E, H*D]`, `w_gate` and `w_up [F, E]`, `w_down [E, F]`, norms `[E]`. The rest is None where a family lacks it:
    biases, and the norms `[D]` of Qwen3's query and key heads.
    """

    attention_norm: Any
    wq: Any
    wk: Any
    wv: Any
    wo: Any
    mlp_norm: Any
    w_gate: Any
    w_up: Any
    w_down: Any
    bq: Any = None
    bk: Any = None
    bv: Any = None
    bo: Any = None
    q_norm: Any = None
    k_norm: Any = None


@dataclass(frozen=True)
class Weights:
    """The whole model: `embedding [V, E]`, the blocks, `final_norm [E]`, and `head [V, E]`, which is the embedding
    itself (the same array) in a tied model."""

    embedding: Any
    layers: tuple[LayerWeights, ...]
    final_norm: Any
    head: Any

    def map(self, function: Callable[[Any], Any]) -> "Weights":
        """The same tree with `function` applied to every array, once to an array that stands twice."""
        embedding = function(self.embedding)
        layers = tuple(
            LayerWeights(*(None if (a := getattr(layer, f.name)) is None else function(a) for f in fields(layer)))
            for layer in self.layers
        )
        head = embedding if self.head is self.embedding else function(self.head)
        return Weights(embedding, layers, function(self.final_norm), head)

    def arrays(self) -> list[Any]:
        """Every array of the tree once, in the order in which a forward pass meets them."""
        found: list[Any] = []
        self.map(found.append)
        return found

    @property
    def num_parameters(self) -> int:
        """How many numbers the model consists of; a tied embedding counts once."""
        return sum(int(array.size) for array in self.arrays())


def layer_shapes(config: ModelConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """For each field of `LayerWeights` that this model has: its Hugging Face name within the layer, and its shape."""
    c = config
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    e, f = c.hidden_size, c.intermediate_size
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "attention_norm": ("input_layernorm.weight", (e,)),
        "wq": ("self_attn.q_proj.weight", (q, e)),
        "wk": ("self_attn.k_proj.weight", (kv, e)),
        "wv": ("self_attn.v_proj.weight", (kv, e)),
        "wo": ("self_attn.o_proj.weight", (e, q)),
        "mlp_norm": ("post_attention_layernorm.weight", (e,)),
        "w_gate": ("mlp.gate_proj.weight", (f, e)),
        "w_up": ("mlp.up_proj.weight", (f, e)),
        "w_down": ("mlp.down_proj.weight", (e, f)),
    }
    if c.attention_bias:
        shapes |= {f"b{n}": (f"self_attn.{n}_proj.bias", (q if n == "q" else kv,)) for n in "qkv"}
    if c.output_bias:
        shapes["bo"] = ("self_attn.o_proj.bias", (e,))
    if c.qk_norm:
        shapes |= {f"{n}_norm": (f"self_attn.{n}_norm.weight", (c.head_dim,)) for n in "qk"}
    return shapes


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of this configuration must hold, by Hugging Face name."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for index in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer_shapes(config).values()}
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def build_weights(config: ModelConfig, tensors: Mapping[str, Any]) -> Weights:
    """The tree from flat tensors. Raises FormatError that lists what is missing, left over or of a wrong shape.

    A tied model may carry `lm_head.weight` all the same (some exporters write it): the embedding is used.
    """
    check_tensors(config, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    embedding = tensors["model.embed_tokens.weight"]
    layers = tuple(
        LayerWeights(
            **{field: tensors[f"model.layers.{i}.{name}"] for field, (name, _) in layer_shapes(config).items()}
        )
        for i in range(config.num_hidden_layers)
    )
    head = embedding if config.tie_word_embeddings else tensors["lm_head.weight"]
    return Weights(embedding, layers, tensors["model.norm.weight"], head)


_IGNORED = ("lm_head.weight", "rope_freqs.weight")


def check_tensors(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise FormatError unless `shapes` (name -> shape) are just what `config` needs; no array need be loaded yet."""
    expected = tensor_shapes(config)
    missing = [name for name in expected if name not in shapes]
    if missing:
        raise FormatError(f"the checkpoint lacks {len(missing)} tensors: {_some(missing)}")
    extra = [n for n in shapes if n not in expected and n not in _IGNORED]
    if extra:
        raise FormatError(
            f"the checkpoint has {len(extra)} tensors that its configuration does not name: {_some(extra)}"
        )
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise FormatError(f"{name} has shape {shapes[name]}, the configuration says {shape}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def random_tensors(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of the right shapes from a seed: for measuring speed where the real ones cannot be had.

    Matrices are normal with deviation `0.02`, as models are initialised, norms are 1. Each tensor has a generator of
    its own, seeded by its name, so that one tensor is the same in any model of that shape.
    """
    return {name: _random_tensor(name, shape, seed) for name, shape in tensor_shapes(config).items()}


def _random_tensor(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    if name.endswith("norm.weight"):
        return np.ones(shape, dtype=np.float32)
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    values = np.random.default_rng([seed, key]).standard_normal(shape, dtype=np.float32)
    values *= np.float32(0.02)
    return values
