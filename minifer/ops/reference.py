"""The arithmetic of a Llama-like transformer, as in the papers: the definition, and the oracle of the fast rooms.

Legend of shapes, used as suffixes (`q_THD`) and in docstrings:

    T tokens of the step    S keys visible       H query heads     K kv heads     G = H / K query heads per kv head
    D head_dim              E hidden size        F feed-forward    V vocabulary   R rows that need logits

Every function is plain and works on NumPy and on CuPy arrays alike: it asks its arguments which of the two they are
(`array_module`), uses only names that both have, multiplies only matrices (2-D), and never copies between host and
device. `Ops` at the end is the *room*: the same functions with the weights' layout, the cache and the counting around
them, behind the interface that `transformer.forward` calls and that `cpu.py` and `cuda.py` offer too.

What is not here: anything fast. Heads and sequences are looped over in Python, and every intermediate is a new array.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minifer.errors import UnsupportedError
from minifer.kv_cache.store import KVStore
from minifer.meter import Meter
from minifer.ops import counting
from minifer.ops.batch import Batch, Span

if TYPE_CHECKING:
    from minifer.device import Device
    from minifer.model.config import ModelConfig
    from minifer.model.weights import LayerWeights, Weights


def array_module(array: Any) -> Any:
    """`numpy` for a NumPy array, `cupy` for a CuPy array, without importing either."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def softmax(x: Any) -> Any:
    """Softmax over the last axis of `x [..., S]`: positive, sums to 1, unharmed by large values.

    The maximum is subtracted first, which changes nothing in exact arithmetic and keeps `exp` from overflowing. A row
    of nothing but -inf (a query that may see no key) gives zeros, not NaN.

    >>> softmax(np.array([[0.0, 0.0], [1000.0, -np.inf]], dtype=np.float32)).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    xp = array_module(x)
    top = x.max(axis=-1, keepdims=True)
    top = xp.where(top == -math.inf, xp.zeros_like(top), top)
    e = xp.exp(x - top)
    total = e.sum(axis=-1, keepdims=True)
    return e / xp.where(total == 0, xp.ones_like(total), total)


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """Root mean square norm of `x [..., E]` with a gain `weight [E]`: `x / sqrt(mean(x^2) + eps) * weight`.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    mean_square = (x * x).sum(axis=-1, keepdims=True) / x.shape[-1]
    return x / array_module(x).sqrt(mean_square + x.dtype.type(eps)) * weight


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """`x [T, in]` through a matrix `weight [out, in]`: `[T, out]`, plus `bias [out]` where there is one."""
    y = x @ weight.T
    return y if bias is None else y + bias


def rope_frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None) -> np.ndarray:
    """By how many radians a token further each of the D/2 pairs of a head is rotated: `[D/2]`, float64.

    Plain RoPE is `theta^(-2i/D)`. `linear` divides all of them by a factor, `factors` each by its own. Llama 3.1
    (`llama3`) divides long wavelengths by the factor, leaves short ones, and blends in between.
    Source: Su et al., "RoFormer", 2021; the llama3 rule from Meta's reference implementation of Llama 3.1.

    >>> rope_frequencies(4, 100.0).tolist()
    [1.0, 0.1]
    """
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    kind = scaling["rope_type"] if scaling else "default"
    if scaling is None or kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / scaling["factor"]
    if kind == "factors":
        return frequencies / np.array(scaling["factors"], dtype=np.float64)
    if kind == "llama3":
        return _llama3_frequencies(frequencies, scaling)
    raise UnsupportedError(f"rope_scaling {kind!r} is not supported")


def _llama3_frequencies(frequencies: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)  # 1: many turns in the old context, left as it is
    return keep * frequencies + (1 - keep) * frequencies / scaling["factor"]


def rope_table(positions: Any, frequencies: Any) -> tuple[Any, Any]:
    """Cosine and sine of each token's angles: positions `[T]`, frequencies `[D/2]` -> two float32 `[T, D/2]`.

    The angle is computed in float64: at position 8,000 a float32 product is already off by 0.0005 radians.
    """
    xp = array_module(positions)
    angles = positions.astype(np.float64).reshape(-1, 1) * frequencies.reshape(1, -1)
    return xp.cos(angles).astype(np.float32), xp.sin(angles).astype(np.float32)


