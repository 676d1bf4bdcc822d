"""Training and merging: the fast ways against the definition, and cases worked out by hand."""

import os
import random
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizing import naive_train

from minifer.errors import TokenizerError
from minifer.tokenizer import bpe

FEW_LETTERS = st.lists(st.text("ab", max_size=40) | st.text("abc", max_size=30), max_size=5)


def spelled(merges):
    """Merges as pairs of bytes, which read better than ids."""
    tokens = bpe.vocabulary(merges)
    return [(tokens[left], tokens[right]) for left, right in merges]


# ------------------------------------------------------------------------------------------------- training


def test_textbook_example():
    """Gage's example: three merges, and the text in the new tokens."""
    merges = bpe.train("aaabdaaabac", 259, pattern=None)
    assert merges == {(97, 97): 256, (256, 97): 257, (257, 98): 258}
    assert bpe.encode(b"aaabdaaabac", merges) == [258, 100, 258, 97, 99]


@pytest.mark.parametrize("text", ["zzzwwwwyyyxxxx", "xxxxyyywwwwzzz"])
def test_ties_do_not_see_the_order_of_the_text(text):
    """Equal counts go by the alphabet, wherever the pairs stood."""
    merges = bpe.train(text, 260, pattern=None)
    assert spelled(merges) == [(b"w", b"w"), (b"x", b"x"), (b"y", b"y"), (b"z", b"z")]


def test_a_tie_between_old_and_new_tokens():
    """(k, ml) and (ml, k) stand equally often; `kml` comes before `mlk`."""
    assert spelled(bpe.train("kmlkmlmlk", 258, pattern=None)) == [(b"m", b"l"), (b"k", b"ml")]


@given(FEW_LETTERS, st.integers(0, 40))
def test_fast_trainer_equals_the_definition(texts, merges):
    """Few letters mean many overlaps and ties, where incremental counts go wrong first."""
    words = Counter(text.encode() for text in texts)
    del words[b""]
    if words:
        assert bpe.train([word.decode() for word in words.elements()], 256 + merges, None) == naive_train(words, merges)


@given(st.permutations(["low low lower", "newest", "widest  widest", "wide\nlow", "éé éa"]))
def test_order_of_documents_does_not_matter(texts):
    """The same merges in the same order, from any order of documents."""
    assert list(bpe.train(texts, 280).items()) == list(bpe.train(sorted(texts), 280).items())


def test_hash_seed_does_not_matter():
    """Two processes that hash differently write the same table."""
    code = "from minifer.tokenizer.bpe import train; print(train(['tan ten tin ton', 'net not nut nit'], 290))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        )
        for seed in ("1", "4242")
    ]
    assert runs[0].stdout == runs[1].stdout != b""


def test_the_oracle_is_hugging_faces_trainer():
    """With Hugging Face's rule for ties the naive trainer makes Hugging Face's merges, so it is a fair oracle."""
    tokenizers = pytest.importorskip("tokenizers")
    rng = random.Random(5)
    for _ in range(40):
        texts = ["".join(rng.choices("abcd", k=rng.randint(2, 30))) for _ in range(rng.randint(1, 8))]
        peer = tokenizers.Tokenizer(tokenizers.models.BPE())
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=4 + 12, show_progress=False, initial_alphabet=list("abcd"))
        peer.train_from_iterator(texts, trainer)
        vocab = sorted(peer.get_vocab().items(), key=lambda item: item[1])
        ours = naive_train(Counter(text.encode() for text in texts), 12, tie="ids")
        assert [token for token, _ in vocab[4:]] == [(left + right).decode() for left, right in spelled(ours)]


@given(st.text("ab ", min_size=1, max_size=60))
def test_no_token_is_made_twice(text):
    """Two different pairs never spell the same bytes, so a table can also be saved as a dictionary of tokens."""
    tokens = bpe.vocabulary(bpe.train(text, 330))
    assert len(tokens) == len(set(tokens))


def test_training_stops_when_nothing_is_left_to_merge():
    """`abc` has two merges in it, however large the vocabulary may be."""
    assert spelled(bpe.train("abc", 1000)) == [(b"a", b"b"), (b"ab", b"c")]
    assert bpe.train("abc", 256) == {}


