"""The tokenizer as one object: text to ids, ids to text, with a memory for words it has seen.

    tok = Tokenizer.from_pretrained("smollm2-135m")
    tok.encode("Hello world")            [19556, 905]
    tok.decode([19556, 905])             'Hello world'

**Text from a user is plain text.** `<|im_end|>` typed by a person is six signs and letters, not the control token that
ends a turn; otherwise anyone could close their own turn and speak as the system. So `encode` makes control tokens only
with `allow_special=True`, which is for text that the program itself wrote. (Added tokens that a vocabulary marks as
*not* special are ordinary words with a border around them, and are found in every text, as in Hugging Face.)

**Round trip.** `decode(encode(text)) == text` for every string, with three exceptions, each of them the vocabulary's
own choice: halves of characters become U+FFFD (`fix_surrogates`), a normalizer's change stays (NFC composes), and a
vocabulary can lack bytes. SmolLM2 lacks 21; Hugging Face leaves such text out without a word, here it is an error
unless the tokenizer was made with `missing="drop"`.

**Speed.** Natural text repeats its words: most pieces were cut before. `PieceCache` is a dictionary from piece to ids
that encodes what it does not know, so that the loop over known pieces runs in C (`map`, `chain`), and the cost of pure
Python is paid once per *different* word. It is bounded, and holds no long pieces.

Not here: files (`formats.vocab_files`), chat templates (`chat`), text while tokens still arrive (`stream`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import regex

from minifer.errors import TokenizerError
from minifer.formats.vocab_files import AddedToken, VocabFile, from_json, read_vocab, write_json, write_ranks
from minifer.hub import locate
from minifer.tokenizer import bpe
from minifer.tokenizer.chat import Markers
from minifer.tokenizer.pretokenize import GPT2, PATTERNS, fix_surrogates
from minifer.tokenizer.vocab import json_of_merges, json_of_ranks, ranks_of, understand, with_cut

CACHE_PIECES = 1 << 16  # about 12 MB when full; 2 MB of Python's documentation have 18,000 different pieces
CACHE_LONGEST = 64  # characters

# Unicode's White_Space, which `lstrip` and `rstrip` of added tokens mean; str.strip() would also take U+001C to U+001F.
BLANKS = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
BLANK_RUN = regex.compile(r"\s*")


class PieceCache(dict[str, list[int]]):
    """Piece -> ids; an unknown piece is encoded on the way. When full it starts anew."""

    def __init__(self, encode_piece: Callable[[str], list[int]]) -> None:
        self.encode_piece = encode_piece

    def __missing__(self, piece: str) -> list[int]:
        ids = self.encode_piece(piece)
        if len(piece) <= CACHE_LONGEST:
            if len(self) >= CACHE_PIECES:
                self.clear()
            self[piece] = ids
        return ids


class Finder:
    """Finds added tokens in text: leftmost, and of several at one place the longest."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self.tokens = {token.content: token for token in tokens}
        longest_first = sorted(self.tokens, key=len, reverse=True)
        self.pattern = regex.compile("|".join(map(regex.escape, longest_first))) if longest_first else None

    def parts(self, text: str) -> Iterator[str | int]:
        """The text between the tokens as strings (none of them empty), and the tokens as ids, in order."""
        end = 0
        while self.pattern and (match := self.pattern.search(text, end)):
            token = self.tokens[match.group()]
            between = text[end : match.start()]
            between = between.rstrip(BLANKS) if token.lstrip else between
            if between:
                yield between
            yield token.id
            end = match.end()
            if token.rstrip:  # what it swallows is not searched again, even if it holds a token made of blanks
                end = BLANK_RUN.match(text, end).end()
        if end < len(text):
            yield text[end:]