def rope(x_THD: Any, cos: Any, sin: Any) -> Any:
    """Rotate each head of `x [T, H, D]` by its token's angles, `cos` and `sin [T, D/2]`.

    Pair i is `(x[i], x[i + D/2])`, the half-split order of Hugging Face's checkpoints. The paper pairs neighbours,
    `(x[2i], x[2i+1])`; files in that order (llama.cpp's) are permuted when they are loaded, because the wrong pairing
    still answers simple questions, only worse.
    """
    half = x_THD.shape[-1] // 2
    cos, sin = cos[:, None, :], sin[:, None, :]
    a, b = x_THD[..., :half], x_THD[..., half:]
    return array_module(x_THD).concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def swiglu(gate: Any, up: Any) -> Any:
    """`silu(gate) * up`, elementwise, with `silu(z) = z / (1 + exp(-z))`.

    Written with `exp` of a value that is never positive, so that nothing overflows.
    Source: Shazeer, "GLU Variants Improve Transformer", 2020.
    """
    xp = array_module(gate)
    e = xp.exp(-abs(gate))
    sigmoid = xp.where(gate >= 0, 1 / (1 + e), e / (1 + e))
    return gate * sigmoid * up


def causal_mask(length: int, context: int, window: int, xp: Any = np) -> Any:
    """Which of `context` keys each of the last `length` tokens may see: booleans `[length, context]`.

    A token sees itself and what came before, at most `window` tokens in all.

    >>> causal_mask(2, 4, window=2).astype(int).tolist()
    [[0, 1, 1, 0], [0, 0, 1, 1]]
    """
    query = xp.arange(context - length, context).reshape(-1, 1)
    key = xp.arange(context).reshape(1, -1)
    return (key <= query) & (key > query - window)


def attention(q_THD: Any, keys: Sequence[Any], values: Sequence[Any], window: int) -> Any:
    """Causal attention of the last T tokens of one sequence over all S of its tokens: `[T, H, D]`.

    `keys` are pieces `[K, D, s]` and `values` pieces `[K, s, D]` of the cache, in order, their `s` adding up to S: one
    piece if the sequence lies in one stretch, several if its blocks are scattered. Query head h reads kv head `h // G`.

    Source: Vaswani et al., 2017; grouped heads: Ainslie et al., "GQA", 2023.
    """
    xp = array_module(q_THD)
    length, heads, head_dim = q_THD.shape
    kv_heads = keys[0].shape[0]
    group = heads // kv_heads
    context = sum(piece.shape[-1] for piece in keys)
    visible = causal_mask(length, context, window, xp)
    visible = xp.concatenate([visible] * group, axis=0)  # one row per query head of the group
    scale = q_THD.dtype.type(head_dim**-0.5)
    out = []
    for kv in range(kv_heads):
        q = q_THD[:, kv * group : (kv + 1) * group].transpose(1, 0, 2).reshape(group * length, head_dim)
        scores = xp.concatenate([q @ piece[kv] for piece in keys], axis=1) * scale
        p = softmax(xp.where(visible, scores, scores.dtype.type(-math.inf)))
        out.append(_weighted_sum(p, [piece[kv] for piece in values]).reshape(group, length, head_dim))
    return xp.concatenate(out, axis=0).transpose(1, 0, 2)


def _weighted_sum(p: Any, values: Sequence[Any]) -> Any:
    """`p [rows, S] @ concatenated values [S, D]`, piece by piece, so that nothing is gathered."""
    total, start = 0.0, 0
    for piece in values:
        total = total + p[:, start : start + piece.shape[0]] @ piece
        start += piece.shape[0]
    return total


