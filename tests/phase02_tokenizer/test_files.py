"""Vocabulary files of all kinds, read, refused and written."""

import base64
import json

import pytest
from tokenizing import hugging_face, random_texts, rank_file, tiktoken_peer

from minifer.errors import FormatError, ModelNotFoundError, TokenizerError, UnsupportedError
from minifer.formats.vocab_files import from_gguf
from minifer.tokenizer import Tokenizer, bpe
from minifer.tokenizer.pretokenize import GPT2, PATTERNS, fix_surrogates
from minifer.tokenizer.vocab import BYTE_LETTERS

CORPUS = (
    "The cat sat on the mat. The rat sat on the cat!\n  In 2024 the mat's 12 cats sat on 3 rats, naïve.\n"
    "Whoever decodes each token on its own turns characters into question marks; whoever waits for whole characters\n"
    "does not. Merging goes from left to right, and the pair with the highest count goes first. 1234567 😀😀\n"
) * 3


@pytest.fixture(scope="module")
def trained():
    """A vocabulary of 256 bytes, 44 merges and two control tokens."""
    return Tokenizer.from_merges(bpe.train(CORPUS, 300), special_tokens=["<|end|>", "<|turn|>"])


def gguf(**changes):
    """GGUF metadata of a vocabulary with one merge, a control token and a token that users may write."""
    tokens = [*BYTE_LETTERS, "ab", "<|end|>", "<tool>"]
    metadata = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [1] * 257 + [3, 4],
        "merges": ["a b"],
        "bos_token_id": 257,
        "eos_token_id": 257,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | changes).items() if value is not None}


# --------------------------------------------------------------------------------------------- GGUF


def test_gguf():
    """Tokens, types, control ids, and the pre-tokenizer by its name."""
    ours = Tokenizer(from_gguf(gguf()))
    assert ours.encode("ab12<|end|><tool>") == [256, 49, 50, *b"<|end|>", 258]
    assert ours.encode("ab<|end|>", allow_special=True) == [256, 257]
    assert ours.encode("ab", add_special=True) == [256]
    assert (ours.bos_id, ours.eos_ids, ours.vocab_size) == (257, (257,), 259)


def test_gguf_bos():
    """Asked for in the file, or by llama.cpp's habit for the pre-tokenizer's name."""
    assert Tokenizer(from_gguf(gguf(add_bos_token=True))).encode("ab", add_special=True) == [257, 256]
    assert Tokenizer(from_gguf(gguf(pre="llama-bpe"))).encode("ab", add_special=True) == [257, 256]
    assert Tokenizer(from_gguf(gguf(pre="llama-bpe", add_bos_token=False))).encode("ab", add_special=True) == [256]
    assert Tokenizer(from_gguf(gguf(add_eos_token=True))).encode("ab", add_special=True) == [256, 257]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"pre": "unheard-of"}, UnsupportedError, "'unheard-of'"),
        ({"pre": None}, UnsupportedError, "'None'"),
        ({"model": "llama"}, UnsupportedError, "'llama'"),
        ({"model": None}, UnsupportedError, "None"),
        ({"merges": []}, TokenizerError, "empty"),
        ({"merges": None}, TokenizerError, "lacks"),
        ({"merges": ["a b", "b z z"]}, TokenizerError, "merge 1"),
        ({"tokens": [*BYTE_LETTERS, "ab", "ab", "x"]}, TokenizerError, "'ab' has two ids, 256 and 257"),
        ({"token_type": [1]}, TokenizerError, "259 tokens, but 1 token types"),
        ({"eos_token_id": 999}, TokenizerError, "999"),
    ],
)
def test_bad_gguf(changes, error, message):
    """What is missing, unknown or contradictory, by name."""
    with pytest.raises(error, match=message):
        Tokenizer(from_gguf(gguf(**changes)))


# --------------------------------------------------------------------------------------------- missing bytes


def test_a_missing_byte_is_an_error_that_names_it():
    """SmolLM2 lacks 21 bytes; text with them is not encoded without a word about it."""
    tokens = [letter for letter in BYTE_LETTERS if letter != BYTE_LETTERS[4]] + ["ab"]
    file = from_gguf(gguf(tokens=tokens, token_type=[1] * 256, bos_token_id=None, eos_token_id=None))
    with pytest.raises(TokenizerError, match="no token for the byte 0x04"):
        Tokenizer(file).encode("fine\x04")
    assert Tokenizer(file, missing="drop").decode(Tokenizer(file, missing="drop").encode("fi\x04ne")) == "fine"
    assert Tokenizer(file).decode(Tokenizer(file).encode("fine")) == "fine"
    with pytest.raises(TokenizerError, match="missing='maybe'"):
        Tokenizer(file, missing="maybe")


