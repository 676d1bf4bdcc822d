"""The very weights that minifer runs, for other engines: as a GGUF file or as a Hugging Face folder.

To compare two engines one has to be sure that both run the same numbers. So whatever file a model came from, what is
written here are the float32 weights of our own forward pass (or those rounded to bfloat16), once in the form that
llama.cpp and Ollama load, once in the form that transformers and vLLM load.

Most of it is renaming. Three things are not:

* **Row order.** For the architecture `llama` a GGUF file holds Q and K permuted (`formats/hf_names.py`).
* **Llama 3's RoPE.** Hugging Face writes the rule into the configuration, GGUF the resulting factors into a tensor.
* **Biases.** A family has them all or none of them, in the mind of each engine; what a family always has and this
  model lacks is written as zeros, and what a family never has is refused.

Not here: quantising, and other architectures than those of `model/config.py`.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minifer.apps import export_vocab
from minifer.errors import UnsupportedError, UsageError
from minifer.formats.atomic import Progress, atomic_folder, no_progress
from minifer.formats.hf_names import PERMUTED_ARCHITECTURES, permute, rope_heads, to_gguf
from minifer.formats.model_keys import FAMILIES
from minifer.formats.write_gguf import stored_dtype, write_gguf
from minifer.formats.write_safetensors import WIDTH, write_safetensors
from minifer.model.config import ModelConfig
from minifer.model.load import Model
from minifer.model.weights import layer_shapes
from minifer.ops.reference import rope_frequencies

HF_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
TORCH_NAMES = {"F32": "float32", "BF16": "bfloat16"}
GGUF_FILE_TYPES = {"F32": 0, "BF16": 32}  # llama.cpp's LLAMA_FTYPE numbers

Tensors = dict[str, np.ndarray]


def named(config: ModelConfig) -> ModelConfig:
    """The same model under the name of the family it belongs to: a window is Mistral's, norms on Q and K Qwen3's.

    A GGUF file needs no such name (Mistral is filed under `llama` there), so a model read from one may lack it.
    """
    if config.model_type != "llama":
        return config
    return replace(config, model_type="qwen3" if config.qk_norm else "mistral" if config.sliding_window else "llama")


def hf_tensors(model: Model) -> Tensors:
    """The weight tree as flat Hugging Face tensors; a tied head is not repeated."""
    weights, config = model.weights, model.config
    tensors: Tensors = {"model.embed_tokens.weight": weights.embedding}
    for index, layer in enumerate(weights.layers):
        for field, (name, _) in layer_shapes(config).items():
            tensors[f"model.layers.{index}.{name}"] = getattr(layer, field)
    tensors["model.norm.weight"] = weights.final_norm
    if not config.tie_word_embeddings:
        tensors["lm_head.weight"] = weights.head
    return tensors


# --------------------------------------------------------------------------------------------------- Hugging Face


def export_hf(model: Model, path: Path, dtype: str, progress: Progress = no_progress) -> None:
    """Write a Hugging Face folder: config.json, generation_config.json, model.safetensors, the tokenizer's files.

    `dtype` is "F32" or "BF16". Raises UsageError when `path` is occupied, UnsupportedError for what the format cannot
    say, MiniferError when the disk refuses; the folder appears only when it is complete.
    """
    config = hf_config(model.config, dtype)
    tensors = _with_zero_biases(hf_tensors(model), named(model.config))
    layout = {name: (dtype, array.shape) for name, array in tensors.items()}
    with atomic_folder(path, WIDTH[dtype] * sum(array.size for array in tensors.values())) as folder:
        if model.tokenizer_path:
            export_vocab.write_hf_files(model.tokenizer_path, folder)
        _write_json(folder / "config.json", config)
        _write_json(folder / "generation_config.json", generation_config(model.config))
        write_safetensors(
            folder / "model.safetensors", layout, tensors.values(), metadata={"format": "pt"}, progress=progress
        )


def hf_config(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """config.json, in the keys that transformers 4 and 5 and vLLM read.

    Raises UnsupportedError for a combination that the family's class in transformers does not have.
    """
    c = named(config)
    if c.qk_norm != FAMILIES[c.model_type].qk_norm or (c.output_bias and c.model_type in ("qwen2", "mistral")):
        raise UnsupportedError(f"{HF_CLASSES[c.model_type]} has no such norms or biases: qk_norm={c.qk_norm}")
    if c.attention_bias and c.model_type == "mistral":
        raise UnsupportedError("MistralForCausalLM has no biases, and this model has")
    out: dict[str, Any] = {
        "architectures": [HF_CLASSES[c.model_type]],
        "model_type": c.model_type,
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": c.max_position_embeddings,
        "rms_norm_eps": _shortest(c.rms_norm_eps),
        "rope_theta": _shortest(c.rope_theta),
        "rope_scaling": _hf_rope_scaling(c),
        "tie_word_embeddings": c.tie_word_embeddings,
        "torch_dtype": TORCH_NAMES[dtype],
        **_ids(c),
    }
    if c.model_type in ("llama", "qwen3"):
        out["attention_bias"] = c.attention_bias or c.output_bias
    if c.model_type == "llama":
        out["mlp_bias"] = False
    return out | _hf_window(c)


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: a GGUF file keeps 1e-05 as 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _hf_window(c: ModelConfig) -> dict[str, Any]:
    """Mistral's window is one number. Qwen's needs a switch, and the first layer from which on it holds (here: 0)."""
    if c.model_type == "mistral":
        return {"sliding_window": c.sliding_window}
    if c.sliding_window is None:
        return {}
    kinds = ["sliding_attention"] * c.num_hidden_layers
    return {
        "sliding_window": c.sliding_window, "use_sliding_window": True, "max_window_layers": 0, "layer_types": kinds
    }  # fmt: skip


def generation_config(config: ModelConfig) -> dict[str, Any]:
    """generation_config.json: where generation begins and ends."""
    return {"_from_model_config": True, **_ids(config)}


def _ids(config: ModelConfig) -> dict[str, Any]:
    eos = list(config.eos_token_ids)
    return {"bos_token_id": config.bos_token_id, "eos_token_id": eos[0] if len(eos) == 1 else eos or None}


def _hf_rope_scaling(config: ModelConfig) -> dict[str, Any] | None:
    scaling = dict(config.rope_scaling or {})
    if not scaling:
        return None
    return _llama3_rule(config) if scaling["rope_type"] == "factors" else scaling


LLAMA3_RULE = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_CONTEXT = 8192  # every Llama 3.1, 3.2 and 3.3 stretches from this context, by a factor of its own


def _llama3_rule(config: ModelConfig) -> dict[str, Any]:
    """The rule behind the factors of a GGUF file: Llama 3's with the largest factor, if it gives the very same ones."""
    assert config.rope_scaling is not None
    factors = np.array(config.rope_scaling["factors"])
    rule = {**LLAMA3_RULE, "factor": float(factors.max()), "original_max_position_embeddings": LLAMA3_CONTEXT}
    if not np.allclose(rope_factors(config.head_dim, config.rope_theta, rule), factors, rtol=1e-5, atol=0):
        raise UnsupportedError("the factors in rope_freqs.weight are not those of Llama 3; export this model as GGUF")
    return rule


