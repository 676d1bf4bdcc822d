"""Small random checkpoints of six families, as Hugging Face folder and as GGUF, with the logits of transformers.

    python tests/make/goldens_families.py            # writes tests/golden/families/NAME/, one minute

Made with torch 2.13.0 (CPU), transformers 5.24.0, gguf 0.19.0, safetensors 0.8.0. The weights are noise, but every one
of them is: norm weights and biases too, so that a forgotten bias or a norm applied twice shows. The shapes are the ones
that tell right from almost right: heads/kv 8/2, 6/2, 4/1 and 9/3, head_dim that is not hidden/heads, an odd vocabulary,
a window shorter than the prompt, a `rope_scaling` whose borders lie inside the prompt, an epsilon that matters.

`expected.npz` holds `prompt_ids [24]`, `logits [24, V]` (float32, eager attention) and `greedy [32]`. Seeds are
searched until every greedy token leads by more than 0.02. `expected.json` names versions and says how far the logits
move if one thing is done wrong (`sensitivity`): a golden value that could not fail would prove nothing.

The GGUF is written as llama.cpp's converter does (ggml-org/llama.cpp, conversion/llama.py and qwen.py): Q and K rows
permuted for the `llama` architecture and not for Qwen, norms and biases float32, `rope_freqs.weight` for Llama 3's
factors. Two things differ on purpose: the converter assumes 8,192 as Llama 3's original context where we write the one
of the config, and it drops Mistral's window where we write `llama.attention.sliding_window`. At the end transformers
reads every GGUF back, and its weights must equal those of the folder bit for bit.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from common import GOLDEN, TINY, greedy, logits_of, rounded, versions, write_json
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

PROMPT, GREEDY, MARGIN = 24, 32, 0.02
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}

# config.json of each family as found in the wild: keys that a family leaves out are left out here.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama2": {
        "model_type": "llama",
        "vocab_size": 257,
        "hidden_size": 48,
        "intermediate_size": 88,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "rope_theta": 2500.0,
        "rope_scaling": None,
        "rms_norm_eps": 2e-3,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    },
    "llama3": {
        "model_type": "llama",
        "vocab_size": 301,
        "hidden_size": 72,
        "intermediate_size": 104,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "rope_theta": 1000.0,
        "rope_scaling": {"rope_type": "llama3", **LLAMA3},
        "rms_norm_eps": 3e-3,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    },
    "smollm2": {
        "model_type": "llama",
        "vocab_size": 301,
        "hidden_size": 72,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 54321.0},
        "rms_norm_eps": 1e-3,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    },
    "mistral": {
        "model_type": "mistral",
        "vocab_size": 257,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 20,
        "rope_theta": 77777.0,
        "sliding_window": 7,
        "rms_norm_eps": 4e-3,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "qwen2": {
        "model_type": "qwen2",
        "vocab_size": 301,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "rope_theta": 34567.0,
        "use_sliding_window": False,
        "sliding_window": 5,
        "max_window_layers": 1,
        "rms_norm_eps": 5e-3,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    },
    "qwen3": {
        "model_type": "qwen3",
        "vocab_size": 257,
        "hidden_size": 56,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 45678.0,
        "rope_scaling": None,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "rms_norm_eps": 6e-3,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    },
}
CLASSES = {name: f"{name.capitalize()}ForCausalLM" for name in ("llama", "mistral", "qwen2", "qwen3")}

# What a wrong reading of the config would compute; the logits must move by more than 0.01.
MISTAKES: dict[str, dict[str, dict[str, Any]]] = {
    "llama2": {},
    "llama3": {"no rope scaling": {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}},
    "smollm2": {},
    "mistral": {"no window": {"sliding_window": None}, "window one longer": {"sliding_window": 8}},
    "qwen2": {
        "window used": {"layer_types": ["sliding_attention"] * 3, "use_sliding_window": True, "sliding_window": 5}
    },
    "qwen3": {},
}


def full_config(name: str) -> dict[str, Any]:
    """config.json of a family, with what all of them share."""
    config = CONFIGS[name]
    common = {"max_position_embeddings": 128, "hidden_act": "silu", "bos_token_id": 256, "eos_token_id": 256}
    return {"architectures": [CLASSES[config["model_type"]]], **config, **common}


def random_weights(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Every weight drawn at random, in the dtype of the config, by the names that transformers gives them."""
    empty = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, old in empty.state_dict().items():
        noise = torch.randn(old.shape, generator=generator)
        if name.endswith("norm.weight"):
            weights[name] = 1.0 + 0.4 * noise
        elif name.endswith("bias"):
            weights[name] = 0.5 * noise
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            weights[name] = 1.4 * noise / math.sqrt(old.shape[1])  # scores spread enough for positions to matter
        else:
            weights[name] = noise / math.sqrt(old.shape[1])
    if config["tie_word_embeddings"]:
        del weights["lm_head.weight"]
    dtype = DTYPES[config.get("torch_dtype") or config["dtype"]]
    return {name: weight.to(dtype).contiguous() for name, weight in weights.items()}


