"""Where vocabularies come from, and where they go: files.

    tokenizer.json   Hugging Face's; read as it is. In a folder also tokenizer_config.json (BOS, EOS, chat template),
                     generation_config.json (more EOS) and chat_template.jinja
    model.gguf       llama.cpp's: tokens, merges and the *name* of a pre-tokenizer; written as a tokenizer.json first
    x.tiktoken       OpenAI's: a line for each token, `base64 rank`, and nothing else. How to cut text and the special
    tokens
                     are part of tiktoken's program, so they are known here for its own files and asked for otherwise

SentencePiece's `tokenizer.model` is refused by name: the same model's tokenizer.json says the same.

Saving goes both ways. A tokenizer.json is written from any vocabulary; for ranks the merges are worked out, one for
each token: the two parts into which merging by lower ranks cuts it. A rank file is written from merges only where both
rules must agree (each token has one pair, in the order of ids, and encodes to itself), which holds for every table
trained here.

Not here: what the entries mean (`vocab`).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minifer.errors import FormatError, ModelNotFoundError, TokenizerError, UnsupportedError
from minifer.formats.gguf import read_gguf
from minifer.hub import locate
from minifer.tokenizer import bpe, pretokenize
from minifer.tokenizer.pretokenize import CL100K, GPT2, LLAMA3, O200K, QWEN2, SMOLLM
from minifer.tokenizer.vocab import (
    BYTE_LETTERS,
    LETTER_BYTES,
    AddedToken,
    RankModel,
    Vocabulary,
    from_json,
    with_specials,
)

# llama.cpp, src/llama-vocab.cpp: `tokenizer.ggml.pre` by name. A name that is missing here is refused.
GGUF_PATTERNS = {
    "gpt-2": GPT2,
    "smollm": SMOLLM,
    "llama-bpe": LLAMA3,
    "llama-v3": LLAMA3,
    "llama3": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "gpt-4o": O200K,
}
CONTROL, USER_DEFINED = 3, 4  # llama.cpp, include/llama.h: llama_token_type

# tiktoken, tiktoken_ext/openai_public.py: pattern and special tokens by file name.
RANK_FILES: dict[str, tuple[str, dict[str, int]]] = {
    "r50k_base": (GPT2, {"<|endoftext|>": 50256}),
    "p50k_base": (GPT2, {"<|endoftext|>": 50256}),
    "cl100k_base": (
        CL100K,
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": (O200K, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
}


def load(name_or_path: str | Path, *, pattern: str | None = None, missing: str = "error") -> Vocabulary:
    """Read the vocabulary at a path, or that of a model known by name."""
    path = Path(name_or_path)
    if not path.exists():
        files = locate(str(name_or_path))
        if files.kind == "random":
            raise TokenizerError(f"{files.name} has random weights and no vocabulary; name a real model")
        path = files.path
    if path.is_dir():
        return _load_folder(path, missing)
    if path.suffix == ".gguf":
        return from_gguf(read_gguf(path).metadata, missing)
    if path.suffix == ".json":
        return from_json(_read_json(path), missing)
    if path.suffix == ".model":
        raise UnsupportedError(f"{path.name} is a SentencePiece model; minifer reads the model's tokenizer.json")
    if path.suffix == ".tiktoken":
        return from_ranks(path, pattern)
    raise UnsupportedError(f"{path.name}: a vocabulary is a folder, a tokenizer.json, a .gguf or a .tiktoken file")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path} should hold a JSON object, but holds a {type(value).__name__}")
    return value


# ------------------------------------------------------------------------------------------------- Hugging Face folders


def _load_folder(folder: Path, missing: str) -> Vocabulary:
    if not (folder / "tokenizer.json").exists():
        other = sorted(path.name for path in folder.glob("*.model"))
        if other:
            raise UnsupportedError(f"{folder} has only {other[0]} (SentencePiece); minifer needs a tokenizer.json")
        raise ModelNotFoundError(f"{folder} has no tokenizer.json")
    vocabulary = from_json(_read_json(folder / "tokenizer.json"), missing)
    config = _read_json_if_there(folder / "tokenizer_config.json")
    generation = _read_json_if_there(folder / "generation_config.json")
    ids = {token.content: token.id for token in vocabulary.added}
    eos = [ids.get(_token_text(config.get("eos_token")))]
    more = generation.get("eos_token_id", [])
    eos += more if isinstance(more, list) else [more]
    return with_specials(
        vocabulary,
        bos_id=ids.get(_token_text(config.get("bos_token"))),
        eos_ids=tuple(dict.fromkeys(index for index in eos if index is not None)),
        chat_template=_chat_template(folder, config),
    )


def _read_json_if_there(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.exists() else {}


def _token_text(entry: str | Mapping[str, Any] | None) -> str:
    return str(entry.get("content", "")) if isinstance(entry, Mapping) else entry or ""


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name; the others are for tools and retrieval
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


# ------------------------------------------------------------------------------------------------- GGUF


def from_gguf(metadata: Mapping[str, Any], missing: str = "error") -> Vocabulary:
    """The vocabulary in a GGUF file's metadata."""

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{key}", default)

    kind, pre = get("model"), get("pre")
    if kind != "gpt2":
        raise UnsupportedError(
            f"this GGUF file's tokenizer.ggml.model is {kind!r}; minifer reads 'gpt2' (byte-level BPE). "
            "For a SentencePiece vocabulary use the model's tokenizer.json"
        )
    if pre not in GGUF_PATTERNS:
        raise UnsupportedError(f"this GGUF file's tokenizer.ggml.pre is {pre!r}; known: {', '.join(GGUF_PATTERNS)}")
    tokens, types = get("tokens"), get("token_type")
    if not isinstance(tokens, list) or not isinstance(get("merges"), list):
        raise TokenizerError("this GGUF file lacks tokenizer.ggml.tokens or tokenizer.ggml.merges")
    if types is None or len(types) != len(tokens):
        raise TokenizerError(f"{len(tokens)} tokens, but {0 if types is None else len(types)} token types")
    added = [
        AddedToken(index, tokens[index], special=type_ == CONTROL)
        for index, type_ in enumerate(types)
        if type_ in (CONTROL, USER_DEFINED)
    ]
    llama3 = GGUF_PATTERNS[pre] == LLAMA3  # llama.cpp ties these two habits to the pre-tokenizer's name
    spec = json_of(_by_token(tokens), get("merges"), GGUF_PATTERNS[pre], added, ignore_merges=llama3)
    bos, eos = get("bos_token_id"), get("eos_token_id")
    return with_specials(
        from_json(spec, missing),
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys(index for index in (eos, get("eot_token_id")) if index is not None)),
        prefix=(bos,) if get("add_bos_token", llama3) and bos is not None else (),
        suffix=(eos,) if get("add_eos_token", False) and eos is not None else (),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _by_token(tokens: Sequence[str]) -> dict[str, int]:
    vocab: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if vocab.setdefault(token, index) != index:
            raise TokenizerError(f"the token {token!r} has two ids, {vocab[token]} and {index}")
    return vocab