@pytest.mark.model
def test_smollm2_lacks_21_bytes(smollm2):
    """13 that no UTF-8 has, two that start rare planes, and six control characters."""
    have = set(smollm2.vocabulary.token_bytes.values())
    lacking = [byte for byte in range(256) if bytes([byte]) not in have]
    assert lacking == [4, 6, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)]


# --------------------------------------------------------------------------------------------- rank files


def rank_lines(tokens):
    """The text of a rank file."""
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


BYTES = [bytes([byte]) for byte in range(256)]


def test_a_rank_file_needs_a_pattern(tmp_path):
    """The file cannot say how to cut text; tiktoken's own are known by name."""
    path = tmp_path / "mine.tiktoken"
    path.write_bytes(rank_lines([*BYTES, b"ab", b" ab"]))
    with pytest.raises(TokenizerError, match="give pattern="):
        Tokenizer.from_pretrained(path)
    assert Tokenizer.from_pretrained(path, pattern="gpt2").encode("ab ab") == [256, 257]
    assert Tokenizer.from_pretrained(path, pattern=r"[a-z]").encode("ab ab") == [97, 98, 32, 97, 98]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (rank_lines(BYTES[:-1]), "no token for the byte 0xff"),
        (rank_lines([*BYTES, b"a"]), "line 257"),
        (rank_lines(BYTES) + base64.b64encode(b"ab") + b" 7\n", "line 257"),
        (rank_lines(BYTES) + b"!!! 256\n", "line 257"),
        (rank_lines(BYTES) + b"YWI=\n", "line 257"),
        (rank_lines(BYTES) + b"YWI= x\n", "line 257"),
        (b"", "byte 0x00"),
    ],
)
def test_bad_rank_files(tmp_path, content, message):
    """A rank or a token that is there twice, a line that cannot be read: which one."""
    (tmp_path / "bad.tiktoken").write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_pretrained(tmp_path / "bad.tiktoken", pattern="gpt2")


# --------------------------------------------------------------------------------------------- saving


