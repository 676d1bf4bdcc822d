"""`minifer tokenize`, `minifer train-tokenizer` and `minifer bench tokenizer` on the command line."""

import json

import pytest

from minifer.apps import cli
from minifer.apps.tokenizer_cli import SENTENCE, show
from minifer.tokenizer import Tokenizer


def run(capsys, *words):
    status = cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def letters(tmp_path):
    """A vocabulary of bytes, two merges and one control token, as a folder."""
    Tokenizer.from_merges({(97, 98): 256, (256, 99): 257}, special_tokens=["<|end|>"]).save(tmp_path / "letters")
    return tmp_path / "letters"


def test_pieces_and_ids(capsys, letters):
    """Pieces stand above their ids; a blank and a line end can be seen."""
    status, out, err = run(capsys, "tokenize", letters, "abcab é\n")
    assert (status, err) == (0, "")
    above, below, _, summary = out.splitlines()
    assert [cell.strip() for cell in above.split("|")[:-1]] == ["abc", "ab", "·", "<c3>", "<a9>", "↵"]
    assert [cell.strip() for cell in below.split("|")[:-1]] == ["257", "256", "32", "195", "169", "10"]
    assert [i for i, c in enumerate(above) if c == "|"] == [i for i, c in enumerate(below) if c == "|"]
    assert summary == "6 tokens, 8 characters, 9 bytes: 1.50 bytes per token"


def test_every_merge_in_order(capsys, letters):
    """From bytes to tokens, one line for each merge; a piece that comes twice is shown once."""
    _, out, _ = run(capsys, "tokenize", letters, "abc abc", "--merges")
    assert "  0  a b c\n  1  ab c\n  2  abc\n\n  0  · a b c\n  1  · ab c\n  2  · abc\n\n3 tokens" in out


def test_price(capsys, letters):
    """Three tokens at 3.0 per million."""
    _, out, _ = run(capsys, "tokenize", letters, "abc!?", "--price", "3.0")
    assert out.endswith("at 3 per million tokens: 0.000009\n")
    assert run(capsys, "tokenize", letters, "abc", "--price", "nan")[0] == 2
    assert run(capsys, "tokenize", letters, "abc", "--price", "-1")[0] == 2


def test_json(capsys, letters):
    """Everything as data."""
    _, out, _ = run(capsys, "tokenize", letters, "abé", "--json", "--price", "1", "--merges")
    report = json.loads(out)
    assert [token["id"] for token in report["tokens"]] == [256, 195, 169]
    assert [token["bytes"] for token in report["tokens"]] == ["6162", "c3", "a9"]
    assert (report["count"], report["characters"], report["bytes"], report["price"]) == (3, 3, 4, 3e-6)
    assert report["merges"] == [{"piece": "abé", "stages": [["a", "b", "<c3>", "<a9>"], ["ab", "<c3>", "<a9>"]]}]


def test_control_tokens_only_on_request(capsys, letters):
    """What a user types is text."""
    assert json.loads(run(capsys, "tokenize", letters, "<|end|>", "--json")[1])["count"] == 7
    assert json.loads(run(capsys, "tokenize", letters, "<|end|>", "--json", "--allow-special")[1])["count"] == 1


def test_languages(capsys, letters):
    """One row for each language, compared with English."""
    _, out, _ = run(capsys, "tokenize", letters, "--languages", "--price", "2")
    assert all(language in out for language in SENTENCE)
    rows = json.loads(run(capsys, "tokenize", letters, "--languages", "--json")[1])["rows"]
    assert [row["language"] for row in rows] == list(SENTENCE)
    assert rows[0]["times_english"] == 1.0
    assert all(row["tokens_per_byte"] <= 1 for row in rows)


def test_a_rank_file_and_its_pattern(capsys, letters, tmp_path):
    """The file has to be told how to cut."""
    Tokenizer.from_pretrained(letters).save(tmp_path / "x.tiktoken")
    assert run(capsys, "tokenize", tmp_path / "x.tiktoken", "abc")[::2] == (
        2,
        "minifer: x.tiktoken does not say how to cut text; give pattern=, a name or a regex\n",
    )
    assert "abc" in run(capsys, "tokenize", tmp_path / "x.tiktoken", "abc", "--merges", "--pattern", "gpt2")[1]