# ------------------------------------------------------------------------------------------------- rank files


def from_ranks(path: Path, pattern: str | None = None) -> Vocabulary:
    """A tiktoken rank file; `pattern` says how to cut text, unless the file is one of tiktoken's own by name."""
    specials: dict[str, int] = {}
    if pattern is None:
        if path.stem not in RANK_FILES:
            known = ", ".join(pretokenize.PATTERNS)
            raise TokenizerError(f"{path.name} does not say how to cut text; give pattern=, a regex or one of: {known}")
        pattern, specials = RANK_FILES[path.stem]
    pattern = pretokenize.PATTERNS.get(pattern, pattern)
    ranks: dict[bytes, int] = {}
    tokens: dict[int, bytes] = {}
    for line, token, rank in _rank_lines(path):
        if token in ranks or rank in tokens:
            raise TokenizerError(f"{path.name}, line {line}: {token!r} or its rank {rank} was there before")
        ranks[token], tokens[rank] = rank, token
    for byte in range(256):
        if bytes([byte]) not in ranks:
            raise TokenizerError(f"{path.name} has no token for the byte 0x{byte:02x}")
    added = tuple(AddedToken(index, content) for content, index in specials.items() if index not in tokens)
    eos = tuple(token.id for token in added if token.content == "<|endoftext|>")
    token_bytes = tokens | {token.id: token.content.encode() for token in added}
    model = RankModel(ranks, tokens)
    spec = {"pattern": pattern, "ranks": ranks}
    return Vocabulary(model.encode, token_bytes, pretokenize.splitter(pattern), added, eos_ids=eos, spec=spec)


def _rank_lines(path: Path) -> Iterator[tuple[int, bytes, int]]:
    for line, text in enumerate(path.read_bytes().splitlines(), 1):
        if not text:
            continue
        try:
            token, rank = text.split()
            yield line, base64.b64decode(token, validate=True), int(rank)
        except (ValueError, binascii.Error):
            raise TokenizerError(f"{path.name}, line {line} should be 'base64 rank', but is {text[:60]!r}") from None


# ------------------------------------------------------------------------------------------------- making and saving


