"""What a vocabulary is, and how to read one from a `tokenizer.json`.

Hugging Face's `tokenizer.json` says how text becomes ids as a row of five stations, and minifer takes it as the normal
form: GGUF metadata, and a vocabulary trained here, are first written in its words (`sources`), then read by this file.

    added tokens    `<|im_end|>`: found in the raw text, before anything else   (`AddedToken`)
    normalizer      NFC, or `Prepend "▁"` and `Replace " " -> "▁"`               -> `Vocabulary.normalize`
    pre_tokenizer   text -> pieces                                              (`pretokenize.from_json`)
    model           one piece -> ids: the vocabulary and its merges              (`MergeModel`)
    decoder         ids -> bytes: each token's bytes are worked out once          -> `Vocabulary.token_bytes`

**Two alphabets.** JSON holds text, but tokens are bytes, and not every string of bytes is text. GPT-2's way out: 256
printable letters, one for each byte (`BYTE_LETTERS`; a blank is written `Ġ`). SentencePiece's way (Llama 2, Mistral):
tokens are characters, a blank is `▁`, and a character that the vocabulary lacks falls back to tokens named `<0xE2>`.

**Nothing is guessed.** Every field is either understood or refused by name: a vocabulary read half right gives ids that
are valid and wrong, and nobody is told. A merge table must be whole: each entry names two tokens, and what they make,
that all exist (a loader that knew only one of the two spellings once skipped every merge, and the model still talked).

Not here: files (`sources`), the loop over text (`tokenizer`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import regex

from minifer.errors import TokenizerError, UnsupportedError
from minifer.tokenizer import pretokenize
from minifer.tokenizer.bpe import Pair, encode_by_ranks, merge

MAX_ID = 1 << 24  # no vocabulary is near it; a larger id is a damaged file


def byte_letters() -> list[str]:
    """GPT-2's alphabet: a printable character for each byte (openai/gpt-2, src/encoder.py, bytes_to_unicode).

    >>> [byte_letters()[byte] for byte in b"a \\n"]
    ['a', 'Ġ', 'Ċ']
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + hidden.index(byte)) for byte in range(256)]


BYTE_LETTERS = byte_letters()
LETTER_BYTES = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}


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
class Vocabulary:
    """Everything that a tokenizer knows. `encode_piece` raises `TokenizerError` for text it has no tokens for."""

    encode_piece: Callable[[str], list[int]]
    token_bytes: Mapping[int, bytes]
    split: pretokenize.Split
    added: tuple[AddedToken, ...] = ()
    normalize: Callable[[str], str] | None = None
    blank_first: bool = False  # a text that starts without a blank gets one (Mistral's Metaspace "first")
    strip_first: bool = False  # ... and one leading blank is taken away again when decoding
    prefix: tuple[int, ...] = ()  # what `add_special` puts before the ids, usually BOS
    suffix: tuple[int, ...] = ()
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    chat_template: str | None = None
    spec: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the tokenizer.json it was read from


# ------------------------------------------------------------------------------------------------- one piece -> ids


@dataclass(frozen=True)
class MergeModel:
    """BPE by merges: spell the piece in the vocabulary's alphabet, then merge.

    `ranks[left, right]` is a pair's place in the merge table, `made[rank]` the id that takes its place.
    """

    vocab: Mapping[str, int]
    ranks: Mapping[Pair, int]
    made: list[int]
    byte_level: bool
    byte_fallback: bool = False
    ignore_merges: bool = False  # a piece that is a token as a whole is taken at once (Llama 3)
    unk_id: int | None = None
    fuse_unk: bool = False
    missing: str = "error"

    def encode(self, piece: str) -> list[int]:
        """The ids of one piece."""
        letters = "".join([BYTE_LETTERS[byte] for byte in piece.encode()]) if self.byte_level else piece
        if self.ignore_merges and letters in self.vocab:
            return [self.vocab[letters]]
        try:
            units = [self.vocab[letter] for letter in letters]
        except KeyError:
            units = self._units_with_gaps(letters)
        return merge(units, self.ranks.get, self.made)

    def _units_with_gaps(self, letters: str) -> list[int]:
        units: list[int] = []
        for letter in letters:
            if letter in self.vocab:
                units.append(self.vocab[letter])
                continue
            spare = [self.vocab.get(f"<0x{byte:02X}>") for byte in letter.encode()] if self.byte_fallback else [None]
            if None not in spare:
                units += spare  # type: ignore[arg-type]
            elif self.unk_id is not None:
                if not (self.fuse_unk and units and units[-1] == self.unk_id):
                    units.append(self.unk_id)
            elif self.missing == "error":
                raise TokenizerError(self._missing_message(letter))
        return units

    def _missing_message(self, letter: str) -> str:
        what = f"the byte 0x{LETTER_BYTES[letter]:02x}" if self.byte_level else f"the character {letter!r}"
        return f'this vocabulary has no token for {what}, so the text cannot be encoded; missing="drop" leaves it out'


