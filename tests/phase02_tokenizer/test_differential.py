"""The same ids as tiktoken and Hugging Face on 20,000 hostile strings; the long runs are in tests/torture."""

import pytest
from tokenizing import hugging_face, random_texts, rank_pair

from minifer.formats.vocab_files import from_json
from minifer.tokenizer import Tokenizer
from minifer.tokenizer.pretokenize import PATTERNS, fix_surrogates, json_of
from minifer.tokenizer.vocab import with_cut

COUNT = 5_000  # for each of four vocabularies


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base", "o200k_base"])
def test_equals_tiktoken(test_data, name, seed):
    """By ranks, with OpenAI's own files; and the text comes back."""
    pytest.importorskip("tiktoken")
    ours, theirs = rank_pair(test_data, name)
    for text in random_texts(seed, COUNT):
        ids = ours.encode(text)
        assert ids == theirs.encode_ordinary(text), repr(text)
        assert ours.decode(ids) == fix_surrogates(text)


def compare_with_hugging_face(ours, texts):
    """Ids, and decoding the ids again, special tokens and all."""
    theirs = hugging_face(with_cut(ours.vocabulary.file))
    for text in map(fix_surrogates, texts):
        ids = ours.encode(text)
        assert ids == theirs.encode(text).ids, repr(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False), repr(text)


@pytest.mark.model
def test_smollm2_equals_hugging_face(smollm2_path):
    """By merges. The vocabulary lacks 21 bytes, which Hugging Face leaves out in silence; so here with "drop"."""
    pytest.importorskip("tokenizers")
    compare_with_hugging_face(Tokenizer.from_pretrained(smollm2_path, missing="drop"), random_texts(2, COUNT))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_equals_hugging_face(tiny, pattern):
    """Each family's way to cut text, written into the bundled vocabulary's tokenizer.json."""
    pytest.importorskip("tokenizers")
    spec = dict(tiny.vocabulary.file.spec) | {"pre_tokenizer": json_of(PATTERNS[pattern])}
    compare_with_hugging_face(Tokenizer(from_json(spec)), random_texts(3, COUNT // 5))


def test_tiny_equals_hugging_face(tiny):
    """The bundled vocabulary as it is."""
    pytest.importorskip("tokenizers")
    compare_with_hugging_face(tiny, random_texts(4, COUNT))
    assert all(tiny.decode(tiny.encode(text)) == fix_surrogates(text) for text in random_texts(5, COUNT))