def save_folder(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor], shards: int) -> None:
    """A Hugging Face folder: config.json and safetensors, in one file or in shards with an index."""
    shutil.rmtree(folder, ignore_errors=True)
    write_json(folder / "config.json", config)
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    index: dict[str, str] = {}
    for number in range(shards):
        part = dict(list(weights.items())[number::shards])
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    total = sum(weight.nbytes for weight in weights.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})


def load(folder: Path, **overrides: Any) -> Any:
    """The folder as transformers reads it, in float32 with eager attention; `overrides` replace config values."""
    config = AutoConfig.from_pretrained(folder)
    for key, value in overrides.items():
        setattr(config, key, value)
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


# ------------------------------------------------------------------------------------------------ tokenizer


def small_tokenizer(vocab_size: int) -> dict[str, Any]:
    """A tokenizer.json of exactly this size: the 256 bytes, `<|endoftext|>` (id 256), and the first merges of tiny."""
    tiny = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    letters = [token for token in tiny["model"]["vocab"] if len(token) == 1]
    merges = tiny["model"]["merges"][: vocab_size - 257]
    end = next(token for token in tiny["added_tokens"] if token["content"] == "<|endoftext|>")
    tokens = [*letters, end["content"], *("".join(pair) for pair in merges)]
    tiny["added_tokens"] = [{**end, "id": 256}]
    tiny["model"] |= {"vocab": {token: index for index, token in enumerate(tokens)}, "merges": merges}
    return tiny


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any]) -> None:
    """The same vocabulary in GGUF's form."""
    tokens = list(tokenizer["model"]["vocab"])
    control = {token["content"] for token in tokenizer["added_tokens"]}
    kinds = [gguf.TokenType.CONTROL if token in control else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(256)
    writer.add_add_bos_token(False)


# ----------------------------------------------------------------------------------------------------- GGUF


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of each head from half-split to interleaved RoPE; `heads` is K's own head count for K.

    Two kv heads of width 8 become rows 0 4 1 5 2 6 3 7, 8 12 9 13 10 14 11 15.
    """
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def rope_factors(config: dict[str, Any], head_dim: int) -> np.ndarray:
    """What each RoPE frequency is divided by, float32 `[head_dim / 2]` (conversion/llama.py)."""
    scaling = config["rope_scaling"]
    low, high, context = (
        scaling["low_freq_factor"],
        scaling["high_freq_factor"],
        LLAMA3["original_max_position_embeddings"],
    )
    factors = []
    for frequency in config["rope_theta"] ** (-np.arange(0, head_dim, 2, dtype=np.float32) / head_dim):
        wavelength = 2 * math.pi / frequency
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(scaling["factor"])
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def add_parameters(writer: gguf.GGUFWriter, name: str, config: dict[str, Any], is_llama: bool) -> None:
    """The metadata that llama.cpp's converter writes for such a config."""
    rope = config.get("rope_parameters") or config
    writer.add_name("windowed" if name == "mistral" else name)  # transformers 5.24 fails on the name mistral
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if is_llama:
        writer.add_rope_dimension_count(head_dim_of(config))
    if config["model_type"] == "mistral":
        writer.add_sliding_window(config["sliding_window"])


def head_dim_of(config: dict[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def write_gguf(path: Path, name: str, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    """The checkpoint as one GGUF file: matrices in their own dtype, norms and biases in float32."""
    is_llama = config["model_type"] in ("llama", "mistral")
    arch = gguf.MODEL_ARCH.LLAMA if is_llama else gguf.MODEL_ARCH[config["model_type"].upper()]
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    heads = {"q_proj.weight": config["num_attention_heads"], "k_proj.weight": config["num_key_value_heads"]}
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    add_parameters(writer, name, config, is_llama)
    add_tokenizer(writer, small_tokenizer(config["vocab_size"]))
    for hf_name, weight in weights.items():
        data = weight.float().numpy()
        count = heads.get(".".join(hf_name.split(".")[-2:]))
        if is_llama and count is not None:
            data = permute(data, count)
        gguf_name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        if data.ndim == 1 or weight.dtype == torch.float32:
            writer.add_tensor(gguf_name, np.ascontiguousarray(data))
        else:
            kind = gguf.GGMLQuantizationType.F16 if weight.dtype == torch.float16 else gguf.GGMLQuantizationType.BF16
            writer.add_tensor(gguf_name, gguf.quants.quantize(np.ascontiguousarray(data), kind), raw_dtype=kind)
    if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(config, head_dim_of(config)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_gguf(path: Path, weights: dict[str, torch.Tensor]) -> None:
    """transformers must read the same weights out of the GGUF, bit for bit."""
    # Its own reading of GGUF metadata does not know Qwen3's head_dim, so there it gets the config of the folder.
    more = {"config": AutoConfig.from_pretrained(path.parent)} if path.parent.name == "qwen3" else {}
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, **more)
    read = model.state_dict()
    for name, weight in weights.items():
        assert torch.equal(read[name], weight.float()), f"{path}: {name} differs"


def check_rope_factors(config: dict[str, Any], folder: Path) -> None:
    """The plain frequencies divided by rope_freqs.weight must be those that transformers computes by its own rule."""
    width = head_dim_of(config)
    plain = config["rope_theta"] ** (-np.arange(0, width, 2) / width)
    np.testing.assert_allclose(plain / rope_factors(config, width), load(folder).model.rotary_emb.inv_freq, rtol=1e-6)


# ------------------------------------------------------------------------------------------------ expectations


def search(folder: Path, name: str) -> tuple[int, np.ndarray, list[int], list[float], dict[str, torch.Tensor]]:
    """The first seed whose greedy tokens all lead by MARGIN and do not just repeat."""
    config = full_config(name)
    for seed in range(1, 400):
        weights = random_weights(config, seed)
        save_folder(folder, config, weights, shards=2 if name == "llama2" else 1)
        prompt = np.random.default_rng(seed).integers(0, config["vocab_size"], PROMPT)
        tokens, margins = greedy(load(folder), prompt.tolist(), GREEDY)
        if min(margins) > MARGIN and len(set(tokens)) >= GREEDY // 3:
            return seed, prompt, tokens, margins, weights
    raise SystemExit(f"{name}: no seed with margins over {MARGIN}")


def sensitivity(folder: Path, name: str, prompt: list[int], logits: np.ndarray) -> dict[str, float]:
    """How far the logits move (largest difference) for each mistake that this family is there to catch."""
    theta = {"rope_type": "default", "rope_theta": 10000.0}
    mistakes = {"epsilon 1e-6": {"rms_norm_eps": 1e-6}, "theta 10000": {"rope_parameters": theta}, **MISTAKES[name]}
    moved = {}
    for mistake, overrides in mistakes.items():
        moved[mistake] = round(float(np.abs(logits_of(load(folder, **overrides), prompt) - logits).max()), 4)
        assert moved[mistake] > 0.01, (name, mistake, moved)
    return moved


def make(name: str) -> None:
    folder = GOLDEN / "families" / name
    seed, prompt, tokens, margins, weights = search(folder, name)
    logits = logits_of(load(folder), prompt.tolist())
    write_json(folder / "tokenizer.json", small_tokenizer(len(logits[0])))
    write_gguf(folder / "model.gguf", name, full_config(name), weights)
    check_gguf(folder / "model.gguf", weights)
    if name == "llama3":
        check_rope_factors(full_config(name), folder)
    np.savez_compressed(folder / "expected.npz", prompt_ids=prompt, logits=logits, greedy=np.array(tokens))
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)
    record = {
        "made_by": "tests/make/goldens_families.py",
        "versions": versions("torch", "transformers", "gguf", "numpy", "safetensors"),
        "seed": seed,
        "prompt_ids": prompt.tolist(),
        "greedy": tokens,
        "margins": rounded(margins, 4),
        "sensitivity": sensitivity(folder, name, prompt.tolist(), logits),
    }
    write_json(folder / "expected.json", record)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: seed {seed}, {size / 1024:.0f} KiB, margin {min(margins):.4f}, {record['sensitivity']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(CONFIGS))
    torch.set_num_threads(1)
    for name in parser.parse_args().names:
        make(name)


if __name__ == "__main__":
    main()
