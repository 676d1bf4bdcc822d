"""The lab tasks of phase 02: merging against its definition, training against counting anew, text in pieces."""

from collections import Counter
from itertools import pairwise

import pytest

from minifer.errors import TokenizerError
from minifer.tokenizer import Tokenizer, bpe
from minifer.tokenizer.stream import StreamDecoder


def random_bytes(rng, size, letters=b"abc"):
    """Bytes with many repeats."""
    return bytes(rng.choice(list(letters), size))


def random_merges(rng, count):
    """Merges of random earlier tokens."""
    known, merges = [97, 98, 99], {}
    while len(merges) < count:
        pair = (int(rng.choice(known)), int(rng.choice(known)))
        if pair not in merges:
            known.append(256 + len(merges))
            merges[pair] = known[-1]
    return merges


def trained_by_counting(data, size):
    """The definition: count all pairs again after each merge."""
    row, merges, spelt = list(data), {}, {i: bytes([i]) for i in range(256)}
    while len(merges) < size - 256:
        counts = Counter(pairwise(row))
        if not counts:
            break
        pair = min(counts, key=lambda p: (-counts[p], spelt[p[0]] + spelt[p[1]], p))
        new = 256 + len(merges)
        merges[pair], spelt[new] = new, spelt[pair[0]] + spelt[pair[1]]
        out = []
        while row:
            if tuple(row[:2]) == pair:
                out.append(new)
                row = row[2:]
            else:
                out.append(row.pop(0))
        row = out
    return merges


@pytest.mark.task("2.1")
def test_vocabulary_spells_merges_of_merges(rng):
    """Every merge is its left half and its right half."""
    merges = random_merges(rng, 12)
    tokens = bpe.vocabulary(merges)
    assert tokens[:256] == [bytes([i]) for i in range(256)]
    assert [tokens[new] for new in merges.values()] == [tokens[a] + tokens[b] for a, b in merges]


@pytest.mark.task("2.1")
def test_vocabulary_by_hand():
    """All single bytes, then the merges."""
    assert bpe.vocabulary({(97, 98): 256, (256, 99): 257, (99, 257): 258})[254:] == [
        b"\xfe", b"\xff", b"ab", b"abc", b"cabc"
    ]  # fmt: skip


@pytest.mark.task("2.2")
def test_merge_is_its_definition(rng):
    """The last stage of `merge_stages`, for many texts and tables."""
    for size in (0, 1, 2, 3, 9, 40, 40, 40):
        merges = random_merges(rng, 10)
        data = list(random_bytes(rng, size))
        *_, want = bpe.merge_stages(data, merges.get, range(266))
        assert bpe.merge(data, merges.get, range(266)) == want


@pytest.mark.task("2.2")
def test_merge_takes_the_lowest_rank_leftmost_first():
    """Three letters that overlap, and a later merge made of an earlier one."""
    assert bpe.merge(list(b"aaa"), {(97, 97): 256}.get, range(257)) == [256, 97]
    assert bpe.merge(list(b"abc"), {(98, 99): 256, (97, 98): 257}.get, range(258)) == [97, 256]
    assert bpe.merge(list(b"aaaa"), {(97, 97): 256, (256, 256): 257}.get, range(258)) == [257]


@pytest.mark.task("2.2")
def test_merge_leaves_its_argument_alone():
    """The caller's list is not changed, and a token may be 0."""
    row = [0, 0, 5]
    assert bpe.merge(row, {(0, 0): 6}.get, range(9)) == [6, 5]
    assert row == [0, 0, 5]


@pytest.mark.task("2.2")
def test_merge_does_not_start_again_after_each_merge():
    """Look-ups are counted: twice the text should take twice as many, and a search from the start takes four times."""
    ranks, counts = {(97, 98): 256, (256, 256): 257}, []
    for size in (300, 600):
        asked = []

        def rank_of(pair, asked=asked):
            asked.append(pair)
            return ranks.get(pair)

        assert bpe.merge([97, 98] * size, rank_of, range(258)) == [257] * (size // 2)
        counts.append(len(asked))
    assert counts[1] < 2.5 * counts[0], f"{counts[0]} look-ups, and {counts[1]} for twice the text: see hint 3"


@pytest.mark.task("2.3")
def test_train_is_counting_anew(rng):
    """Random texts, as one word each."""
    for size in (1, 2, 5, 60, 90):
        data = random_bytes(rng, size)
        assert list(bpe.train(data, 270, pattern=None).items()) == list(trained_by_counting(data, 270).items())


@pytest.mark.task("2.3")
def test_train_stops_at_the_size_or_without_pairs():
    """No more than asked for; fewer if the text runs out; none for 256."""
    assert bpe.train("aaabdaaabac", 259, pattern=None) == {(97, 97): 256, (256, 97): 257, (257, 98): 258}
    assert bpe.train("ab", 300, pattern=None) == {(97, 98): 256}
    assert bpe.train("abab", 256, pattern=None) == {}


@pytest.mark.task("2.3")
def test_train_reports_and_refuses():
    """Progress after each merge; 255 tokens are too few, and the error says 255."""
    seen = []
    bpe.train("abababcdcd", 259, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    with pytest.raises(TokenizerError, match="255"):
        bpe.train("abc", 255)


@pytest.mark.task("2.4")
def test_push_holds_back_unfinished_characters(rng):
    """Byte tokens: joined they are the text, and nothing broken is shown on the way."""
    tokenizer = Tokenizer.from_merges({})
    text = "".join(rng.choice(list("aé漢👍 🦙ß"), 20))
    decoder = StreamDecoder(tokenizer)
    shown = [decoder.push(byte) for byte in text.encode()]
    assert "".join(shown) == text
    assert "\ufffd" not in "".join(shown)
    assert decoder.finish() == ""


@pytest.mark.task("2.4")
def test_push_skips_special_tokens_if_asked(tiny_path):
    """An end token gives no text, unless it is wanted; the blank at the start stays where it is text."""
    tokenizer = Tokenizer.from_pretrained(tiny_path)
    special = next(i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i))
    assert StreamDecoder(tokenizer).push(special) == ""
    assert StreamDecoder(tokenizer, skip_special=False).push(special) == tokenizer.token_bytes(special).decode()
    decoder, ids = StreamDecoder(tokenizer), tokenizer.encode(" once upon")
    assert "".join(decoder.push(i) for i in ids) == " once upon"


@pytest.mark.task("2.4")
def test_push_drops_one_leading_blank_once():
    """SentencePiece's habit: the first blank is not text, the second is."""
    decoder = StreamDecoder(Tokenizer.from_merges({}))
    decoder._at_start = True
    assert [decoder.push(byte) for byte in b"  a b"] == ["", " ", "a", " ", "b"]
    decoder = StreamDecoder(Tokenizer.from_merges({(32, 32): 256}))
    decoder._at_start = True
    assert [decoder.push(index) for index in (256, 256)] == [" ", "  "], "one blank of a token that holds two"


@pytest.mark.task("2.4")
def test_a_special_token_between_two_halves():
    """Skipped, it leaves the half-finished character as it is; shown, it is text, and the half is broken."""
    tokenizer = Tokenizer.from_merges({}, special_tokens=["<|end|>"])
    first, second = "é".encode()
    for skip, want in ((True, ["", "", "é"]), (False, ["", "\ufffd<|end|>", "\ufffd"])):
        decoder = StreamDecoder(tokenizer, skip_special=skip)
        assert [decoder.push(index) for index in (first, 256, second)] == want
