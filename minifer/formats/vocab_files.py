"""Files that hold a vocabulary: what stands in them, checked, as plain data.

    tokenizer.json   Hugging Face's. In a folder also tokenizer_config.json (BOS, EOS, chat template),
                     generation_config.json (more EOS) and chat_template.jinja
    model.gguf       llama.cpp's: tokens, merges, and only the *name* of the way text is cut
    x.tiktoken       OpenAI's: a line for each token, `base64 rank`, and nothing else. How text is cut and what the
                     special tokens are is part of tiktoken's program; it is known here for tiktoken's own files, and
                     asked for otherwise

The normal form is that of tokenizer.json: the other two are written in its words (`tokenizer_json`). SentencePiece's
`tokenizer.model` is refused by name: the same model's tokenizer.json says the same.

**A table is whole or refused.** Two tokens with one id, a merge of tokens that do not exist, an entry that can be read
in two ways, no merges at all: each has been seen in the field, each gives ids that are valid and wrong, and the model
still talks. So each is an error that says which line it was.

Not here: what a vocabulary does with text, and which pre-tokenizers, normalizers and decoders there are
(`minifer.tokenizer.vocab`).
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from minifer.errors import FormatError, ModelNotFoundError, TokenizerError, UnsupportedError
from minifer.formats.gguf import read_gguf

MAX_ID = 1 << 24  # no vocabulary is near it; a larger id is a damaged file
CONTROL, USER_DEFINED = 3, 4  # llama.cpp, include/llama.h: llama_token_type

# tiktoken, tiktoken_ext/openai_public.py: pattern and special tokens by file name.
RANK_FILES: dict[str, tuple[str, dict[str, int]]] = {
    "r50k_base": ("gpt2", {"<|endoftext|>": 50256}),
    "p50k_base": ("gpt2", {"<|endoftext|>": 50256}),
    "cl100k_base": (
        "cl100k",
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": ("o200k", {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
}


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in the text as it stands, whatever the merges would make of it.

    `special`: a control token; user text never becomes one. `lstrip`, `rstrip`: it swallows the blanks on that side.
    `normalized`: it is looked for after normalising, not before.
    """

    id: int
    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class VocabFile:
    """The checked content of a vocabulary's files.

    `spec` is the tokenizer.json (None for rank files, which fill `ranks` instead). `cut_by` is the name, or the regex,
    of the way text is cut where the file cannot say it itself: llama.cpp's name for a GGUF file.
    """

    spec: Mapping[str, Any] | None = None
    vocab: Mapping[str, int] = field(default_factory=dict, repr=False)
    merges: Sequence[tuple[str, str]] = field(default=(), repr=False)
    ranks: Mapping[bytes, int] = field(default_factory=dict, repr=False)
    added: tuple[AddedToken, ...] = ()
    cut_by: str | None = None
    prefix: tuple[int, ...] = ()  # the ids that stand before a text, usually BOS
    suffix: tuple[int, ...] = ()
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    chat_template: str | None = None

    def with_control(self, **changes: Any) -> "VocabFile":
        """A copy with BOS, EOS, prefix, suffix or chat template set; ids that no token has are refused."""
        known = {*self.vocab.values(), *self.ranks.values(), *(token.id for token in self.added)}
        named = [changes.get("bos_id"), *changes.get("eos_ids", ()), *changes.get("prefix", ())]
        for index in named:
            if index is not None and index not in known:
                raise TokenizerError(f"the file names {index!r} as BOS or EOS, but no token has that id")
        return replace(self, **changes)


def read_vocab(path: Path, pattern: str | None = None) -> VocabFile:
    """Read the vocabulary at `path`: a folder, a tokenizer.json, a GGUF file or a rank file (with its `pattern`)."""
    if path.is_dir():
        return _read_folder(path)
    if path.suffix == ".gguf":
        return from_gguf(read_gguf(path).metadata)
    if path.suffix == ".json":
        return from_json(_read_json(path))
    if path.suffix == ".tiktoken":
        return from_ranks(path, pattern)
    if path.suffix == ".model":
        raise UnsupportedError(f"{path.name} is a SentencePiece model; minifer reads the model's tokenizer.json")
    raise UnsupportedError(f"{path.name}: a vocabulary is a folder, a tokenizer.json, a .gguf or a .tiktoken file")


# ------------------------------------------------------------------------------------------------- tokenizer.json


def from_json(spec: Mapping[str, Any]) -> VocabFile:
    """Check the content of a tokenizer.json."""
    try:
        vocab = _checked_vocab(_checked_model(spec["model"])["vocab"])
        merges = _checked_merges(spec["model"]["merges"], vocab)
        added = _checked_added(spec.get("added_tokens") or [], vocab)
        prefix, suffix = _around(spec.get("post_processor"))
        file = VocabFile(spec, vocab, merges, added=added)
        return file.with_control(prefix=prefix, suffix=suffix)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise TokenizerError(f"this is not a whole tokenizer.json: {type(error).__name__}: {error}") from None