@pytest.mark.parametrize("pattern", PATTERNS)
def test_saved_json_loads_here_and_in_hugging_face(tmp_path, pattern):
    """The same ids three times: as trained, read again, and by Hugging Face."""
    pytest.importorskip("tokenizers")
    ours = Tokenizer.from_merges(bpe.train(CORPUS, 300, PATTERNS[pattern]), pattern=pattern, special_tokens=["<|end|>"])
    ours.save(tmp_path / "tokenizer.json")
    again = Tokenizer.from_pretrained(tmp_path / "tokenizer.json")
    theirs = hugging_face(json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8")))
    for text in [CORPUS, *map(fix_surrogates, random_texts(6, 300))]:
        assert ours.encode(text) == again.encode(text) == theirs.encode(text).ids, repr(text)
    theirs.encode_special_tokens = False
    assert again.encode("a<|end|>", allow_special=True) == theirs.encode("a<|end|>").ids == [97, 300]


def test_saved_ranks_load_here_and_in_tiktoken(tmp_path, trained):
    """A trained table says the same by ranks."""
    pytest.importorskip("tiktoken")
    trained.save(tmp_path / "mine.tiktoken")
    again = Tokenizer.from_pretrained(tmp_path / "mine.tiktoken", pattern=GPT2)
    theirs = tiktoken_peer(again.vocabulary.file.ranks, "gpt2", {})
    for text in [CORPUS, *random_texts(7, 500)]:
        assert trained.encode(text) == again.encode(text) == theirs.encode_ordinary(text), repr(text)


def test_a_saved_folder_keeps_eos_and_template(tmp_path, trained):
    """A folder is what Hugging Face's models come in."""
    trained.save(tmp_path / "model")
    again = Tokenizer.from_pretrained(tmp_path / "model")
    assert again.eos_ids == trained.eos_ids == (300,)
    assert again.special_tokens == {"<|end|>": 300, "<|turn|>": 301}


def test_saving_twice_gives_equal_bytes(tmp_path, trained):
    """Also after reading it back."""
    trained.save(tmp_path / "a.json")
    Tokenizer.from_pretrained(tmp_path / "a.json").save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_ranks_are_refused_where_they_would_lie(tmp_path, tiny):
    """The bundled vocabulary's merges (ids 3 + 256 on) are in order and can be ranks; an alphabet with gaps cannot."""
    tokens = [letter for letter in BYTE_LETTERS if letter != BYTE_LETTERS[4]] + ["ab"]
    file = from_gguf(gguf(tokens=tokens, token_type=[1] * 256, bos_token_id=None, eos_token_id=None))
    with pytest.raises(TokenizerError, match="ranks cannot say the same"):
        Tokenizer(file).save(tmp_path / "no.tiktoken")
    assert not (tmp_path / "no.tiktoken").exists()
    late_first = from_gguf(
        gguf(
            tokens=[*BYTE_LETTERS, "ab", "bc", "<end>"],
            merges=["b c", "a b"],
            token_type=[1] * 258 + [3],
            bos_token_id=258,
            eos_token_id=258,
        )
    )
    with pytest.raises(TokenizerError, match="ranks cannot say the same"):
        Tokenizer(late_first).save(tmp_path / "no.tiktoken")
    tiny.save(tmp_path / "yes.tiktoken")
    again = Tokenizer.from_pretrained(tmp_path / "yes.tiktoken", pattern="smollm")
    assert again.encode(CORPUS) == tiny.encode(CORPUS)


def test_openai_ranks_as_json(tmp_path, test_data):
    """Merges worked out from ranks cut a text as the ranks do."""
    ours = Tokenizer.from_pretrained(rank_file(test_data, "r50k_base"))
    ours.save(tmp_path / "r50k.json")
    again = Tokenizer.from_pretrained(tmp_path / "r50k.json")
    for text in [CORPUS, *random_texts(8, 300)]:
        assert again.encode(text) == ours.encode(text), repr(text)


# --------------------------------------------------------------------------------------------- folders and paths


def test_folder_with_a_sentencepiece_model_only(tmp_path):
    """Refused by name, as the file itself is."""
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(UnsupportedError, match="SentencePiece"):
        Tokenizer.from_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match="SentencePiece"):
        Tokenizer.from_pretrained(tmp_path / "tokenizer.model")


def test_nothing_there(tmp_path):
    """No file, an empty folder, a file of an unknown kind, random weights."""
    with pytest.raises(ModelNotFoundError, match=r"no tokenizer\.json"):
        Tokenizer.from_pretrained(tmp_path)
    with pytest.raises(ModelNotFoundError):
        Tokenizer.from_pretrained(tmp_path / "nowhere")
    (tmp_path / "a.txt").touch()
    with pytest.raises(UnsupportedError, match=r"a\.txt"):
        Tokenizer.from_pretrained(tmp_path / "a.txt")
    with pytest.raises(TokenizerError, match="random weights"):
        Tokenizer.from_pretrained("random:smollm2-135m")


def test_more_ends_in_generation_config(tmp_path, trained):
    """Chat models end a turn with another token than a text; both are ends."""
    trained.save(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [301, 300]}')
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] }}<|turn|>")
    again = Tokenizer.from_pretrained(tmp_path)
    assert again.eos_ids == (300, 301)
    assert again.apply_chat_template([{"role": "user", "content": "a<|turn|>"}]) == [
        97,
        *trained.encode("<|turn|>"),
        301,
    ]
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(FormatError, match="not JSON"):
        Tokenizer.from_pretrained(tmp_path)


def test_encode_wants_text(trained):
    """Bytes and None are refused with a word about what to do."""
    for value in (b"abc", None, 7):
        with pytest.raises(TokenizerError, match="needs a str"):
            trained.encode(value)


def test_the_memory_for_words_is_bounded(monkeypatch):
    """A server that runs for weeks meets ever new words, and long ones; the ids stay the same."""
    from minifer.tokenizer import tokenizer as module

    monkeypatch.setattr(module, "CACHE_PIECES", 5)
    ours = Tokenizer.from_merges(bpe.train(CORPUS, 300))
    fresh = Tokenizer.from_merges(bpe.train(CORPUS, 300))
    for number in range(40):
        word = f" w{chr(97 + number % 26)}{chr(97 + number // 26)}"
        assert ours.encode(word * 2) == fresh.encode(word) * 2
        assert len(ours._cache) <= 5
    ours.encode("x" * 1000)
    assert max(map(len, ours._cache)) <= module.CACHE_LONGEST
