"""Text as tokens arrive: whole characters, and in the end the same text."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifer.errors import TokenizerError
from minifer.formats.vocab_files import from_json
from minifer.tokenizer import StreamDecoder, Tokenizer


@cache
def bytes_only():
    """Bytes, two merges and a special token; made by a test, since a student may not have written `vocabulary` yet."""
    return Tokenizer.from_merges({(240, 159): 256, (256, 145): 257}, special_tokens=["<|end|>"])


def sentencepiece():
    """A small vocabulary in SentencePiece's manner, as Llama 2 has it."""
    tokens = [
        "<s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"▁inthehousxlad",
        "▁in",
        "▁the",
        "▁house",
        "▁leading",
        "▁x",
    ]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    model = {"type": "BPE", "vocab": vocab, "merges": [["▁", "x"]], "byte_fallback": True}
    return Tokenizer(from_json({"model": model, "decoder": {"type": "Sequence", "decoders": steps}}))


SPM = sentencepiece()


@given(st.lists(st.integers(0, 258), max_size=30), st.booleans())
def test_stream_equals_whole_text(ids, skip_special):
    """Any tokens, sense or nonsense: the joined stream is what decoding everything gives."""
    decoder = StreamDecoder(bytes_only(), skip_special)
    parts = [decoder.push(index) for index in ids] + [decoder.finish()]
    assert "".join(parts) == bytes_only().decode(ids, skip_special)


@given(st.lists(st.integers(0, SPM.vocab_size - 1), max_size=30))
def test_stream_equals_whole_text_sentencepiece(ids):
    """The same where a leading blank is dropped."""
    decoder = StreamDecoder(SPM)
    parts = [decoder.push(index) for index in ids] + [decoder.finish()]
    assert "".join(parts) == SPM.decode(ids)


@given(st.text(max_size=20))
def test_no_broken_character_ever(text):
    """Valid text streams without U+FFFD, and each character comes with its last byte."""
    decoder, seen = StreamDecoder(bytes_only()), ""
    ids = bytes_only().encode(text)
    for count, index in enumerate(ids, 1):
        seen += decoder.push(index)
        whole = bytes_only().decode_bytes(ids[:count])
        assert seen == whole.decode("utf-8", "ignore")
    assert decoder.finish() == ""


def test_nothing_is_lost_at_the_end():
    """Half a llama, then the end: the half is shown as U+FFFD, once."""
    decoder = StreamDecoder(bytes_only())
    assert [decoder.push(index) for index in (240, 159, 166)] == ["", "", ""]
    assert decoder.finish() == "\ufffd"
    assert decoder.finish() == ""


def test_a_control_token_between_two_halves():
    """Left out when skipped, so the halves meet; shown otherwise, and the first half is broken."""
    thumb = list("👍".encode())
    skipping, showing = StreamDecoder(bytes_only()), StreamDecoder(bytes_only(), skip_special=False)
    ids = [*thumb[:2], 258, *thumb[2:]]
    assert "".join(skipping.push(index) for index in ids) == "👍"
    assert "".join(showing.push(index) for index in ids) + showing.finish() == "\ufffd<|end|>\ufffd\ufffd"


@pytest.mark.parametrize(
    ("tokens", "text"),
    [(["▁in", "▁the", "▁house"], "in the house"), (["▁", "▁leading", "▁x"], " leading x"), (["<0x20>", "x"], "x")],
)
def test_one_leading_blank_per_sequence(tokens, text):
    """Not one per token, and not all that the first token has."""
    ids = [SPM.vocabulary.file.vocab[token] for token in tokens]
    decoder = StreamDecoder(SPM)
    assert SPM.decode(ids) == text
    assert "".join(decoder.push(index) for index in ids) == text


@pytest.mark.parametrize("bad", [-1, 259, 10**12, None, "7"])
def test_no_such_token(bad):
    """An id that the vocabulary does not have is named."""
    with pytest.raises(TokenizerError, match="no token id"):
        StreamDecoder(bytes_only()).push(bad)
    with pytest.raises(TokenizerError, match="no token id"):
        bytes_only().decode([65, bad])