@dataclass(frozen=True)
class RankModel:
    """BPE by ranks, as tiktoken does it: the rank of a token is its id."""

    ranks: Mapping[bytes, int]
    tokens: Mapping[int, bytes]

    def encode(self, piece: str) -> list[int]:
        """The ids of one piece."""
        return encode_by_ranks(piece.encode(), self.ranks, self.tokens)


# ------------------------------------------------------------------------------------------------- tokenizer.json


def from_json(spec: Mapping[str, Any], missing: str = "error") -> Vocabulary:
    """Read the content of a tokenizer.json.

    `missing` says what happens to text that the vocabulary has no tokens for: "error", or "drop" as Hugging Face does.
    Raises `TokenizerError` for what contradicts itself and `UnsupportedError` for what minifer does not have.
    """
    if missing not in ("error", "drop"):
        raise TokenizerError(f'missing={missing!r} is not known; it can be "error" or "drop"')
    try:
        return _from_json(spec, missing)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise TokenizerError(f"this is not a whole tokenizer.json: {type(error).__name__}: {error}") from None


def _from_json(spec: Mapping[str, Any], missing: str) -> Vocabulary:
    steps = pretokenize.flatten(spec.get("pre_tokenizer"))
    byte_level = any(step["type"] == "ByteLevel" for step in steps)
    model = _model(spec["model"], byte_level, missing)
    added = _added_tokens(spec.get("added_tokens") or [], model.vocab)
    to_bytes, strip_first = _decoder(spec.get("decoder"), byte_level)
    token_bytes = {index: to_bytes(token) for token, index in model.vocab.items()}
    token_bytes |= {token.id: token.content.encode() if byte_level else to_bytes(token.content) for token in added}
    prefix, suffix = _around(spec.get("post_processor"))
    return Vocabulary(
        encode_piece=model.encode,
        token_bytes=token_bytes,
        split=pretokenize.from_json(spec.get("pre_tokenizer")),
        added=added,
        normalize=_normalizer(spec.get("normalizer")),
        blank_first=any(step["type"] == "Metaspace" and step.get("prepend_scheme") == "first" for step in steps),
        strip_first=strip_first,
        prefix=prefix,
        suffix=suffix,
        spec=spec,
    )


def _model(model: Mapping[str, Any], byte_level: bool, missing: str) -> MergeModel:
    if model.get("type", "BPE") != "BPE":
        raise UnsupportedError(f"this vocabulary's model is {model['type']!r}; minifer reads BPE only")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise UnsupportedError(f"this vocabulary asks for {option}={model[option]!r}, which minifer does not have")
    vocab = _checked_vocab(model["vocab"])
    ranks, made = _merge_table(model["merges"], vocab)
    return MergeModel(
        vocab,
        ranks,
        made,
        byte_level,
        byte_fallback=bool(model.get("byte_fallback")),
        ignore_merges=bool(model.get("ignore_merges")),
        unk_id=None if model.get("unk_token") is None else vocab[model["unk_token"]],
        fuse_unk=bool(model.get("fuse_unk")),
        missing=missing,
    )


def _checked_vocab(vocab: Mapping[str, int]) -> dict[str, int]:
    owner: dict[int, str] = {}
    for token, index in vocab.items():
        if type(index) is not int or not 0 <= index < MAX_ID:
            raise TokenizerError(
                f"token {token!r} has the id {index!r}; an id is a whole number from 0 to {MAX_ID - 1}"
            )
        if owner.setdefault(index, token) != token:
            raise TokenizerError(f"id {index} belongs to two tokens, {owner[index]!r} and {token!r}")
    return dict(vocab)


def _merge_table(merges: list[Any], vocab: Mapping[str, int]) -> tuple[dict[Pair, int], list[int]]:
    """Both spellings, `"a b"` and `["a", "b"]`, to ranks by pair and ids by rank."""
    ranks: dict[Pair, int] = {}
    made: list[int] = []
    for line, entry in enumerate(merges):
        parts = entry.split(" ") if isinstance(entry, str) else entry
        if len(parts) != 2:
            why = "is ambiguous: a token holds a blank; write it as a pair" if len(parts) > 2 else "is not a pair"
            raise TokenizerError(f"merge {line} {why}: {entry!r}")
        for token in (*parts, "".join(parts)):
            if token not in vocab:
                raise TokenizerError(f"merge {line} is {entry!r}, but {token!r} is not in the vocabulary")
        ranks[vocab[parts[0]], vocab[parts[1]]] = line  # of two equal lines the later counts, as in Hugging Face
        made.append(vocab["".join(parts)])
    if not made and any(len(token) > 1 for token in vocab):
        raise TokenizerError("the merge table is empty, yet the vocabulary has tokens that only merging could reach")
    return ranks, made