def rope_factors(head_dim: int, theta: float, scaling: dict[str, Any]) -> np.ndarray:
    """By how much a rule divides each frequency of plain RoPE: `[D/2]` float64, at least 1."""
    return rope_frequencies(head_dim, theta) / rope_frequencies(head_dim, theta, scaling)


def _with_zero_biases(tensors: Tensors, config: ModelConfig) -> Tensors:
    """Add the biases that the class in transformers always has: all four with `attention_bias`, Qwen2's three."""
    wanted: tuple[str, ...] = ("q", "k", "v") if config.model_type == "qwen2" else ()
    if config.model_type in ("llama", "qwen3") and (config.attention_bias or config.output_bias):
        wanted = ("q", "k", "v", "o")
    out = dict(tensors)
    for name, array in tensors.items():
        for part in wanted:
            if name.endswith(f".self_attn.{part}_proj.weight"):
                out.setdefault(name.removesuffix("weight") + "bias", np.zeros(array.shape[0], np.float32))
    return out


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# ----------------------------------------------------------------------------------------------------------- GGUF


def export_gguf(model: Model, path: Path, dtype: str, progress: Progress = no_progress) -> None:
    """Write a GGUF file as llama.cpp's own converter would: its names, its row order, its metadata, the vocabulary.

    `dtype` is "F32" or "BF16" (matrices only). Errors as for `export_hf`.
    """
    if path.exists():
        raise UsageError(f"{path} exists already; choose another name or remove it first")
    config = named(model.config)
    architecture = FAMILIES[config.model_type].gguf
    tensors = dict(gguf_tensors(config, hf_tensors(model)))
    layout = {name: (stored_dtype(shape, dtype), shape) for name, (shape, _) in tensors.items()}
    metadata = gguf_metadata(config, model.name, dtype) | export_vocab.gguf_vocabulary(model.tokenizer_path, config)
    arrays = (make() for _, make in tensors.values())
    write_gguf(path, architecture, metadata, layout, arrays, progress=progress)


