"""Hostile texts, peers and oracles for the tests of the tokenizer."""

import json
import random
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from minifer.formats.vocab_files import RANK_FILES
from minifer.tokenizer import Tokenizer
from minifer.tokenizer.pretokenize import PATTERNS

SCRIPTS = (
    (0x20, 0x7E), (0xA0, 0x17F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x6FF), (0x900, 0x97F),
    (0xE00, 0xE7F), (0x1000, 0x109F), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x23FF),
    (0x2600, 0x27BF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFE00, 0xFEFF), (0x1D400, 0x1D7FF),
    (0x1F300, 0x1F9FF), (0x20000, 0x2A6DF),
)  # fmt: skip
BLANKS = " \t\n\r\v\f\x1c\x1f\x85\xa0\u1680\u2000\u2009\u200b\u2028\u202f\u3000\ufeff"
FRAGMENTS = (
    "    ", "  ", "\n\n", "\r\n", " \n", "the", " the", "don't", "I'M", "we'LL", "'ſ", "it’s", "'re", "'VE",
    "123", "4567", "0.5e-3", "½²", "٣٤", "def f(x):\n    return x\n", "if (a != b) { ++i; }\n", "</div>",
    "https://a.b/c?d=e&f=g", "/* */", "//\n", "===", "____", "....", "<|endoftext|>", "<|im_end|>", "<filename>",
    "👍🏽", "👩‍👩‍👧", "🇩🇪", "e\u0301", "Å", "ß", "ﬁ", "ǅ", "中文", "日本語", "한국어", "नमस्ते", "สวัสดี", "שלום",
    "\u202e", "\u200d", "\x00", "\x7f", "\ud83d", "\ud83d\udc4d", "\udc4d",
)  # fmt: skip


def random_text(rng: random.Random) -> str:
    """A short string over scripts, blanks, digits, emoji, control characters and code, in runs and mixtures."""
    parts = []
    for _ in range(rng.randint(1, 8)):
        kind = rng.randrange(6)
        if kind == 0:
            low, high = rng.choice(SCRIPTS)
            parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))))
        elif kind == 1:
            parts.append("".join(rng.choices(BLANKS, k=rng.randint(1, 4))))
        elif kind == 2:
            parts.append(str(rng.randrange(10 ** rng.randint(1, 12))))
        elif kind == 3:
            parts.append(rng.choice(FRAGMENTS))
        elif kind == 4:
            parts.append("".join(rng.choices("abcdefgh ABCDEF'’.,;(){}=<>|_-\n", k=rng.randint(1, 12))))
        elif rng.random() < 0.5:
            parts.append(rng.choice("aA ='\n_.-") * rng.randint(1, 70))
        else:
            parts.append(any_character(rng))
    return "".join(parts)


def any_character(rng: random.Random) -> str:
    """Any character that was known to Unicode 3.2, private ones, controls and lone surrogates included.

    Not the youngest: which of them are letters depends on the year of a library's tables, and ours are newer.
    """
    while unicodedata.ucd_3_2_0.category(character := chr(rng.randrange(0x110000))) == "Cn":
        pass
    return character


def random_texts(seed: int, count: int) -> Iterator[str]:
    """`count` hostile strings, the same for the same seed."""
    rng = random.Random(seed)
    return (random_text(rng) for _ in range(count))


def rank_file(test_data: Path, name: str) -> Path:
    """OpenAI's rank file `name`, as npm's gpt-tokenizer carries it."""
    return test_data / "gpt-tokenizer" / "data" / f"{name}.tiktoken"


def tiktoken_peer(ranks: Mapping[bytes, int], cut_by: str, specials: Mapping[str, int]) -> Any:
    """tiktoken with these ranks; it cuts text by its own pattern where it has one."""
    import tiktoken

    return tiktoken.Encoding(
        "peer", pat_str=PATTERNS[cut_by], mergeable_ranks=dict(ranks), special_tokens=dict(specials)
    )


def tiktoken_pattern(name: str) -> str:
    """The pattern in tiktoken's own source for one of its vocabularies, without downloading its ranks."""
    from unittest import mock

    import tiktoken_ext.openai_public as public

    with mock.patch.object(public, "load_tiktoken_bpe", return_value={}):
        return str(getattr(public, name)()["pat_str"])


def rank_pair(test_data: Path, name: str) -> tuple[Tokenizer, Any]:
    """Our tokenizer and tiktoken's for the same rank file."""
    import tiktoken

    ours = Tokenizer.from_pretrained(rank_file(test_data, name))
    file = ours.vocabulary.file
    theirs = tiktoken.Encoding(
        name,
        pat_str=tiktoken_pattern(name),
        mergeable_ranks=dict(file.ranks),
        special_tokens=RANK_FILES[name][1],
    )
    return ours, theirs


def hugging_face(spec: Mapping[str, Any]) -> Any:
    """Hugging Face's tokenizer for the content of a tokenizer.json; like ours, it takes text as plain text."""
    from tokenizers import Tokenizer as Peer

    peer = Peer.from_str(json.dumps(spec))
    peer.encode_special_tokens = True
    return peer


def naive_train(words: Mapping[bytes, int], merges: int, tie: str = "bytes") -> dict[tuple[int, int], int]:
    """Byte pair encoding as it is defined: recount everything after every merge.

    `tie` is "bytes" for our rule (the first in the alphabet of bytes) or "ids" for Hugging Face's (the smallest ids).
    """
    rows = [(list(word), count) for word, count in words.items()]
    tokens = {byte: bytes([byte]) for byte in range(256)}
    made: dict[tuple[int, int], int] = {}
    while len(made) < merges:
        counts: Counter[tuple[int, int]] = Counter()
        for row, count in rows:
            for pair in pairwise(row):
                counts[pair] += count
        if not counts:
            break
        spelled = {pair: tokens[pair[0]] + tokens[pair[1]] if tie == "bytes" else b"" for pair in counts}
        best = min(counts, key=lambda pair: (-counts[pair], spelled[pair], pair))
        new = 256 + len(made)
        made[best], tokens[new] = new, tokens[best[0]] + tokens[best[1]]
        rows = [(replaced(row, best, new), count) for row, count in rows]
    return made


def replaced(row: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """`row` with every `pair` written as `new`, from left to right.

    >>> replaced([1, 1, 1, 2], (1, 1), 9)
    [9, 1, 2]
    """
    result, i = [], 0
    while i < len(row):
        if tuple(row[i : i + 2]) == pair:
            result.append(new)
            i += 2
        else:
            result.append(row[i])
            i += 1
    return result
