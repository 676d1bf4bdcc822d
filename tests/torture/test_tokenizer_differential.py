"""Long comparisons with tiktoken and Hugging Face tokenizers: more than 200,000 hostile strings in all."""

import random

import pytest
from tokenizing import hugging_face, naive_train, random_text, random_texts, rank_pair

from minifer.formats.vocab_files import from_json
from minifer.hub import tiny_folder
from minifer.tokenizer import StreamDecoder, Tokenizer, bpe
from minifer.tokenizer.pretokenize import GPT2, fix_surrogates
from minifer.tokenizer.vocab import with_cut

COUNT = 60_000  # for each of four vocabularies


@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base", "o200k_base"])
def test_equals_tiktoken(test_data, name):
    """Ids of every string, and of the strings in one long text."""
    pytest.importorskip("tiktoken")
    ours, theirs = rank_pair(test_data, name)
    for text in random_texts(101, COUNT):
        assert ours.encode(text) == theirs.encode_ordinary(text), repr(text)
    joined = "".join(random_texts(102, COUNT // 20))
    assert ours.encode(joined) == theirs.encode_ordinary(joined)


@pytest.mark.model
def test_smollm2_equals_hugging_face(smollm2_path):
    """Ids, text back, and the text as a stream."""
    pytest.importorskip("tokenizers")
    ours = Tokenizer.from_pretrained(smollm2_path, missing="drop")
    theirs = hugging_face(with_cut(ours.vocabulary.file))
    for text in map(fix_surrogates, random_texts(103, COUNT)):
        ids = ours.encode(text)
        assert ids == theirs.encode(text).ids, repr(text)
        stream = StreamDecoder(ours, skip_special=False)
        assert "".join(map(stream.push, ids)) + stream.finish() == ours.decode(ids) == theirs.decode(ids, False)


@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base", "o200k_base"])
def test_rank_files_as_tokenizer_json(test_data, tmp_path, name):
    """Saved as tokenizer.json, with merges worked out from the ranks, Hugging Face cuts as tiktoken does."""
    pytest.importorskip("tokenizers")
    ours, theirs = rank_pair(test_data, name)
    ours.save(tmp_path / "tokenizer.json")
    again = Tokenizer.from_pretrained(tmp_path / "tokenizer.json")
    peer = hugging_face(again.vocabulary.file.spec)
    for text in map(fix_surrogates, random_texts(104, COUNT // 20)):
        assert theirs.encode_ordinary(text) == again.encode(text) == peer.encode(text).ids, repr(text)


def test_added_tokens_equal_hugging_face():
    """Tokens with all mixtures of flags, in texts full of them."""
    pytest.importorskip("tokenizers")
    tiny = Tokenizer.from_pretrained(tiny_folder())
    rng = random.Random(105)
    for _ in range(300):
        added = []
        for number, name in enumerate(rng.sample(["<L>", "<R>", "<LR>", "a b", "é!", "<<"], 4)):
            flags = {flag: rng.random() < 0.5 for flag in ("lstrip", "rstrip", "normalized")}
            entry = {"id": tiny.vocab_size + number, "content": name, "special": False, "single_word": False}
            added.append({**entry, **flags})
        normalizer = rng.choice([None, {"type": "NFC"}])
        spec = dict(tiny.vocabulary.file.spec) | {"added_tokens": added, "normalizer": normalizer}
        ours, theirs = Tokenizer(from_json(spec)), hugging_face(spec)
        for _ in range(60):
            parts = rng.choices(
                [token["content"] for token in added] + ["a", " ", "\t ", "e\u0301", "\x1c", "\u3000"], k=8
            )
            text = "".join(parts) + random_text(rng) * (rng.random() < 0.2)
            text = fix_surrogates(text)
            assert ours.encode(text) == theirs.encode(text).ids, (text, added, normalizer)


def test_fast_trainer_equals_the_definition():
    """Hundreds of small corpora, words weighed and cut, to the last merge."""
    rng = random.Random(106)
    for _ in range(400):
        texts = ["".join(rng.choices("abc \n"[: rng.randint(1, 5)], k=rng.randint(1, 200))) for _ in range(3)]
        words = bpe.count_words(texts, GPT2)
        assert bpe.train(texts, 356, GPT2) == naive_train(words, 100)
