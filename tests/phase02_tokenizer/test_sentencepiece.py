"""Llama 2's and Mistral's form of tokenizer.json: `▁` for a blank, bytes for what the vocabulary lacks.

The genuine vocabulary is in npm's `llama-tokenizer-js` (MINIFER_TEST_DATA), and Hugging Face is the judge.
"""

import base64
import re
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizing import hugging_face, random_texts

from minifer.errors import TokenizerError
from minifer.formats.vocab_files import from_json
from minifer.tokenizer import StreamDecoder, Tokenizer
from minifer.tokenizer.pretokenize import fix_surrogates

LLAMA2 = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}
DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def metaspace(scheme):
    """Newer files say it with a pre-tokenizer."""
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}


def spec(vocab, merges, **entries):
    """A tokenizer.json in SentencePiece's manner."""
    special = [{"id": vocab[name], "content": name, "special": True} for name in ("<unk>", "<s>", "</s>")]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [token | flags for token in special],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [vocab["<s>"]], "tokens": ["<s>"]}},
        },
        "decoder": DECODER,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    } | entries


@pytest.fixture(scope="module")
def tables(test_data):
    """Llama 2's 32,000 tokens and 61,249 merges."""
    source = (test_data / "llama-tokenizer-js" / "llama-tokenizer.js").read_text(encoding="utf-8")
    long_texts = sorted(re.findall(r'"([A-Za-z0-9+/=]{10000,})"|`([A-Za-z0-9+/=]{10000,})`', source), key=str)
    blobs = [base64.b64decode(double or tick) for double, tick in long_texts]
    tokens = next(blob for blob in blobs if b"<unk>" in blob[:20]).decode().split("\n")
    merges = next(blob for blob in blobs if b"<unk>" not in blob[:20])
    numbers = struct.unpack(f"<{len(merges) // 2}H", merges)
    pairs = [[tokens[left], tokens[right]] for left, right in zip(numbers[::2], numbers[1::2], strict=True)]
    assert len(tokens) == 32_000
    return {token: index for index, token in enumerate(tokens)}, pairs


@pytest.fixture(scope="module")
def llama2(tables):
    """Our tokenizer and Hugging Face's for the genuine vocabulary."""
    entry = spec(*tables, normalizer=LLAMA2)
    return Tokenizer(from_json(entry)), hugging_face(entry)


def test_known_ids(llama2):
    """Values from the documentation of llama-tokenizer-js and of Llama 2."""
    ours, _ = llama2
    assert ours.encode("Hello world", add_special=True) == [1, 15043, 3186]
    assert ours.encode("grabbed", add_special=True) == [1, 2646, 1327, 287]
    assert ours.encode("🦙") == [29871, 243, 162, 169, 156]
    assert ours.decode([15043, 3186]) == "Hello world"


def check(ours, theirs, texts):
    """Ids, the text back, and the text as a stream."""
    for text in map(fix_surrogates, texts):
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False).ids, repr(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False) == text.replace("▁", " ")
        stream = StreamDecoder(ours)
        assert "".join(map(stream.push, ids)) + stream.finish() == ours.decode(ids)


def test_llama2_equals_hugging_face(llama2):
    """Hostile strings by merges of characters, with bytes for the rest."""
    check(*llama2, [*random_texts(9, 2_000), "", " ", "  a", "▁a", "a▁", "<s>", "<0x41>", "\n\n\t"])


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_mistral_equals_hugging_face(tables, scheme):
    """Metaspace in its three ways. "first" gives nothing to a text that starts with a blank, so that blank is lost."""
    entry = spec(*tables, pre_tokenizer=metaspace(scheme))
    ours, theirs = Tokenizer(from_json(entry)), hugging_face(entry)
    for text in map(fix_surrogates, [*random_texts(10, 500), "", " ", "a b", " a"]):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, repr(text)


@pytest.mark.parametrize(
    "entry", [{"normalizer": LLAMA2}, {"pre_tokenizer": metaspace("first")}], ids=["llama", "mistral"]
)
def test_blank_after_a_special_token(tables, entry):
    """Llama 2's file puts `▁` before every stretch of text, Mistral's newer one before the first only."""
    entry = spec(*tables, **entry)
    ours, theirs = Tokenizer(from_json(entry)), hugging_face(entry)
    theirs.encode_special_tokens = False
    for text in ("a</s>b", "</s>b", "a</s> b", "</s>", "<s>a<s>b"):
        assert ours.encode(text, allow_special=True) == theirs.encode(text, add_special_tokens=False).ids, text


@settings(max_examples=200)
@given(text=st.text(max_size=30))
def test_every_text_comes_back(llama2, text):
    """`▁` itself is the one letter that this form cannot tell from a blank."""
    ours, _ = llama2
    if "▁" not in text:
        assert ours.decode(ours.encode(text)) == text


# ------------------------------------------------------------------------------------------- without the download

SMALL = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4, "b": 5, "▁a": 6}


def small(**model):
    """Seven tokens."""
    entry = spec(SMALL, [["▁", "a"]], normalizer=LLAMA2)
    entry["model"] |= model
    return entry


@pytest.mark.parametrize("fuse", [True, False])
def test_unknown_characters_equal_hugging_face(fuse):
    """Without byte tokens unknown characters become `<unk>`, one for each or one for a run."""
    pytest.importorskip("tokenizers")
    entry = small(fuse_unk=fuse)
    for text in ("xy", "axyb", "x", "axbx y"):
        ours = Tokenizer(from_json(entry)).encode(text)
        assert ours == hugging_face(entry).encode(text, add_special_tokens=False).ids, text


def test_unknown_characters_without_a_token_for_them():
    """Neither bytes nor `<unk>`: the character is named."""
    with pytest.raises(TokenizerError, match="no token for the character 'x'"):
        Tokenizer(from_json(small(unk_token=None))).encode("ax")


def test_unk_token_must_exist():
    """A name that no token has."""
    with pytest.raises(TokenizerError, match="'<none>' is not in the vocabulary"):
        from_json(small(unk_token="<none>"))