def json_of(
    vocab: Mapping[str, int],
    merges: Sequence[Any],
    pattern: str,
    added: Sequence[AddedToken] = (),
    *,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    """The tokenizer.json of a byte-level vocabulary, whose tokens are spelled in `BYTE_LETTERS`."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [vars(token) | {"single_word": False} for token in added],
        "normalizer": None,
        "pre_tokenizer": pretokenize.json_of(pattern),
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": dict(vocab),
            "merges": list(merges),
        },
    }


def spell(token: bytes) -> str:
    """Bytes in the alphabet of tokenizer.json.

    >>> spell(b" hi")
    'Ġhi'
    """
    return "".join([BYTE_LETTERS[byte] for byte in token])


def json_of_merges(merges: Mapping[bpe.Pair, int], pattern: str, special_tokens: Sequence[str]) -> dict[str, Any]:
    """The tokenizer.json of a table trained by `bpe.train`."""
    tokens = bpe.vocabulary(merges)
    spelled = [spell(token) for token in tokens]
    added = [AddedToken(len(tokens) + i, content) for i, content in enumerate(special_tokens)]
    pairs = [[spelled[left], spelled[right]] for left, right in merges]
    return json_of(_by_token(spelled), pairs, pretokenize.PATTERNS.get(pattern, pattern), added)


def json_of_ranks(vocabulary: Vocabulary) -> dict[str, Any]:
    """The tokenizer.json of a rank file: for each token the one pair that ranks below its own make of it."""
    ranks, pairs = vocabulary.spec["ranks"], []
    tokens = {rank: token for token, rank in ranks.items()}
    for rank, token in sorted(tokens.items()):

        def lower(pair: tuple[bytes, bytes], limit: int = rank) -> int | None:
            return found if (found := ranks.get(pair[0] + pair[1], limit)) < limit else None

        parts = bpe.merge([token[i : i + 1] for i in range(len(token))], lower, tokens)
        if len(parts) == 2:  # one part is a single byte; more than two: only the whole piece is ever this token
            pairs.append([spell(part) for part in parts])
    vocab = {spell(token): rank for token, rank in ranks.items()}
    return json_of(vocab, pairs, vocabulary.spec["pattern"], vocabulary.added, ignore_merges=True)


def save(vocabulary: Vocabulary, path: Path) -> None:
    """Write a vocabulary; the name decides on the form (see `Tokenizer.save`)."""
    if path.suffix == ".tiktoken":
        lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks_of(vocabulary)]
        path.write_bytes(b"".join(lines))
        return
    spec = json_of_ranks(vocabulary) if "ranks" in vocabulary.spec else vocabulary.spec
    text = json.dumps(spec, ensure_ascii=False, indent=1) + "\n"
    if path.suffix == ".json":
        path.write_text(text, encoding="utf-8")
        return
    path.mkdir(parents=True, exist_ok=True)
    (path / "tokenizer.json").write_text(text, encoding="utf-8")
    config = json.dumps(_config(vocabulary), ensure_ascii=False, indent=1) + "\n"
    (path / "tokenizer_config.json").write_text(config, encoding="utf-8")


def _config(vocabulary: Vocabulary) -> dict[str, Any]:
    names = {token.id: token.content for token in vocabulary.added}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names.get(-1 if vocabulary.bos_id is None else vocabulary.bos_id),
        "eos_token": names.get(vocabulary.eos_ids[0]) if vocabulary.eos_ids else None,
        "clean_up_tokenization_spaces": False,
        "chat_template": vocabulary.chat_template,
    }


def ranks_of(vocabulary: Vocabulary) -> list[tuple[bytes, int]]:
    """Tokens with their ranks, in order; refused where tiktoken would cut text differently."""
    if "ranks" in vocabulary.spec:
        return sorted(vocabulary.spec["ranks"].items(), key=lambda item: item[1])
    added = {token.id for token in vocabulary.added}
    ranks = sorted((token, index) for index, token in vocabulary.token_bytes.items() if index not in added)
    ranks.sort(key=lambda item: item[1])
    model = vocabulary.spec["model"]
    made = [model["vocab"]["".join(merge.split(" ") if isinstance(merge, str) else merge)] for merge in model["merges"]]
    whole = len(ranks) == 256 + len(made) and vocabulary.normalize is None
    letters = {index: token for token, index in model["vocab"].items()}
    if not whole or made != sorted(set(made)) or any(set(letters[index]) - set(LETTER_BYTES) for _, index in ranks):
        raise TokenizerError("this vocabulary is not bytes and merges in the order of ids; ranks cannot say the same")
    return ranks
