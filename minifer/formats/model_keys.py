"""From the keys of a model's files to the fields of `ModelConfig`, for config.json and for GGUF metadata.

The two say the same under different names, and each leaves some of it unsaid: a family's habits (`FAMILIES`), a head
size that follows from others, a tied head that shows only in the absence of a tensor. What asks for arithmetic that
minifer does not have is refused by name. Nothing is guessed: where a key is missing and the field has a documented
default the default is taken, else loading fails.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minifer.errors import FormatError, UnsupportedError

_LIMIT = 1 << 31
"""No size in a configuration may reach this: hostile files name absurd ones to exhaust memory."""


@dataclass(frozen=True)
class Family:
    """What a `model_type` implies without saying it in the file."""

    qkv_bias: bool = False
    qk_norm: bool = False
    gguf: str = "llama"


FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(qkv_bias=True, gguf="qwen2"),
    "qwen3": Family(qk_norm=True, gguf="qwen3"),
}
"""A further family is a row here; a new idea it brings is a field of ModelConfig and a line in `ops/reference.py`."""


def hf_fields(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of `ModelConfig` in a parsed config.json, with the EOS ids of generation_config.json added.

    Raises UnsupportedError for an architecture or an option that minifer does not have, FormatError for a missing or
    impossible value.
    """
    family = _family(config.get("model_type"))
    _refuse_unknown_options(config)
    heads, hidden = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    theta, scaling = _rope_from_hf(config)
    bias = bool(config.get("attention_bias", False))
    return {
        "vocab_size": _size(config, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": _size(config, "intermediate_size"),
        "num_hidden_layers": _size(config, "num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": _size(config, "num_key_value_heads", heads),
        "head_dim": _size(config, "head_dim", hidden // heads),
        "max_position_embeddings": _size(config, "max_position_embeddings"),
        "rms_norm_eps": _number(config, "rms_norm_eps", 1e-6),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "attention_bias": family.qkv_bias or bias,
        "output_bias": bias and not family.qkv_bias,
        "qk_norm": family.qk_norm,
        "sliding_window": _window_from_hf(config),
        "model_type": str(config["model_type"]),
        "bos_token_id": _optional_int(config.get("bos_token_id")),
        "eos_token_ids": _ids(config.get("eos_token_id"), (generation or {}).get("eos_token_id")),
    }


def gguf_fields(
    metadata: Mapping[str, Any],
    tensor_names: Sequence[str],
    vocab_size: int,
    rope_factors: Sequence[float] | None = None,
) -> dict[str, Any]:
    """The fields of `ModelConfig` in a GGUF file's metadata. `tensor_names` tell a tied head and biases, `vocab_size`
    is the embedding's number of rows, `rope_factors` are the values of `rope_freqs.weight` where the file has it.
    Errors as for `hf_fields`."""
    arch = metadata.get("general.architecture")
    model_type = next((name for name, family in FAMILIES.items() if family.gguf == arch), None)
    if model_type is None:
        raise UnsupportedError(f"GGUF architecture {arch!r} is not supported: only {_known('gguf')}")
    get = {k.removeprefix(f"{arch}."): v for k, v in metadata.items() if k.startswith(f"{arch}.")}
    heads, hidden = _size(get, "attention.head_count"), _size(get, "embedding_length")
    head_dim = _size(get, "attention.key_length", hidden // heads)
    _refuse_unknown_gguf(get, head_dim)
    names = set(tensor_names)
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": _size(get, "feed_forward_length"),
        "num_hidden_layers": _size(get, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _size(get, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": _size(get, "context_length"),
        "rms_norm_eps": _number(get, "attention.layer_norm_rms_epsilon"),
        "rope_theta": _number(get, "rope.freq_base", 10000.0),
        "rope_scaling": _rope_from_gguf(get, rope_factors, head_dim),
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": "blk.0.attn_q.bias" in names,
        "output_bias": "blk.0.attn_output.bias" in names,
        "qk_norm": FAMILIES[model_type].qk_norm,
        "sliding_window": _optional_int(get.get("attention.sliding_window")),
        "model_type": model_type,
        "bos_token_id": _optional_int(metadata.get("tokenizer.ggml.bos_token_id")),
        "eos_token_ids": _ids(metadata.get("tokenizer.ggml.eos_token_id"), metadata.get("tokenizer.ggml.eot_token_id")),
    }


def _known(kind: str) -> str:
    names = FAMILIES if kind == "hf" else {family.gguf: family for family in FAMILIES.values()}
    return ", ".join(names)


def _family(model_type: Any) -> Family:
    if model_type not in FAMILIES:
        raise UnsupportedError(f"model_type {model_type!r} is not supported: only {_known('hf')}")
    return FAMILIES[model_type]


def positive_int(name: str, value: Any) -> int:
    """`value`, if it is a size that a model can have; else FormatError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LIMIT:
        raise FormatError(f"{name} must be a positive whole number below 2^31, not {value!r}")
    return value


def _size(source: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = source.get(key)
    if value is None:
        value = default
    if value is None:
        raise FormatError(f"the model's configuration lacks {key!r}")
    return positive_int(key, value)


def _number(source: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = source.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FormatError(f"the model's configuration needs a finite number for {key!r}, not {value!r}")
    return float(value)


def _optional_int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _ids(*sources: Any) -> tuple[int, ...]:
    """The union of token ids given as an int, a list or nothing, in order of appearance."""
    found: dict[int, None] = {}
    for source in sources:
        for value in source if isinstance(source, list | tuple) else [source]:
            if _optional_int(value) is not None:
                found[value] = None
    return tuple(found)


def _refuse_unknown_options(config: Mapping[str, Any]) -> None:
    """Options that change the arithmetic and that minifer does not implement."""
    wanted = {"hidden_act": "silu", "mlp_bias": False, "partial_rotary_factor": 1.0, "pretraining_tp": 1}
    for key, value in wanted.items():
        if config.get(key, value) not in (value, None):
            raise UnsupportedError(f"{key}={config[key]!r} is not supported, only {value!r}")
    kinds = set(config.get("layer_types") or ())
    if len(kinds) > 1 or kinds - {"full_attention", "sliding_attention"}:
        raise UnsupportedError(f"layer_types {sorted(kinds)} are not supported: all layers must attend alike")


def _window_from_hf(config: Mapping[str, Any]) -> int | None:
    """Mistral's `sliding_window` holds for every layer; Qwen's only with `use_sliding_window`, for a part of them."""
    kinds = set(config.get("layer_types") or ())
    window = config.get("sliding_window")
    if window is None or kinds == {"full_attention"}:
        return None
    if not config.get("use_sliding_window", config["model_type"] == "mistral" or bool(kinds)):
        return None
    if config["model_type"] != "mistral" and not kinds:
        raise UnsupportedError(
            "use_sliding_window with max_window_layers is not supported: all layers must attend alike"
        )
    return positive_int("sliding_window", window)


def _rope_from_hf(config: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """Theta and scaling, from `rope_theta` + `rope_scaling` or from the newer `rope_parameters`."""
    parameters = config.get("rope_parameters") or {}
    scaling = dict(config.get("rope_scaling") or parameters)
    theta = _number({"rope_theta": parameters.get("rope_theta"), **config}, "rope_theta")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default" or kind is None:
        return theta, None
    return theta, _checked_scaling(kind, scaling)


def _checked_scaling(kind: Any, scaling: Mapping[str, Any]) -> Mapping[str, Any]:
    keys = {
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }
    if kind not in keys:
        raise UnsupportedError(f"rope_scaling {kind!r} is not supported: only {', '.join(keys)}")
    values = {key: _number(scaling, key) for key in keys[kind]}
    if min(values.values()) <= 0 or values.get("low_freq_factor", 0) == values.get("high_freq_factor", 1):
        raise FormatError(f"rope_scaling {kind!r} has impossible values: {values}")
    return {"rope_type": kind, **values}


def _rope_from_gguf(get: Mapping[str, Any], factors: Sequence[float] | None, head_dim: int) -> Mapping[str, Any] | None:
    kind = get.get("rope.scaling.type", "none")
    if kind == "linear":
        return _checked_scaling("linear", {"factor": get.get("rope.scaling.factor")})
    if kind != "none":
        raise UnsupportedError(f"rope.scaling.type {kind!r} is not supported: only none, linear")
    if factors is None:
        return None
    if len(factors) != head_dim // 2 or not all(0 < factor < math.inf for factor in factors):
        raise FormatError(f"rope_freqs.weight needs {head_dim // 2} positive factors, and has {len(factors)}")
    return {"rope_type": "factors", "factors": tuple(float(f) for f in factors)}


def _refuse_unknown_gguf(get: Mapping[str, Any], head_dim: int) -> None:
    for key in ("rope.dimension_count", "attention.value_length"):
        if get.get(key, head_dim) != head_dim:
            raise UnsupportedError(f"{key}={get[key]} is not supported: it must equal the head size {head_dim}")
    if get.get("expert_count"):
        raise UnsupportedError(f"expert_count={get['expert_count']}: mixtures of experts are not supported")