def gguf_tensors(
    config: ModelConfig, tensors: Tensors
) -> Iterator[tuple[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]]]:
    """(GGUF name, (shape, function that makes the array)): permuted copies of Q and K exist one at a time.

    Raises UnsupportedError for biases that llama.cpp does not read in this architecture.
    """
    architecture = FAMILIES[config.model_type].gguf
    if architecture not in PERMUTED_ARCHITECTURES and config.output_bias:
        raise UnsupportedError(f"llama.cpp's {architecture} has no bias on the output projection, and this model has")
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    for name, array in tensors.items():
        count = rope_heads(name, heads, kv_heads) if architecture in PERMUTED_ARCHITECTURES else 0
        yield to_gguf(name), (array.shape, _maker(array, count))
    if (factors := _gguf_rope_factors(config)) is not None:
        yield "rope_freqs.weight", (factors.shape, lambda: factors)


def _maker(array: np.ndarray, heads: int) -> Callable[[], np.ndarray]:
    return lambda: permute(array, heads) if heads else array


def _gguf_rope_factors(config: ModelConfig) -> np.ndarray | None:
    scaling = dict(config.rope_scaling or {})
    if scaling.get("rope_type") not in ("llama3", "factors"):
        return None
    return rope_factors(config.head_dim, config.rope_theta, scaling).astype(np.float32)


def gguf_metadata(config: ModelConfig, name: str, dtype: str) -> dict[str, Any]:
    """The hyperparameters, in llama.cpp's keys.

    llama.cpp has no sliding window for the architecture `llama`, where Mistral goes. Up to W tokens a window of W
    changes nothing, so the context is announced as W, and llama.cpp stays right; minifer reads the window itself.
    """
    c, arch = config, FAMILIES[config.model_type].gguf
    context = c.max_position_embeddings
    values: dict[str, Any] = {
        "block_count": c.num_hidden_layers,
        "context_length": min(context, c.sliding_window or context),
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": float(c.rms_norm_eps),
        "rope.dimension_count": c.head_dim,
        "rope.freq_base": float(c.rope_theta),
        "vocab_size": c.vocab_size,
    }
    if c.sliding_window is not None:
        values["attention.sliding_window"] = c.sliding_window
    if c.rope_scaling and c.rope_scaling["rope_type"] == "linear":
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(c.rope_scaling["factor"])}
    general = {"general.type": "model", "general.name": Path(name).name, "general.file_type": GGUF_FILE_TYPES[dtype]}
    return general | {f"{arch}.{key}": value for key, value in values.items()}