def _checked_model(model: Mapping[str, Any]) -> Mapping[str, Any]:
    if model.get("type", "BPE") != "BPE":
        raise UnsupportedError(f"this vocabulary's model is {model['type']!r}; minifer reads BPE only")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise UnsupportedError(f"this vocabulary asks for {option}={model[option]!r}, which minifer does not have")
    unknown = model.get("unk_token")
    if unknown is not None and unknown not in model["vocab"]:
        raise TokenizerError(f"the unk_token {unknown!r} is not in the vocabulary")
    return model


def _checked_vocab(vocab: Mapping[str, int]) -> dict[str, int]:
    owner: dict[int, str] = {}
    for token, index in vocab.items():
        if type(index) is not int or not 0 <= index < MAX_ID:
            raise TokenizerError(f"token {token!r} has the id {index!r}; an id is a whole number below {MAX_ID}")
        if owner.setdefault(index, token) != token:
            raise TokenizerError(f"id {index} belongs to two tokens, {owner[index]!r} and {token!r}")
    return dict(vocab)


def _checked_merges(merges: Sequence[Any], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Both spellings, `"a b"` and `["a", "b"]`, as pairs."""
    pairs = []
    for line, entry in enumerate(merges):
        parts = entry.split(" ") if isinstance(entry, str) else entry
        if len(parts) != 2:
            why = "is ambiguous: a token holds a blank; write it as a pair" if len(parts) > 2 else "is not a pair"
            raise TokenizerError(f"merge {line} {why}: {entry!r}")
        for token in (*parts, "".join(parts)):
            if token not in vocab:
                raise TokenizerError(f"merge {line} is {entry!r}, but {token!r} is not in the vocabulary")
        pairs.append((parts[0], parts[1]))
    if not pairs and any(len(token) > 1 for token in vocab):
        raise TokenizerError("the merge table is empty, yet the vocabulary has tokens that only merging could reach")
    return pairs


def _checked_added(entries: Sequence[Mapping[str, Any]], vocab: Mapping[str, int]) -> tuple[AddedToken, ...]:
    names = {index: token for token, index in vocab.items()}
    added = []
    for entry in entries:
        if entry.get("single_word"):
            raise UnsupportedError(
                f"added token {entry['content']!r} asks for single_word, which minifer does not have"
            )
        flags = {name: bool(entry.get(name)) for name in ("special", "lstrip", "rstrip", "normalized")}
        token = AddedToken(entry["id"], entry["content"], **flags)
        if type(token.id) is not int or not 0 <= token.id < MAX_ID or not token.content:
            raise TokenizerError(f"an added token is damaged: {dict(entry)!r}")
        if vocab.get(token.content, token.id) != token.id or names.setdefault(token.id, token.content) != token.content:
            raise TokenizerError(f"added token {token.content!r} with id {token.id} contradicts the vocabulary")
        added.append(token)
    return tuple(added)


def _around(spec: Mapping[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that a post-processor puts before and after one text."""
    if spec is None or spec["type"] == "ByteLevel":  # ByteLevel only moves offsets
        return (), ()
    if spec["type"] == "Sequence":
        around = [_around(part) for part in spec["processors"]]
        outer_first = tuple(index for part, _ in reversed(around) for index in part)
        return outer_first, tuple(index for _, part in around for index in part)
    if spec["type"] != "TemplateProcessing":
        raise UnsupportedError(f"this vocabulary's post-processor is {spec['type']!r}, which minifer does not have")
    before: list[int] = []
    after: list[int] = []
    side = before
    for part in spec["single"]:
        if "SpecialToken" in part:
            side += spec["special_tokens"][part["SpecialToken"]["id"]]["ids"]
        else:
            side = after  # the text stands here
    return tuple(before), tuple(after)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path} should hold a JSON object, but holds a {type(value).__name__}")
    return value


def _read_folder(folder: Path) -> VocabFile:
    if not (folder / "tokenizer.json").exists():
        other = sorted(path.name for path in folder.glob("*.model"))
        if other:
            raise UnsupportedError(f"{folder} has only {other[0]} (SentencePiece); minifer needs a tokenizer.json")
        raise ModelNotFoundError(f"{folder} has no tokenizer.json")
    file = from_json(_read_json(folder / "tokenizer.json"))
    config = _read_json_if_there(folder / "tokenizer_config.json")
    more = _read_json_if_there(folder / "generation_config.json").get("eos_token_id", [])
    ids = {token.content: token.id for token in file.added} | dict(file.vocab)
    eos = [ids.get(_token_text(config.get("eos_token"))), *(more if isinstance(more, list) else [more])]
    return file.with_control(
        bos_id=ids.get(_token_text(config.get("bos_token"))),
        eos_ids=_without_none(eos),
        chat_template=_chat_template(folder, config),
    )


