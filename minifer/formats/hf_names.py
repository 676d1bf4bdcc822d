"""Two names for the same tensor, and two row orders for the same matrix.

llama.cpp calls it `blk.3.attn_q.weight`, Hugging Face `model.layers.3.self_attn.q_proj.weight`. Inside minifer only
the Hugging Face names exist; this file is the dictionary in both directions.

The row order needs a thought. RoPE turns pairs of numbers within a head. Hugging Face pairs number i with number
i + D/2 (the two halves of the head), the original Llama code and llama.cpp pair 2i with 2i + 1 (neighbours). Both are
the same rotation if the rows of the Q and K matrices are put in another order, and that is what llama.cpp's converter
does for the architecture `llama` (and Mistral, which it files under that name), but not for Qwen. So:

    Hugging Face order   0 1 2 3 | 4 5 6 7      pairs (0,4) (1,5) (2,6) (3,7)
    llama.cpp order      0 4 1 5   2 6 3 7      the same pairs, now neighbours

Each head is permuted on its own, so the number of heads matters: Q has `head_count`, and K `head_count_kv` of them.
K permuted with the head count of Q is a famous bug that hides whenever heads / kv heads happens to equal kv heads.

Not here: any other architecture's tensors (experts, fused QKV, cross attention). They are refused by name.

Source: `LlamaModel.permute` in llama.cpp's convert_hf_to_gguf.py.
"""

import re

import numpy as np

from minifer.errors import FormatError, UnsupportedError

GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "rope_freqs.weight",  # Llama 3; Hugging Face has them in config.json
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PERMUTED_ARCHITECTURES = frozenset({"llama"})

_GLOBAL_BACK = {hf: gguf for gguf, hf in GLOBAL_NAMES.items()}
_LAYER_BACK = {hf: gguf for gguf, hf in LAYER_NAMES.items()}


def to_hf(gguf_name: str) -> str:
    """The Hugging Face name of a GGUF tensor. Raises UnsupportedError for one that minifer has no use for.

    >>> to_hf("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    >>> to_hf("output_norm.weight")
    'model.norm.weight'
    """
    if gguf_name in GLOBAL_NAMES:
        return GLOBAL_NAMES[gguf_name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", gguf_name, re.ASCII)
    if not match or match[2] not in LAYER_NAMES:
        raise UnsupportedError(f"the tensor {gguf_name!r} belongs to an architecture that minifer does not have")
    return f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.{match[3]}"


def to_gguf(hf_name: str) -> str:
    """The way back.

    >>> to_gguf("model.layers.3.self_attn.q_proj.weight")
    'blk.3.attn_q.weight'
    """
    if hf_name in _GLOBAL_BACK:
        return _GLOBAL_BACK[hf_name]
    match = re.fullmatch(r"model\.layers\.(\d+)\.([\w.]+)\.(weight|bias)", hf_name, re.ASCII)
    if not match or match[2] not in _LAYER_BACK:
        raise UnsupportedError(f"the tensor {hf_name!r} has no place in a GGUF file")
    return f"blk.{match[1]}.{_LAYER_BACK[match[2]]}.{match[3]}"


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Hugging Face row order -> llama.cpp row order, for a weight `[heads * D, E]` or a bias `[heads * D]`.

    >>> permute(np.arange(16), heads=2).tolist()
    [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    """
    return _swap(rows, (heads, 2, -1))


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp row order -> Hugging Face row order; the inverse of `permute`.

    >>> unpermute(permute(np.arange(16), heads=2), heads=2).tolist() == list(range(16))
    True
    """
    return _swap(rows, (heads, -1, 2))


def _swap(rows: np.ndarray, split: tuple[int, int, int]) -> np.ndarray:
    if split[0] < 1 or rows.shape[0] % (2 * split[0]):
        raise FormatError(f"{rows.shape[0]} rows of Q or K cannot be divided among {split[0]} heads of even size")
    return rows.reshape(*split, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def rope_heads(hf_name: str, heads: int, kv_heads: int) -> int:
    """How many heads' rows `permute` has to treat in this tensor; 0 for all that RoPE does not touch.

    >>> rope_heads("model.layers.0.self_attn.k_proj.weight", heads=9, kv_heads=3)
    3
    >>> rope_heads("model.layers.0.self_attn.v_proj.weight", heads=9, kv_heads=3)
    0
    """
    if ".self_attn.q_proj." in hf_name:
        return heads
    return kv_heads if ".self_attn.k_proj." in hf_name else 0