def test_train(capsys, tmp_path):
    """From files to a folder that can be loaded; counts, bar and all."""
    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 3, encoding="utf-8")
    (tmp_path / "b.txt").write_text("naïve 中文\n", encoding="utf-8")
    words = ["train-tokenizer", tmp_path / "a.txt", tmp_path / "b.txt", "--vocab-size", "270", "-o", tmp_path / "out"]
    status, out, err = run(capsys, *words, "--special", "<|end|>", "--special", "<|pad|>")
    assert status == 0
    assert out.startswith("270 tokens: 256 bytes, 12 merges, 2 control\n")
    assert "12/12" in err
    made = Tokenizer.from_pretrained(tmp_path / "out")
    assert (made.vocab_size, made.eos_ids, made.special_tokens) == (270, (268,), {"<|end|>": 268, "<|pad|>": 269})
    assert made.decode(made.encode("the naïve cat 中文")) == "the naïve cat 中文"


def test_train_says_when_the_text_runs_out(capsys, tmp_path):
    """A short text cannot fill a large vocabulary."""
    (tmp_path / "a.txt").write_text("abc", encoding="utf-8")
    _, out, _ = run(capsys, "train-tokenizer", tmp_path / "a.txt", "--vocab-size", "1000", "-o", tmp_path / "out")
    assert "fewer than the 1,000 asked for" in out


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (b"", [], "no text to train on"),
        (b"ab\xff", [], "a.txt is not UTF-8 text: byte 0xff at offset 2"),
        (b"abc", ["--vocab-size", "256"], "--vocab-size is 256"),
        (b"abc", ["--special", ""], "--special"),
        (b"abc", ["--pattern", "("], "not a regular expression"),
    ],
)
def test_bad_training(capsys, tmp_path, content, words, message):
    """One line on stderr, status 2, nothing written."""
    (tmp_path / "a.txt").write_bytes(content)
    words = ["train-tokenizer", tmp_path / "a.txt", "--vocab-size", "300", "-o", tmp_path / "out", *words]
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_output_must_be_a_folder(capsys, tmp_path):
    """Noticed before the work, not after."""
    (tmp_path / "a.txt").write_text("abc", encoding="utf-8")
    status, _, err = run(capsys, "train-tokenizer", tmp_path / "a.txt", "--vocab-size", "300", "-o", tmp_path / "a.txt")
    assert (status, "is a file" in err, "merges" in err) == (2, True, False)


def test_control_characters_are_shown_not_sent(capsys, letters):
    """A text cannot steer the reader's terminal."""
    assert show(b"\x1b[2J") == "<1b>[2J"
    assert "\x1b" not in run(capsys, "tokenize", letters, "a\x1b[2Jb", "--merges")[1]


def test_bench(capsys, letters, tmp_path):
    """Small sizes: every row is there, and engines agree on ids and merges."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat, naïve 中文 12\n" * 40, encoding="utf-8")
    words = ["bench", "tokenizer", letters, "--text", tmp_path / "text.txt", "-r", "2", "--mb", "0.01"]
    status, out, _ = run(capsys, *words, "--train-mb", "0.01", "--vocab-size", "270", "--letters", "2000", "--json")
    assert status == 0
    report = json.loads(out)
    rows = {row["test"]: row for row in report["rows"]}
    assert {"encode, minifer", "split alone, minifer", "one letter, 2n", "train, minifer"} <= set(rows)
    assert not any("differ" in row["note"] for row in report["rows"])
    assert rows["encode, minifer"]["bytes"] == 10_000
    assert len(rows["encode, minifer"]["samples_ts"]) == 2
    assert rows["one letter, 2n"]["bytes"] == 2 * rows["one letter, n"]["bytes"] == 2000
    assert report["conditions"]["threads"] == 1
    assert run(capsys, *words, "-r", "0")[0] == 2
