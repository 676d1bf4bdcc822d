"""Shapes of well-known models, as their config.json states them, for `random:<name>`.

A forward pass costs the same whatever the numbers in the matrices are. So the speed of a model whose weights cannot be
fetched here (too large, behind a licence, no network) can be measured with random weights of the same shape. The text
that comes out is noise, of course.

Source: the config.json of each model on the Hugging Face hub.
"""

from typing import Any


def _llama(vocab: int, hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, **rest: Any) -> dict[str, Any]:
    """A config.json of the Llama kind; `rest` overrides and adds."""
    return {
        "model_type": "llama", "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": mlp,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False, **rest,
    }  # fmt: skip


def _llama3_rope(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip


_SMOLLM2 = {"max_position_embeddings": 8192, "rope_theta": 100000.0, "tie_word_embeddings": True}
_LLAMA3 = {"max_position_embeddings": 131072, "rope_theta": 500000.0}
_QWEN = {"rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True}

RANDOM_SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": _llama(49152, 576, 1536, 30, 9, 3, **_SMOLLM2),
    "smollm2-360m": _llama(49152, 960, 2560, 32, 15, 5, **_SMOLLM2),
    "smollm2-1.7b": _llama(49152, 2048, 8192, 24, 32, 32, **{**_SMOLLM2, "rope_theta": 130000.0}),
    "llama-3.2-1b": _llama(
        128256, 2048, 8192, 16, 32, 8, head_dim=64, rope_scaling=_llama3_rope(32.0),
        **{**_LLAMA3, "tie_word_embeddings": True},
    ),
    "llama-3.1-8b": _llama(128256, 4096, 14336, 32, 32, 8, rope_scaling=_llama3_rope(8.0), **_LLAMA3),
    "llama-2-7b": _llama(32000, 4096, 11008, 32, 32, 32, max_position_embeddings=4096, rope_theta=10000.0),
    "mistral-7b": _llama(
        32000, 4096, 14336, 32, 32, 8, model_type="mistral", max_position_embeddings=32768, rope_theta=10000.0,
        sliding_window=4096,
    ),
    "qwen2.5-0.5b": _llama(
        151936, 896, 4864, 24, 14, 2, **_QWEN, model_type="qwen2", max_position_embeddings=32768,
    ),
    "qwen3-0.6b": _llama(
        151936, 1024, 3072, 28, 16, 8, **_QWEN, model_type="qwen3", max_position_embeddings=40960, head_dim=128,
    ),
}  # fmt: skip