class Tokenizer:
    """Text <-> token ids for one vocabulary. Made by `from_pretrained`, or by `from_merges` from what was trained."""

    def __init__(self, file: VocabFile, *, missing: str = "error") -> None:
        self.vocabulary = understand(file, missing)
        self.special_tokens = {token.content: token.id for token in file.added if token.special}
        self._special_ids = frozenset(self.special_tokens.values())
        self._cache = PieceCache(self.vocabulary.encode_piece)
        early = [token for token in file.added if not token.normalized]
        late = [
            replace(token, content=self.vocabulary.normalize(token.content)) for token in file.added if token.normalized
        ]
        self._early, self._late = Finder(early), Finder(late)
        self._early_plain = Finder([token for token in early if not token.special])
        self._late_plain = Finder([token for token in late if not token.special])

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, *, pattern: str | None = None, missing: str = "error"
    ) -> Tokenizer:
        """Load a vocabulary: a model's name, a folder or a tokenizer.json, a GGUF file, or a tiktoken rank file.

        `pattern` (a name in `pretokenize.PATTERNS` or a regex) is for rank files alone, which do not say how to cut
        text. `missing="drop"` leaves out what the vocabulary has no tokens for, instead of raising `TokenizerError`.
        """
        path = Path(name_or_path)
        if not path.exists():
            files = locate(str(name_or_path))
            if files.kind == "random":
                raise TokenizerError(f"{files.name} has random weights and no vocabulary; name a real model")
            path = files.path
        return cls(read_vocab(path, pattern), missing=missing)

    @classmethod
    def from_merges(
        cls, merges: Mapping[bpe.Pair, int], *, pattern: str = GPT2, special_tokens: Sequence[str] = ()
    ) -> Tokenizer:
        """The tokenizer of a trained merge table. Ids: bytes, merges, special tokens; the first special token is EOS.

        >>> merges = bpe.train("low lower lowest", 258)
        >>> Tokenizer.from_merges(merges, special_tokens=["<|end|>"]).pieces("lower")
        [(257, b'low'), (101, b'e'), (114, b'r')]
        """
        file = from_json(json_of_merges(merges, PATTERNS.get(pattern, pattern)))
        added = tuple(AddedToken(len(file.vocab) + i, content) for i, content in enumerate(special_tokens))
        spec = dict(file.spec or {}) | {"added_tokens": [asdict(token) | {"single_word": False} for token in added]}
        return cls(replace(from_json(spec), eos_ids=tuple(token.id for token in added[:1])))

    def save(self, path: str | Path) -> None:
        """Write the file that Hugging Face reads (`x.json`), or the one that tiktoken reads (`x.tiktoken`).

        Any other name is a folder, which gets a tokenizer.json and a tokenizer_config.json. Raises `TokenizerError` if
        ranks cannot say what this vocabulary says.
        """
        path, file = Path(path), self.vocabulary.file
        if path.suffix == ".tiktoken":
            write_ranks(path, ranks_of(file))
        else:
            write_json(path, replace(file, spec=json_of_ranks(file) if file.spec is None else with_cut(file)))

    # ------------------------------------------------------------------------------------------------ facts

    @property
    def vocab_size(self) -> int:
        """One more than the highest id, so that it is the number of rows an embedding needs."""
        return max(self.vocabulary.token_bytes, default=-1) + 1

    @property
    def bos_id(self) -> int | None:
        """The token that starts a text, if the vocabulary names one."""
        return self.vocabulary.file.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a text or a turn."""
        return self.vocabulary.file.eos_ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token. Raises `TokenizerError` for an id without a token."""
        try:
            return self.vocabulary.token_bytes[token_id]
        except (KeyError, TypeError):
            highest = self.vocab_size - 1
            raise TokenizerError(f"{token_id!r} is no token id; this vocabulary has 0 to {highest}") from None

    # ------------------------------------------------------------------------------------------------ text -> ids

    def encode(self, text: str, *, add_special: bool = False, allow_special: bool = False) -> list[int]:
        """Text to ids.

        `allow_special`: control tokens written in the text become control tokens; for text of your own only.
        `add_special`: also put the vocabulary's own BOS (and EOS) around it, if it has that habit.
        """
        finders = (self._early, self._late) if allow_special else (self._early_plain, self._late_plain)
        ids, file = self._encode(text, *finders), self.vocabulary.file
        return [*file.prefix, *ids, *file.suffix] if add_special else ids

    def pieces(self, text: str, *, add_special: bool = False, allow_special: bool = False) -> list[tuple[int, bytes]]:
        """The same as pairs of id and bytes, for looking at.

        >>> Tokenizer.from_merges({(104, 105): 256}).pieces("hi!")
        [(256, b'hi'), (33, b'!')]
        """
        ids = self.encode(text, add_special=add_special, allow_special=allow_special)
        return [(token, self.token_bytes(token)) for token in ids]

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """The ids of a conversation, laid out by the model's own template.

        Control tokens come from the template only; every string in `messages` (and in `variables`, such as `tools`)
        stays plain text. Raises `TokenizerError` if the model has no template, or if the template fails or refuses.
        """
        markers = Markers(self.vocabulary.file, [messages, variables])
        text = markers.render(messages, add_generation_prompt, variables)
        return self._encode(text, Finder([*self._early_plain.tokens.values(), *markers.tokens]), self._late_plain)

    def _encode(self, text: str, early: Finder, late: Finder) -> list[int]:
        if not isinstance(text, str):
            raise TokenizerError(f"encode needs a str, not {type(text).__name__}; decode bytes to text first")
        ids: list[int] = []
        for raw in early.parts(fix_surrogates(text)):
            for part in (raw,) if isinstance(raw, int) else late.parts(self.vocabulary.normalize(raw)):
                ids += (part,) if isinstance(part, int) else self._encode_plain(part, first=not ids)
        return ids

    def _encode_plain(self, text: str, first: bool) -> list[int]:
        if first and self.vocabulary.blank_first and not text.startswith((" ", "▁")):
            text = " " + text
        return list(chain.from_iterable(map(self._cache.__getitem__, self.vocabulary.split(text))))

    # ------------------------------------------------------------------------------------------------ ids -> text

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Ids to text; bytes that are not UTF-8 (half a character, say) become U+FFFD.

        `skip_special` leaves control tokens out. For tokens that arrive one by one use `stream.StreamDecoder`.
        """
        return self.decode_bytes(ids, skip_special).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int], skip_special: bool = False) -> bytes:
        """Ids to the exact bytes they stand for."""
        skipped = self._special_ids if skip_special else ()
        data = b"".join([self.token_bytes(token) for token in ids if token not in skipped])
        return data.removeprefix(b" ") if self.vocabulary.strip_first else data

    def is_special(self, token_id: int) -> bool:
        """Whether this is a control token."""
        return token_id in self._special_ids
