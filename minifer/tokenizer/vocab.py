"""What a vocabulary means: from the plain data of a file to functions from text to ids and from ids to bytes.

Hugging Face's `tokenizer.json` says how text becomes ids as a row of five stations, and minifer takes it as the normal
form (GGUF and rank files are put into its words by `formats.vocab_files`, which also checks that the tables are whole):

    added tokens    `<|im_end|>`: found in the raw text, before anything else
    normalizer      NFC, or `Prepend "▁"` and `Replace " " -> "▁"`               -> `Vocabulary.normalize`
    pre_tokenizer   text -> pieces                                              -> `Vocabulary.split`, see `pretokenize`
    model           one piece -> ids: the vocabulary and its merges              -> `MergeModel`, `RankModel`
    decoder         ids -> bytes: each token's bytes are worked out once          -> `Vocabulary.token_bytes`

**Two alphabets.** JSON holds text, but tokens are bytes, and not every string of bytes is text. GPT-2's way out: 256
printable letters, one for each byte (`BYTE_LETTERS`; a blank is written `Ġ`). SentencePiece's way (Llama 2, Mistral):
tokens are characters, a blank is `▁`, and a character that the vocabulary lacks falls back to tokens named `<0xE2>`.

**Nothing is guessed.** Every normalizer, pre-tokenizer and decoder is either understood or refused by name.

Not here: the loop over text, and what counts as text from a user (`tokenizer`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import regex

from minifer.errors import TokenizerError, UnsupportedError
from minifer.formats.vocab_files import VocabFile, numbered, tokenizer_json
from minifer.tokenizer import bpe, pretokenize

# llama.cpp, src/llama-vocab.cpp: `tokenizer.ggml.pre` by name. A name that is missing here is refused.
GGUF_NAMES = {
    **dict.fromkeys(("llama-bpe", "llama-v3", "llama3"), pretokenize.LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), pretokenize.QWEN2),
    "gpt-2": pretokenize.GPT2,
    "smollm": pretokenize.SMOLLM,
    "gpt-4o": pretokenize.O200K,
}


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


def spell(token: bytes) -> str:
    """Bytes in GPT-2's alphabet.

    >>> spell(b" hi")
    'Ġhi'
    """
    return "".join([BYTE_LETTERS[byte] for byte in token])


@dataclass(frozen=True)
class Vocabulary:
    """Everything that a tokenizer does with one vocabulary, as functions and tables.

    `encode_piece` raises `TokenizerError` for text that it has no tokens for.
    """

    file: VocabFile
    encode_piece: Callable[[str], list[int]]
    stages: Callable[[str], Iterator[list[bytes]]]  # one piece from single units to tokens, merge by merge
    token_bytes: Mapping[int, bytes]
    split: pretokenize.Split
    normalize: Callable[[str], str] = str
    blank_first: bool = False  # a text that starts without a blank gets one (Mistral's Metaspace "first")
    strip_first: bool = False  # ... and one leading blank is taken away again when decoding


def understand(file: VocabFile, missing: str = "error") -> Vocabulary:
    """The functions that a vocabulary's file describes.

    `missing` says what happens to text that the vocabulary has no tokens for: "error", or "drop" as Hugging Face does.
    Raises `UnsupportedError` for what minifer does not have.
    """
    if missing not in ("error", "drop"):
        raise TokenizerError(f'missing={missing!r} is not known; it can be "error" or "drop"')
    if file.spec is None:
        return _ranked(file)
    try:
        return _merged(file, with_cut(file), missing)
    except (KeyError, TypeError, AttributeError) as error:
        raise TokenizerError(f"this is not a whole tokenizer.json: {type(error).__name__}: {error}") from None


def with_cut(file: VocabFile) -> dict[str, Any]:
    """The tokenizer.json of a file, complete also where the file only names its way to cut text."""
    spec = dict(file.spec or {})
    if file.cut_by is not None:
        if file.cut_by not in GGUF_NAMES:
            raise UnsupportedError(f"tokenizer.ggml.pre is {file.cut_by!r}; minifer knows {', '.join(GGUF_NAMES)}")
        spec["pre_tokenizer"] = pretokenize.json_of(GGUF_NAMES[file.cut_by])
    return spec


def _ranked(file: VocabFile) -> Vocabulary:
    tokens = {rank: token for token, rank in file.ranks.items()}
    pattern = pretokenize.PATTERNS.get(file.cut_by or "", file.cut_by or "")
    return Vocabulary(
        file,
        encode_piece=lambda piece: bpe.encode_by_ranks(piece.encode(), file.ranks, tokens),
        stages=lambda piece: bpe.merge_stages(
            bpe.single_bytes(piece.encode()), lambda pair: file.ranks.get(pair[0] + pair[1]), tokens
        ),
        token_bytes=tokens | {token.id: token.content.encode() for token in file.added},
        split=pretokenize.splitter(pattern),
    )


def _merged(file: VocabFile, spec: Mapping[str, Any], missing: str) -> Vocabulary:
    steps = pretokenize.flatten(spec.get("pre_tokenizer"))
    byte_level = any(step["type"] == "ByteLevel" for step in steps)
    to_bytes, strip_first = _decoder(spec.get("decoder"), byte_level)
    token_bytes = {index: to_bytes(token) for token, index in file.vocab.items()}
    token_bytes |= {token.id: token.content.encode() if byte_level else to_bytes(token.content) for token in file.added}
    model = MergeModel.of(file, spec["model"], byte_level, missing)
    return Vocabulary(
        file,
        encode_piece=model.encode,
        stages=lambda piece: ([token_bytes[token] for token in stage] for stage in model.stages(piece)),
        token_bytes=token_bytes,
        split=pretokenize.from_json(spec.get("pre_tokenizer")),
        normalize=_normalizer(spec.get("normalizer")),
        blank_first=any(pretokenize.prepend_scheme(step) == "first" for step in steps),
        strip_first=strip_first,
    )


@dataclass(frozen=True)
class MergeModel:
    """BPE by merges: spell the piece in the vocabulary's alphabet, then merge.

    `ranks[left, right]` is a pair's place in the merge table, `made[rank]` the id that takes its place.
    """

    vocab: Mapping[str, int]
    ranks: Mapping[bpe.Pair, int]
    made: list[int]
    byte_level: bool
    missing: str
    unk_id: int | None
    fuse_unk: bool
    byte_fallback: bool
    ignore_merges: bool  # a piece that is a token as a whole is taken at once (Llama 3)

    @classmethod
    def of(cls, file: VocabFile, model: Mapping[str, Any], byte_level: bool, missing: str) -> MergeModel:
        """Look up the ids of the merge table; of two equal lines the later one counts, as in Hugging Face."""
        vocab, unk = file.vocab, model.get("unk_token")
        ranks = {(vocab[left], vocab[right]): rank for rank, (left, right) in enumerate(file.merges)}
        made = [vocab[left + right] for left, right in file.merges]
        unk_id = None if unk is None else vocab[unk]
        flags = [bool(model.get(name)) for name in ("fuse_unk", "byte_fallback", "ignore_merges")]
        return cls(vocab, ranks, made, byte_level, missing, unk_id, *flags)

    def encode(self, piece: str) -> list[int]:
        """The ids of one piece."""
        letters = spell(piece.encode()) if self.byte_level else piece
        if self.ignore_merges and letters in self.vocab:
            return [self.vocab[letters]]
        return bpe.merge(self._units(letters), self.ranks.get, self.made)

    def stages(self, piece: str) -> Iterator[list[int]]:
        """The same merge by merge (`ignore_merges` would skip them, but has the same end)."""
        letters = spell(piece.encode()) if self.byte_level else piece
        return bpe.merge_stages(self._units(letters), self.ranks.get, self.made)

    def _units(self, letters: str) -> list[int]:
        try:
            return [self.vocab[letter] for letter in letters]
        except KeyError:
            return self._units_with_gaps(letters)

    def _units_with_gaps(self, letters: str) -> list[int]:
        units: list[int] = []
        for letter in letters:
            spare = [f"<0x{byte:02X}>" for byte in letter.encode()]
            if letter in self.vocab:
                units.append(self.vocab[letter])
            elif self.byte_fallback and all(name in self.vocab for name in spare):
                units += [self.vocab[name] for name in spare]
            elif self.unk_id is not None:
                if not (self.fuse_unk and units and units[-1] == self.unk_id):
                    units.append(self.unk_id)
            elif self.missing == "error":
                what = f"the byte 0x{LETTER_BYTES[letter]:02x}" if self.byte_level else f"the character {letter!r}"
                raise TokenizerError(f'this vocabulary has no token for {what}; missing="drop" would leave it out')
        return units


# ---------------------------------------------------------------------------------------------- normalizer, decoder


def _normalizer(spec: Mapping[str, Any] | None) -> Callable[[str], str]:
    if spec is None:
        return str
    kind = spec["type"]
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return partial(unicodedata.normalize, kind)
    if kind == "Prepend":
        return lambda text: spec["prepend"] + text if text else text
    if kind == "Replace":
        pattern, content = pretokenize.pattern_of(spec["pattern"]), spec["content"]
        return lambda text: pattern.sub(lambda _: content, text)
    if kind == "Sequence":
        return partial(_one_after_another, [_normalizer(part) for part in spec["normalizers"]])
    raise UnsupportedError(
        f"this vocabulary normalizes with {kind!r}; minifer has NFC, NFD, NFKC, NFKD, Prepend, Replace and Sequence"
    )


def _one_after_another(steps: list[Callable[[str], str]], text: str) -> str:
    for step in steps:
        text = step(text)
    return text


def _decoder(spec: Mapping[str, Any] | None, byte_level: bool) -> tuple[Callable[[str], bytes], bool]:
    """How a token's spelling becomes bytes, and whether the whole text loses one leading blank.

    A file without a decoder says nothing about gaps between tokens; here there are none.
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
                strip_first = start == 1
            case {"type": "Metaspace"}:
                replaced.append((step.get("replacement", "▁"), " "))
                strip_first = pretokenize.prepend_scheme(step) != "never"
            case _:
                raise UnsupportedError(f"this vocabulary decodes with {dict(step)!r}, which minifer does not have")
    return (_from_letters if byte_level else partial(_from_text, replaced, "ByteFallback" in kinds)), strip_first


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


