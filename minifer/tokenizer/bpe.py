"""Byte pair encoding: how a tokenizer learns its vocabulary, and how it cuts text with it.

A model reads numbers, not letters. The simplest numbering, one number per byte (256 of them), can spell every text
there is, but it is long: attention pays for each number. Byte pair encoding (Gage 1994; Sennrich et al. 2016,
arXiv:1508.07909; on bytes: GPT-2, 2019) buys shorter sequences with a larger vocabulary, greedily:

    take the pair of neighbours that occurs most often, give it a new number, write that number wherever the pair stood,
    and start again, until the vocabulary is as large as you want it.

The list of pairs, in the order they were made, is all there is to learn. In this file it is a plain dictionary,
`merges[(left, right)] == new id`: ids 0 to 255 are the bytes, and the merge made as number `i` has the id `256 + i`.

**Training, made quick.** Recounting all pairs after each merge is the definition (ten lines; the tests keep it as the
oracle). But a merge changes only the places where its pair stands. So `PairIndex` keeps, for every pair, how often and
*where* it occurs, and a merge visits only those places. Two more savings: text is first cut into words (see
`pretokenize`), and no merge crosses a word's border, so each *different* word is stored once, with a weight; and the
best pair comes from a heap, not from a scan.

**Ties.** Two pairs often occur equally often. The rule is a total order: *highest count first; of equals the pair whose
bytes, both halves together, come first in the alphabet of bytes; then the smaller ids*. It depends on nothing else: not
on the order of the documents, nor of a dictionary, nor on a hash seed. So `(aa, a)` goes before `(a, b)`: `aaa` < `ab`.
Counts are counts of neighbours, overlaps included (`aaa` holds `(a, a)` twice); merging goes from left to right
(`aaa` -> `X a`).

**One pair per token.** Could two pairs spell the same bytes, `(a, bc)` and `(ab, c)`? Not in training: a stretch of
text whose borders no merge ever crossed develops by its own bytes alone, so wherever those bytes stand whole they
arrive as the same pair. Hence every token has exactly one pair, and a trained table means the same under both rules
below.

**Encoding** replays the table on new text: of all neighbours that can merge, merge those with the lowest rank, leftmost
first, until none can. There are two rules for what "can merge" means, and real vocabularies need both:

* *by merges* (Hugging Face, GGUF): a pair can merge if that very pair is in the table;
* *by ranks* (tiktoken): a pair can merge if its bytes together are a token, however that token was once made, and a
  piece that is a token as a whole is taken at once.

They differ. With the merges `(b, c), (a, b), (ab, c)` the text `abc` becomes `a bc` by merges and `abc` by ranks.

**Time.** `merge_stages` is the definition, and takes quadratic time: one run of 100,000 letters without a blank would
stop a server for minutes. `merge` takes n log n time for any input, and is quicker for short words, too.

What this file does not do: cut text into words (`pretokenize`), know special tokens or files (`vocab`, `tokenizer`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, TypeVar

from minifer.errors import TokenizerError
from minifer.tokenizer.pretokenize import GPT2, fix_surrogates, splitter

Pair = tuple[int, int]
Merges = dict[Pair, int]
Progress = Callable[[int, int], None]
Token = TypeVar("Token")

BORDER = -1  # stands between two words, is no token, and so is never part of a pair


# --------------------------------------------------------------------------------------------------- training


def train(
    texts: str | bytes | Iterable[str | bytes],
    vocab_size: int,
    pattern: str | None = GPT2,
    progress: Progress | None = None,
) -> Merges:
    """Learn merges from `texts` (one document or many) until there are `vocab_size` tokens, the 256 bytes included.

    `pattern` cuts documents into words (a regex of `pretokenize`; None: each document is one word). `progress(done,
    total)` is called after each merge. Fewer merges come back if the text runs out of pairs before that.
    Raises `TokenizerError` for a vocabulary below 256 (naming it), for no text at all, for bytes that are not UTF-8.

    >>> train("aaabdaaabac", 259, pattern=None)
    {(97, 97): 256, (256, 97): 257, (257, 98): 258}
    """
    if vocab_size < 256:
        raise TokenizerError(f"vocab_size is {vocab_size}, but the 256 single bytes are always part of a vocabulary")
    index = PairIndex(count_words(texts, pattern))
    merges: Merges = {}
    while len(merges) < vocab_size - 256:
        pair = index.most_frequent()
        if pair is None:
            break
        merges[pair] = 256 + len(merges)
        index.merge(pair, merges[pair])
        if progress is not None:
            progress(len(merges), vocab_size - 256)
    return merges


def count_words(texts: str | bytes | Iterable[str | bytes], pattern: str | None = GPT2) -> dict[bytes, int]:
    """Count the different words of `texts` (one document or an iterable of documents).

    >>> count_words(["low low", "lower"])
    {b'low': 1, b' low': 1, b'lower': 1}
    """
    if isinstance(texts, (str, bytes)):
        texts = [texts]
    split = splitter(pattern) if pattern is not None else (lambda text: [text])
    words: Counter[str] = Counter()
    for number, text in enumerate(texts):
        words.update(split(as_text(text, f"document {number}")))
    del words[""]
    if not words:
        raise TokenizerError("there is no text to train on: every document is empty")
    return {word.encode(): count for word, count in words.items()}


def as_text(text: str | bytes, name: str) -> str:
    """Bytes as text, or an error that says where `name` stops being UTF-8; lone surrogates become U+FFFD."""
    if isinstance(text, str):
        return fix_surrogates(text)
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        bad = text[error.start]
        raise TokenizerError(f"{name} is not UTF-8 text: byte 0x{bad:02x} at offset {error.start}") from None


class PairIndex:
    """All words laid out in one row, with every pair's count and places kept up to date while pairs merge.

    `ids[i]` is the token at place `i`; `before[i]` and `after[i]` are its neighbours' places, since a merge leaves a
    hole: the pair at (i, j) becomes one token at i, and j is skipped from then on. `weight[i]` is how often i's word
    occurs.
    """

    def __init__(self, words: Mapping[bytes, int]) -> None:
        self.ids, self.weight = [BORDER], [0]
        for word, weight in words.items():
            self.ids += [*word, BORDER]
            self.weight += [weight] * (len(word) + 1)
        self.before = list(range(-1, len(self.ids) - 1))
        self.after = list(range(1, len(self.ids) + 1))
        self.count: defaultdict[Pair, int] = defaultdict(int)
        self.where: defaultdict[Pair, list[int]] = defaultdict(list)
        for place, pair in enumerate(pairwise(self.ids)):
            if BORDER not in pair:
                self.count[pair] += self.weight[place]
                self.where[pair].append(place)
        self.tokens = {byte: bytes([byte]) for byte in range(256)}
        self.heap = [self.entry(pair) for pair in self.count]
        heapify(self.heap)

    def entry(self, pair: Pair) -> tuple[int, bytes, Pair]:
        """What the heap sorts by, and so the rule for ties: this is the place to change it."""
        return -self.count[pair], self.tokens[pair[0]] + self.tokens[pair[1]], pair

    def most_frequent(self) -> Pair | None:
        """The pair with the highest count and, of equals, the first in the alphabet; None if no pair is left.

        Counts of old pairs only ever fall, so an entry of the heap may promise too much, never too little: one that
        comes up too high goes back with its true count.
        """
        while self.heap:
            promised, _, pair = self.heap[0]
            count = self.count.get(pair, 0)
            if count == -promised:
                return pair
            heappop(self.heap)
            if count:
                heappush(self.heap, self.entry(pair))
        return None

    def merge(self, pair: Pair, new: int) -> None:
        """Write `new` wherever `pair` stands, from left to right."""
        self.tokens[new] = self.tokens[pair[0]] + self.tokens[pair[1]]
        ids, before, after = self.ids, self.before, self.after
        born: set[Pair] = set()
        # subtle: the places in `where` ascend, because only this method adds to the list of a pair that holds `new`,
        # and it walks from left to right. So overlapping pairs (`aaa`) are merged leftmost first without sorting.
        for i in self.where.pop(pair):
            j = after[i]
            if (ids[i], ids[j]) != pair:
                continue  # an overlapping or a later merge has taken one half of it away
            weight, left, right = self.weight[i], before[i], after[j]
            for place, old, fresh in (
                (left, (ids[left], ids[i]), (ids[left], new)),
                (i, (ids[j], ids[right]), (new, ids[right])),
            ):
                if BORDER not in old:
                    self.count[old] -= weight
                    self.count[fresh] += weight
                    self.where[fresh].append(place)
                    born.add(fresh)
            ids[i], ids[j] = new, BORDER
            after[i], before[right] = right, i
        del self.count[pair]
        for fresh in born:
            if self.count[fresh]:  # it may have been born and lost again between two places of `pair`
                heappush(self.heap, self.entry(fresh))


# --------------------------------------------------------------------------------------------------- encoding


def encode(data: bytes, merges: Mapping[Pair, int]) -> list[int]:
    """Cut one piece of text into tokens *by merges*.

    >>> encode(b"aaabdaaabac", {(97, 97): 256, (256, 97): 257, (257, 98): 258})
    [258, 100, 258, 97, 99]
    """
    return merge(list(data), merges.get, range(256 + len(merges)))


def encode_by_ranks(data: bytes, ranks: Mapping[bytes, int], tokens: Mapping[int, bytes]) -> list[int]:
    """Cut one piece of text into tokens *by ranks*; `tokens` is `ranks` the other way round.

    >>> ranks = {b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"ab": 4, b"abc": 5}
    >>> tokens = {rank: token for token, rank in ranks.items()}
    >>> encode_by_ranks(b"abc", ranks, tokens), encode_by_ranks(b"abb", ranks, tokens)
    ([5], [4, 1])
    """
    if data in ranks:
        return [ranks[data]]
    parts = merge(single_bytes(data), lambda pair: ranks.get(pair[0] + pair[1]), tokens)
    return [ranks[part] for part in parts]


def single_bytes(data: bytes) -> list[bytes]:
    """`b"hi"` as `[b"h", b"i"]`."""
    return [data[i : i + 1] for i in range(len(data))]


def merge(
    tokens: Sequence[Token],
    rank_of: Callable[[tuple[Token, Token]], int | None],
    made: Sequence[Token] | Mapping[int, Token],
) -> list[Token]:
    """Merge neighbours, lowest rank first and leftmost of equals, until no pair has a rank: the end of `merge_stages`.

    `rank_of(pair)` is None for a pair that cannot merge; `made[rank]` is the token that takes the pair's place. Each
    pair waits in a heap as `rank * n + place`, one integer, so that the order of entries is the order of merging. A
    merge looks only at its two new neighbours, so all of it takes n log n. An entry is stale if its pair has meanwhile
    changed; then its rank no longer fits, and it is passed over.

    >>> merges = {(97, 97): 256, (256, 97): 257, (257, 98): 258}
    >>> merge(list(b"aaab"), merges.get, range(259)), merge(list(b"aaaa"), merges.get, range(259))
    ([258], [256, 256])
    """
    n = len(tokens)
    row: list[Any] = list(tokens)
    before, after = list(range(-1, n - 1)), list(range(1, n + 1))
    heap = [rank * n + i for i, pair in enumerate(pairwise(row)) if (rank := rank_of(pair)) is not None]
    heapify(heap)
    while heap:
        rank, i = divmod(heappop(heap), n)
        j = after[i]
        if row[i] is None or j == n or rank_of((row[i], row[j])) != rank:
            continue
        row[i], row[j] = made[rank], None
        after[i] = after[j]
        if after[j] < n:
            before[after[j]] = i
        for left, right in ((before[i], i), (i, after[i])):
            if left >= 0 and right < n and (fresh := rank_of((row[left], row[right]))) is not None:
                heappush(heap, fresh * n + left)
    return [token for token in row if token is not None]


def merge_stages(
    tokens: Sequence[Token],
    rank_of: Callable[[tuple[Token, Token]], int | None],
    made: Sequence[Token] | Mapping[int, Token],
) -> Iterator[list[Token]]:
    """`merge` as it is defined, stage by stage: look at all pairs, merge the best one, look again. Quadratic.

    >>> merges = {(97, 97): 256, (256, 97): 257, (257, 98): 258}
    >>> list(merge_stages(list(b"aaab"), merges.get, range(259)))
    [[97, 97, 97, 98], [256, 97, 98], [257, 98], [258]]
    """
    row = list(tokens)
    while True:
        yield row
        ranks = [rank_of(pair) for pair in pairwise(row)]
        best = min((rank for rank in ranks if rank is not None), default=None)
        if best is None:
            return
        place = ranks.index(best)
        row = [*row[:place], made[best], *row[place + 2 :]]


# --------------------------------------------------------------------------------------------------- decoding


def vocabulary(merges: Mapping[Pair, int]) -> list[bytes]:
    """The bytes of every token, by id. `merges` come in the order of the ids: each is its left half, then its right.

    >>> vocabulary({(97, 98): 256, (256, 99): 257})[256:]
    [b'ab', b'abc']
    """
    tokens = [bytes([byte]) for byte in range(256)]
    for left, right in merges:
        tokens.append(tokens[left] + tokens[right])
    return tokens


def decode(ids: Iterable[int], tokens: Sequence[bytes]) -> bytes:
    """The bytes that `ids` stand for. Decoding is only looking up; what takes care is turning bytes into text
    (`stream`).

    >>> decode([104, 256], [*vocabulary({}), b"i!"])
    b'hi!'
    """
    return b"".join([tokens[token] for token in ids])