def _added_tokens(entries: list[Mapping[str, Any]], vocab: Mapping[str, int]) -> tuple[AddedToken, ...]:
    names = {index: token for token, index in vocab.items()}
    added = []
    for entry in entries:
        if entry.get("single_word"):
            raise UnsupportedError(
                f"added token {entry['content']!r} asks for single_word, which minifer does not have"
            )
        flags = {name: bool(entry.get(name, False)) for name in ("special", "lstrip", "rstrip", "normalized")}
        token = AddedToken(entry["id"], entry["content"], **flags)
        if type(token.id) is not int or not 0 <= token.id < MAX_ID or not token.content:
            raise TokenizerError(f"an added token is damaged: {dict(entry)!r}")
        if vocab.get(token.content, token.id) != token.id or names.setdefault(token.id, token.content) != token.content:
            other = names.get(token.id) or vocab[token.content]
            raise TokenizerError(f"added token {token.content!r} with id {token.id} contradicts {other!r}")
        added.append(token)
    return tuple(added)


# --------------------------------------------------------------------------------- normalizer, decoder, post-processor


def _normalizer(spec: Mapping[str, Any] | None) -> Callable[[str], str] | None:
    if spec is None:
        return None
    kind = spec["type"]
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return partial(unicodedata.normalize, kind)
    if kind == "Prepend":
        return lambda text: spec["prepend"] + text if text else text
    if kind == "Replace":
        pattern, content = _pattern(spec["pattern"]), spec["content"]
        return lambda text: pattern.sub(lambda _: content, text)
    if kind == "Sequence":
        steps = [step for part in spec["normalizers"] if (step := _normalizer(part))]
        return partial(_one_after_another, steps) if steps else None
    raise UnsupportedError(
        f"this vocabulary normalizes with {kind!r}; minifer has NFC, NFD, NFKC, NFKD, Prepend, Replace and Sequence"
    )


def _one_after_another(steps: list[Callable[[str], str]], text: str) -> str:
    for step in steps:
        text = step(text)
    return text


def _pattern(spec: Mapping[str, str]) -> regex.Pattern[str]:
    if "String" in spec:
        return regex.compile(regex.escape(spec["String"]))
    return pretokenize.compile_pattern(spec["Regex"], regex.MULTILINE)


def _decoder(spec: Mapping[str, Any] | None, byte_level: bool) -> tuple[Callable[[str], bytes], bool]:
    """How a token's spelling becomes bytes, and whether the whole text loses one leading blank.

    A file without a decoder says nothing about the gaps between tokens; here there are none.
    """
    steps = [] if spec is None else spec["decoders"] if spec["type"] == "Sequence" else [spec]
    kinds = [step["type"] for step in steps]
    if byte_level != ("ByteLevel" in kinds) and spec is not None:
        raise UnsupportedError(f"the decoder {kinds} does not fit the pre-tokenizer: only one of them is ByteLevel")
    replaced: list[tuple[str, str]] = []
    strip_first = False
    for step in steps:
        match step:
            case {"type": "ByteLevel" | "ByteFallback" | "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replaced.append((old, new))
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
                strip_first = strip_first or start == 1
            case {"type": "Metaspace", "replacement": str(old)}:
                replaced.append((old, " "))
                strip_first = step.get("prepend_scheme", "always") != "never"
            case _:
                raise UnsupportedError(f"this vocabulary decodes with {dict(step)!r}, which minifer does not have")
    to_bytes = _from_letters if byte_level else partial(_from_text, replaced, "ByteFallback" in kinds)
    return to_bytes, strip_first


def _from_letters(token: str) -> bytes:
    try:
        return bytes([LETTER_BYTES[letter] for letter in token])
    except KeyError:  # not in the byte alphabet, so no merge makes it: a name like "[PAD 7]"
        return token.encode()


def _from_text(replaced: list[tuple[str, str]], byte_fallback: bool, token: str) -> bytes:
    if byte_fallback and (byte := regex.fullmatch(r"<0x([0-9A-F]{2})>", token)):
        return bytes.fromhex(byte[1])
    for old, new in replaced:
        token = token.replace(old, new)
    return token.encode()


def _around(spec: Mapping[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that a post-processor puts before and after one text."""
    if spec is None or spec["type"] == "ByteLevel":  # ByteLevel only moves offsets
        return (), ()
    if spec["type"] == "Sequence":
        around = [_around(part) for part in spec["processors"]]
        return sum((before for before, _ in reversed(around)), ()), sum((after for _, after in around), ())
    if spec["type"] != "TemplateProcessing":
        raise UnsupportedError(f"this vocabulary's post-processor is {spec['type']!r}, which minifer does not have")
    before: list[int] = []
    after: list[int] = []
    side = before
    for part in spec["single"]:
        if "Sequence" in part:
            side = after
        else:
            side += spec["special_tokens"][part["SpecialToken"]["id"]]["ids"]
    return tuple(before), tuple(after)


def with_specials(vocabulary: Vocabulary, **changes: Any) -> Vocabulary:
    """A copy with `bos_id`, `eos_ids`, `prefix`, `suffix` or `chat_template` set; ids without a token are refused."""
    ids = [changes.get("bos_id"), *changes.get("eos_ids", ()), *changes.get("prefix", ()), *changes.get("suffix", ())]
    for index in ids:
        if index is not None and index not in vocabulary.token_bytes:
            raise TokenizerError(f"the file names {index!r} as BOS or EOS, but the vocabulary has no such id")
    return replace(vocabulary, **changes)