# ---------------------------------------------------------------------------------------------- the way back


def json_of_merges(merges: Mapping[bpe.Pair, int], pattern: str) -> dict[str, Any]:
    """The tokenizer.json of a table trained by `bpe.train`."""
    spelled = [spell(token) for token in bpe.vocabulary(merges)]
    pairs = [[spelled[left], spelled[right]] for left, right in merges]
    return tokenizer_json(numbered(spelled), pairs, pretokenize.json_of(pattern))


def json_of_ranks(file: VocabFile) -> dict[str, Any]:
    """The tokenizer.json of a rank file: each token's merge is the pair into which lower ranks cut it."""
    tokens, pairs = {rank: token for token, rank in file.ranks.items()}, []
    for rank, token in sorted(tokens.items()):

        def lower(pair: tuple[bytes, bytes], limit: int = rank) -> int | None:
            return found if (found := file.ranks.get(pair[0] + pair[1], limit)) < limit else None

        parts = bpe.merge(bpe.single_bytes(token), lower, tokens)
        if len(parts) == 2:  # one part is a single byte; more than two: only the whole piece is ever this token
            pairs.append([spell(part) for part in parts])
    cut = pretokenize.json_of(pretokenize.PATTERNS.get(file.cut_by or "", file.cut_by or ""))
    return tokenizer_json(
        {spell(token): rank for token, rank in file.ranks.items()}, pairs, cut, file.added, ignore_merges=True
    )


def ranks_of(file: VocabFile) -> Mapping[bytes, int]:
    """The ranks that cut text as this vocabulary does: refused where merges and ranks could differ.

    They cannot if every token but the single bytes has one merge, in the order of ids (see `bpe`).
    """
    if file.spec is None:
        return file.ranks
    control = {token.content for token in file.added}
    ordinary = {token: index for token, index in file.vocab.items() if token not in control}
    made = [file.vocab[left + right] for left, right in file.merges]
    letters = all(letter in LETTER_BYTES for token in ordinary for letter in token)
    if not letters or made != sorted(set(made)) or len(ordinary) != 256 + len(made) or file.spec.get("normalizer"):
        raise TokenizerError(
            "this vocabulary is not 256 bytes and merges in the order of ids; ranks cannot say the same"
        )
    return {_from_letters(token): index for token, index in ordinary.items()}