def _read_json_if_there(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.exists() else {}


def _token_text(entry: str | Mapping[str, Any] | None) -> str:
    return str(entry.get("content", "")) if isinstance(entry, Mapping) else entry or ""


def _without_none(ids: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(index for index in ids if index is not None))


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name; the others are for tools and retrieval
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


# ------------------------------------------------------------------------------------------------- GGUF


def from_gguf(metadata: Mapping[str, Any]) -> VocabFile:
    """The vocabulary in a GGUF file's metadata."""

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{key}", default)

    if get("model") != "gpt2":
        raise UnsupportedError(
            f"this GGUF file's tokenizer.ggml.model is {get('model')!r}; minifer reads 'gpt2' (byte-level BPE). "
            "For a SentencePiece vocabulary use the model's tokenizer.json"
        )
    tokens, types = get("tokens"), get("token_type")
    if not isinstance(tokens, list) or not isinstance(get("merges"), list):
        raise TokenizerError("this GGUF file lacks tokenizer.ggml.tokens or tokenizer.ggml.merges")
    if types is None or len(types) != len(tokens):
        raise TokenizerError(f"{len(tokens)} tokens, but {0 if types is None else len(types)} token types")
    added = [
        AddedToken(i, tokens[i], type_ == CONTROL) for i, type_ in enumerate(types) if type_ in (CONTROL, USER_DEFINED)
    ]
    # llama.cpp, src/llama-vocab.cpp: these names bring ignore_merges and, unless the file says otherwise, a BOS.
    llama3 = get("pre") in ("llama3", "llama-v3", "llama-bpe")
    bos, eos = get("bos_token_id"), get("eos_token_id")
    file = from_json(tokenizer_json(numbered(tokens), get("merges"), None, added, ignore_merges=llama3))
    return replace(file, cut_by=str(get("pre"))).with_control(
        bos_id=bos,
        eos_ids=_without_none([eos, get("eot_token_id")]),
        prefix=(bos,) if get("add_bos_token", llama3) and bos is not None else (),
        suffix=(eos,) if get("add_eos_token", False) and eos is not None else (),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def numbered(tokens: Sequence[str]) -> dict[str, int]:
    """Tokens to ids by their place; a token that stands at two places is refused."""
    vocab: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if vocab.setdefault(token, index) != index:
            raise TokenizerError(f"the token {token!r} has two ids, {vocab[token]} and {index}")
    return vocab


# ------------------------------------------------------------------------------------------------- rank files


def from_ranks(path: Path, pattern: str | None = None) -> VocabFile:
    """A rank file; `pattern` says how text is cut, unless the file is one of tiktoken's own by name."""
    specials: dict[str, int] = {}
    if pattern is None:
        if path.stem not in RANK_FILES:
            raise TokenizerError(f"{path.name} does not say how to cut text; give pattern=, a name or a regex")
        pattern, specials = RANK_FILES[path.stem]
    ranks: dict[bytes, int] = {}
    seen: set[int] = set()
    for line, token, rank in _rank_lines(path):
        if token in ranks or rank in seen:
            raise TokenizerError(f"{path.name}, line {line}: the token {token!r} or its rank {rank} was there before")
        ranks[token] = rank
        seen.add(rank)
    for byte in range(256):
        if bytes([byte]) not in ranks:
            raise TokenizerError(f"{path.name} has no token for the byte 0x{byte:02x}")
    added = tuple(AddedToken(index, content) for content, index in specials.items() if index not in seen)
    eos = tuple(token.id for token in added if token.content == "<|endoftext|>")
    return VocabFile(ranks=ranks, added=added, cut_by=pattern, eos_ids=eos)


def _rank_lines(path: Path) -> Iterator[tuple[int, bytes, int]]:
    for line, text in enumerate(path.read_bytes().splitlines(), 1):
        try:
            if text:
                token, rank = text.split()
                yield line, base64.b64decode(token, validate=True), int(rank)
        except (ValueError, binascii.Error):
            raise TokenizerError(f"{path.name}, line {line} should be 'base64 rank', but is {text[:60]!r}") from None


# ------------------------------------------------------------------------------------------------- writing


def tokenizer_json(
    vocab: Mapping[str, int],
    merges: Sequence[Any],
    pre_tokenizer: Mapping[str, Any] | None,
    added: Sequence[AddedToken] = (),
    *,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    """The tokenizer.json of a byte-level vocabulary."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [asdict(token) | {"single_word": False} for token in added],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
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


def write_json(path: Path, file: VocabFile) -> None:
    """Write a tokenizer.json; any name that does not end in .json is a folder, and gets a tokenizer_config.json too."""
    text = json.dumps(file.spec, ensure_ascii=False, indent=1) + "\n"
    if path.suffix == ".json":
        path.write_text(text, encoding="utf-8")
        return
    names = {token.id: token.content for token in file.added}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None if file.bos_id is None else names.get(file.bos_id),
        "eos_token": names.get(file.eos_ids[0]) if file.eos_ids else None,
        "clean_up_tokenization_spaces": False,
        "chat_template": file.chat_template,
    }
    path.mkdir(parents=True, exist_ok=True)
    (path / "tokenizer.json").write_text(text, encoding="utf-8")
    (path / "tokenizer_config.json").write_text(
        json.dumps(config, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )


def write_ranks(path: Path, ranks: Mapping[bytes, int]) -> None:
    """Write a rank file for tiktoken."""
    in_order = sorted(ranks.items(), key=lambda item: item[1])
    path.write_bytes(b"".join([base64.b64encode(token) + b" %d\n" % rank for token, rank in in_order]))
