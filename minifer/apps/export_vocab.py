"""A vocabulary on its way between tokenizer.json and the metadata of a GGUF file.

Where source and target are of the same kind the entries are copied as they are. A GGUF vocabulary becomes a
tokenizer.json through `minifer.tokenizer`. The other way, tokenizer.json to GGUF, is here: a byte-level BPE is a list
of tokens with a type each, a list of merges, and the name of the pattern that cuts text before merging. That name is
where mistakes hide (a wrong one gives valid but other ids), so a way of cutting that llama.cpp has no name for is
refused.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from minifer.errors import UnsupportedError
from minifer.formats.gguf import read_gguf
from minifer.formats.safetensors import read_json
from minifer.model.config import ModelConfig
from minifer.tokenizer import pretokenize

HF_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")

# Our name of a pattern -> llama.cpp's name of the same way of cutting (llama-vocab.cpp).
GGUF_PRE = {"gpt2": "gpt-2", "smollm": "smollm", "llama3": "llama-bpe", "qwen2": "qwen2", "o200k": "gpt-4o"}
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama.cpp's token types


def gguf_vocabulary(source: Path | None, config: ModelConfig) -> dict[str, Any]:
    """The `tokenizer.*` metadata for a GGUF file, from a GGUF file or a Hugging Face folder.

    A model without a vocabulary (a random one) gets llama.cpp's kind "none". Raises UnsupportedError for a
    tokenizer.json that GGUF cannot express.
    """
    if source is None:
        return {"tokenizer.ggml.model": "none"}
    if not source.is_dir():
        return {key: value for key, value in read_gguf(source).metadata.items() if key.startswith("tokenizer.")}
    tokenizer = read_json(source / "tokenizer.json")
    return _tokens(tokenizer, config.vocab_size) | _special(source, config)


def _tokens(tokenizer: dict[str, Any], size: int) -> dict[str, Any]:
    """Tokens by id with their types, merges, and the name of the way of cutting."""
    model = tokenizer.get("model") or {}
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise UnsupportedError(
            f"a vocabulary of the kind {model.get('type')!r} cannot be written as GGUF, only byte BPE"
        )
    tokens, types = [f"[PAD{i}]" for i in range(size)], [UNUSED] * size
    for token, index in model["vocab"].items():
        tokens[index], types[index] = token, NORMAL
    for added in tokenizer.get("added_tokens") or []:
        index = added["id"]
        tokens[index], types[index] = added["content"], CONTROL if added["special"] else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _pre(tokenizer.get("pre_tokenizer")),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
    }


def _pre(spec: dict[str, Any] | None) -> str:
    """llama.cpp's name for the steps of a `pre_tokenizer` entry.

    >>> _pre(pretokenize.json_of(pretokenize.LLAMA3))
    'llama-bpe'
    """
    for name, pattern in pretokenize.PATTERNS.items():
        if name in GGUF_PRE and _core(spec) == _core(pretokenize.json_of(pattern)):
            return GGUF_PRE[name]
    raise UnsupportedError(
        "llama.cpp has no name for the way this vocabulary cuts text, so it cannot be written as GGUF"
    )


def _core(spec: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps without what only concerns the offsets of tokens in the text."""
    return [{key: value for key, value in step.items() if key != "trim_offsets"} for step in pretokenize.flatten(spec)]


def _special(folder: Path, config: ModelConfig) -> dict[str, Any]:
    """The ids that begin and end a text, whether BOS is added, and the chat template."""
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    out: dict[str, Any] = {"tokenizer.ggml.add_bos_token": bool(settings.get("add_bos_token", False))}
    if config.bos_token_id is not None:
        out["tokenizer.ggml.bos_token_id"] = config.bos_token_id
    for key, index in zip(("eos", "eot"), config.eos_token_ids, strict=False):
        out[f"tokenizer.ggml.{key}_token_id"] = index
    template = settings.get("chat_template")
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text("utf-8")
    if isinstance(template, str):
        out["tokenizer.chat_template"] = template
    return out


def write_hf_files(source: Path, folder: Path) -> None:
    """Put the tokenizer's files into `folder`: copied from a Hugging Face folder, or made from a GGUF file."""
    if source.is_dir():
        for name in HF_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        return
    from minifer.tokenizer import Tokenizer

    Tokenizer.from_pretrained(source).save(folder / "tokenizer.json")
    settings = json.dumps(hf_settings(read_gguf(source).metadata), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(settings + "\n", encoding="utf-8")


def hf_settings(metadata: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json from GGUF metadata: special tokens by name, the chat template.

    >>> meta = {"tokenizer.ggml.tokens": ["<s>", "</s>"], "tokenizer.ggml.eos_token_id": 1}
    >>> hf_settings(meta)["eos_token"]
    '</s>'
    """
    tokens = metadata["tokenizer.ggml.tokens"]
    out: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        "clean_up_tokenization_spaces": False,
    }
    for ours, theirs in {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}.items():
        index = metadata.get(f"tokenizer.ggml.{ours}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            out[f"{theirs}_token"] = tokens[index]
    if template := metadata.get("tokenizer.chat_template"):
        out["chat_template"] = template
    return out