class Ops:
    """The reference room: what `transformer.forward` calls, made of the functions above.

    `meter`, where given, counts every operation from the shapes that really met.
    """

    name = "reference"

    def __init__(self, config: "ModelConfig", device: "Device", meter: Meter | None = None) -> None:
        """Nothing is allocated yet: weights come with `prepare`, the cache with `new_store`."""
        self.config, self.device, self.meter = config, device, meter
        frequencies = rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self._frequencies = device.asarray(frequencies)

    def prepare(self, weights: "Weights") -> "Weights":
        """The weights in this room's layout: the plain tree, on the device."""
        return weights.map(self.device.asarray)

    def new_store(self, num_blocks: int, block_size: int, *, poison: bool = False) -> KVStore:
        """A KV cache for this model on this device."""
        c, xp = self.config, self.device.xp
        shape = (c.num_hidden_layers, c.num_key_value_heads, c.head_dim, num_blocks, block_size)
        return KVStore(*shape, xp=xp, poison=poison)

    def close(self) -> None:
        """Give back what the room holds: nothing here."""

    def embed(self, embedding: Any, tokens: Any) -> Any:
        """Rows of `embedding [V, E]` for `tokens [T]`: `[T, E]`."""
        counting.embed(self.meter, tokens, embedding)
        return embedding[tokens]

    def rope_table(self, positions: Any) -> tuple[Any, Any]:
        """Cosine and sine for the tokens of a step, shared by all layers: two `[T, D/2]`."""
        return rope_table(positions, self._frequencies)

    def attention_block(
        self, x: Any, layer: "LayerWeights", rope_table: tuple[Any, Any], batch: Batch, store: KVStore, index: int
    ) -> Any:
        """`x [T, E]` plus attention over the norm of x. Keys and values of the T tokens are written to the cache first,
        then every sequence reads its own."""
        h = self.norm(x, layer.attention_norm)
        q, k, v = self.qkv(h, layer, rope_table)
        counting.kv_write(self.meter, k, v)
        store.write(index, batch.slots, k, v)
        attended = [self._attend(q, span, store, index) for span in batch.spans]
        o = array_module(x).concatenate(attended, axis=0).reshape(x.shape[0], -1)
        counting.linear(self.meter, "output", o, layer.wo, layer.bo)
        return x + linear(o, layer.wo, layer.bo)

    def mlp_block(self, x: Any, layer: "LayerWeights") -> Any:
        """`x [T, E]` plus the gated feed-forward of the norm of x."""
        h = self.norm(x, layer.mlp_norm)
        counting.linear(self.meter, "gate_up", h, layer.w_gate, layer.w_up)
        gated = swiglu(linear(h, layer.w_gate), linear(h, layer.w_up))
        counting.swiglu(self.meter, gated)
        counting.linear(self.meter, "down", gated, layer.w_down)
        return x + linear(gated, layer.w_down)

    def head(self, x: Any, weights: "Weights", rows: Any) -> Any:
        """Logits `[R, V]` of the asked-for rows of `x [T, E]`."""
        h = self.norm(x[rows], weights.final_norm)
        counting.linear(self.meter, "head", h, weights.head)
        return linear(h, weights.head)

    def norm(self, x: Any, weight: Any) -> Any:
        """RMS norm with the model's epsilon."""
        counting.norm(self.meter, x, weight)
        return rms_norm(x, weight, self.config.rms_norm_eps)

    def qkv(self, h: Any, layer: "LayerWeights", rope_table: tuple[Any, Any]) -> tuple[Any, Any, Any]:
        """Queries `[T, H, D]`, keys and values `[T, K, D]`; queries and keys normed (Qwen3) and rotated."""
        heads = (h.shape[0], -1, self.config.head_dim)
        counting.linear(self.meter, "qkv", h, layer.wq, layer.wk, layer.wv, layer.bq, layer.bk, layer.bv)
        q = linear(h, layer.wq, layer.bq).reshape(heads)
        k = linear(h, layer.wk, layer.bk).reshape(heads)
        v = linear(h, layer.wv, layer.bv).reshape(heads)
        if layer.q_norm is not None:
            q, k = self.norm(q, layer.q_norm), self.norm(k, layer.k_norm)
        counting.rope(self.meter, q, k)
        return rope(q, *rope_table), rope(k, *rope_table), v

    def _attend(self, q_THD: Any, span: Span, store: KVStore, index: int) -> Any:
        runs = store.runs(span.block_table, span.context)
        k, v = store.k(index), store.v(index)
        q = q_THD[span.start : span.start + span.length]
        window = self.config.window()
        counting.attention(self.meter, q, k, span.context, window)
        return attention(q, [k[:, :, a:b] for a, b in runs], [v[:, a:b] for a, b in runs], window)
