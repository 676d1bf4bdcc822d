"""What a step will cost, predicted from the configuration alone: calls, FLOPs and bytes of every operation.

This file and the counting at the ops boundary (`ops/counting.py`) were written apart on purpose: one derives the
numbers from `ModelConfig`, the other from the arrays that met. A test holds them against each other, and the roofline
puts both beside the clock.

Two rules of thumb fall out. A linear layer does `2 * T * parameters` FLOPs but reads its parameters once, however
large T is: decoding one token is all reading, prefill is all arithmetic. And the KV cache is read by kv heads:
`8 * layers * kv_heads * head_dim` bytes per token of context in float32.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from minifer.model.config import ModelConfig
from minifer.model.weights import tensor_shapes


@dataclass(frozen=True)
class Cost:
    """Predicted work: `flops` (multiply and add are two) and `bytes` (every operand read, every result written)."""

    calls: int = 0
    flops: int = 0
    bytes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        """The work of both."""
        return Cost(self.calls + other.calls, self.flops + other.flops, self.bytes + other.bytes)

    def times(self, n: int) -> "Cost":
        """The work of n of these."""
        return Cost(self.calls * n, self.flops * n, self.bytes * n)

    @property
    def intensity(self) -> float:
        """FLOPs per byte, the x axis of the roofline."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class Work:
    """One sequence in a step: `length` new tokens, after which `context` of its tokens exist."""

    length: int
    context: int


LINEARS = ("qkv", "output", "gate_up", "down", "head")
"""The operations that read weights."""


def step_cost(
    config: ModelConfig,
    work: Iterable[Work],
    *,
    num_logits: int | None = None,
    weight_bytes: float = 4,
    activation_bytes: int = 4,
) -> dict[str, Cost]:
    """The cost of one step by operation; `sum(..., Cost())` over the values is the whole step.

    `num_logits` rows get logits, by default one per sequence. `weight_bytes` may be a fraction (0.625 for Q4_1).
    """
    sequences = list(work)
    tokens = sum(w.length for w in sequences)
    rows = len(sequences) if num_logits is None else num_logits
    c, layers = config, config.num_hidden_layers
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    e, f, a = c.hidden_size, c.intermediate_size, activation_bytes

    def linear(n: int, inputs: int, outputs: int, bias: int = 0) -> Cost:
        traffic = round((inputs * outputs + bias) * weight_bytes) + n * (inputs + outputs) * a
        return Cost(1, 2 * n * inputs * outputs + n * bias, traffic)

    attention = sum((attention_cost(c, w, a) for w in sequences), Cost())
    return {
        "embed": Cost(1, 0, 2 * tokens * e * a),
        "norm": _norms(c, tokens, rows, a),
        "qkv": linear(tokens, e, q + 2 * kv, (q + 2 * kv) if c.attention_bias else 0).times(layers),
        "rope": Cost(1, 3 * tokens * (q + kv), 2 * tokens * (q + kv) * a).times(layers),
        "kv_write": Cost(1, 0, 4 * tokens * kv * a).times(layers),
        "attention": attention.times(layers),
        "output": linear(tokens, q, e, e if c.output_bias else 0).times(layers),
        "gate_up": linear(tokens, e, 2 * f).times(layers),
        "swiglu": Cost(1, 5 * tokens * f, 3 * tokens * f * a).times(layers),
        "down": linear(tokens, f, e).times(layers),
        "head": linear(rows, e, c.vocab_size),
    }


def attention_cost(config: ModelConfig, work: Work, a: int) -> Cost:
    """One layer, one sequence. Query i of the new tokens sees `min(position + 1, window)` keys.

    `a` is the size of an activation in bytes. FLOPs: 4 H D for each query and key that meet. Bytes: queries in and
    outputs out (H heads), and the keys and values that anyone sees (K heads).

    >>> config = ModelConfig(100, 8, 16, 2, 2, 1, 4, 64, 1e-5, 1e4)  # H=2, K=1, D=4
    >>> attention_cost(config, Work(length=2, context=6), a=4)  # 5 + 6 pairs, 6 keys
    Cost(calls=1, flops=352, bytes=320)
    """
    c, first, window = config, work.context - work.length, config.window()
    growing = max(0, min(work.context, window) - first)  # queries that still see everything before them
    pairs = growing * first + growing * (growing + 1) // 2 + (work.length - growing) * window
    keys = min(work.context, window + work.length - 1)
    q_size = work.length * c.num_attention_heads * c.head_dim
    kv_size = 2 * keys * c.num_key_value_heads * c.head_dim
    return Cost(1, 4 * c.num_attention_heads * c.head_dim * pairs, (2 * q_size + kv_size) * a)


def _norms(config: ModelConfig, tokens: int, rows: int, a: int) -> Cost:
    """Two a layer, one before the head, and in Qwen3 one for each of queries and keys."""
    c = config

    def norm(elements: int, gain: int) -> Cost:
        return Cost(1, 4 * elements, (2 * elements + gain) * a)

    per_layer = norm(tokens * c.hidden_size, c.hidden_size).times(2)
    if c.qk_norm:
        per_layer += norm(tokens * c.num_attention_heads * c.head_dim, c.head_dim)
        per_layer += norm(tokens * c.num_key_value_heads * c.head_dim, c.head_dim)
    return per_layer.times(c.num_hidden_layers) + norm(rows * c.hidden_size, c.hidden_size)


def num_parameters(config: ModelConfig) -> int:
    """How many numbers the model consists of; a tied embedding counts once."""

    total = 0
    for shape in tensor_shapes(config).values():
        total += shape[0] * (shape[1] if len(shape) == 2 else 1)
    return total