def test_progress_counts_merges():
    """`progress` hears of every merge, with the total."""
    seen = []
    bpe.train("abcabc", 258, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("texts", "size", "message"),
    [
        ("", 300, "no text"),
        ([], 300, "no text"),
        (["", b""], 300, "no text"),
        ("abc", 255, "255"),
        (["fine", b"ab\xffc"], 300, "document 1 is not UTF-8 text: byte 0xff at offset 2"),
    ],
)
def test_bad_input_is_named(texts, size, message):
    """What was wrong, and where."""
    with pytest.raises(TokenizerError, match=message):
        bpe.train(texts, size)


def test_words_are_cut_and_weighed():
    """No merge crosses a word's border, and a word that is there a hundred times counts a hundred times."""
    assert bpe.count_words(["ab ab", b"ab"]) == {b"ab": 2, b" ab": 1}
    assert spelled(bpe.train(["xy"] * 3 + ["ab cd"] * 2, 257)) == [(b"x", b"y")]
    assert (b"b ", b"c") not in spelled(bpe.train("ab cd " * 50, 270))


def test_a_lone_surrogate_is_trained_as_the_replacement_character():
    """Half a character has no bytes; it is U+FFFD here as everywhere."""
    assert bpe.count_words("a\ud83d", None) == {b"a\xef\xbf\xbd": 1}


# ------------------------------------------------------------------------------------------------- encoding

TOY = {(98, 99): 256, (97, 98): 257, (257, 99): 258}  # (b, c), (a, b), (ab, c)


def test_the_two_rules_differ():
    """By merges `abc` is a + bc; by ranks it is a token as a whole, and so is a + bc."""
    tokens = dict(enumerate(bpe.vocabulary(TOY)))
    ranks = {token: index for index, token in tokens.items()}
    assert bpe.encode(b"abc", TOY) == [97, 256]
    assert bpe.encode_by_ranks(b"abc", ranks, tokens) == [258]
    assert bpe.encode_by_ranks(b"xabc", ranks, tokens) == [120, 258]  # merges meet a + bc and find abc


@given(st.text("ab", min_size=1, max_size=50), st.text("abc", max_size=200))
def test_trained_tables_mean_the_same_under_both_rules(corpus, text):
    """Where each token has one pair, in order, ranks and merges must agree."""
    merges = bpe.train(corpus, 280, pattern=None)
    tokens = dict(enumerate(bpe.vocabulary(merges)))
    ranks = {token: index for index, token in tokens.items()}
    assert bpe.encode_by_ranks(text.encode(), ranks, tokens) == bpe.encode(text.encode(), merges)


@given(
    st.dictionaries(st.tuples(st.integers(0, 6), st.integers(0, 6)), st.integers(0, 30)), st.lists(st.integers(0, 3))
)
def test_quick_merging_equals_the_definition(ranks, tokens):
    """Also for tables that no training makes: ranks out of order, shared ranks, a result that merges at once again."""
    made = [(7 * rank + 3) % 7 for rank in range(31)]
    ranks = {pair: rank for pair, rank in ranks.items() if made[rank] > max(pair)}  # so that merging ends
    assert bpe.merge(tokens, ranks.get, made) == list(bpe.merge_stages(tokens, ranks.get, made))[-1]


def test_a_whole_token_that_no_merge_reaches():
    """tiktoken looks a whole piece up before it merges."""
    ranks = {b"a": 0, b"b": 1, b"c": 2, b"abc": 3}
    tokens = {rank: token for token, rank in ranks.items()}
    assert bpe.encode_by_ranks(b"abc", ranks, tokens) == [3]
    assert bpe.encode_by_ranks(b"abca", ranks, tokens) == [0, 1, 2, 0]


@pytest.mark.parametrize("unit", ["a", "ab", "aab"])
def test_work_grows_with_the_length_not_with_its_square(unit):
    """Look-ups are counted, not seconds: twice the text, about twice the look-ups."""
    merges = bpe.train("aabaabab" * 20, 290, pattern=None)
    lookups = []
    for length in (1000, 2000):
        count = 0

        def rank_of(pair):
            nonlocal count
            count += 1
            return merges.get(pair)

        bpe.merge(list((unit * length)[:length].encode()), rank_of, range(256 + len(merges)))
        lookups.append(count)
    assert lookups[1] < 2.1 * lookups[0], "twice the text took four times the look-ups: see hint 3 of task 2.2"


@given(st.binary(max_size=120))
def test_bytes_come_back(data):
    """Any bytes at all, text or not."""
    merges = bpe.train("the cat sat on the mat, the rat sat on the cat", 290)
    assert bpe.decode(bpe.encode(data, merges), bpe.vocabulary(merges)) == data
