"""tokenizer.json, rank files and GGUF metadata: read exactly, or refused by name."""

import copy

import pytest
from tokenizing import hugging_face

from minifer.errors import MiniferError, TokenizerError, UnsupportedError
from minifer.formats.vocab_files import from_json
from minifer.tokenizer import Tokenizer
from minifer.tokenizer.vocab import spell

ABC = {"a": 0, "b": 1, "c": 2, "bc": 3, "ab": 4, "abc": 5}
ABC_MERGES = [["b", "c"], ["a", "b"], ["ab", "c"]]


def spec(vocab=ABC, merges=ABC_MERGES, **entries):
    """A small tokenizer.json; model options are given as `model__name`."""
    model = {"type": "BPE", "vocab": dict(vocab), "merges": list(merges)}
    model |= {key.removeprefix("model__"): value for key, value in entries.items() if key.startswith("model__")}
    return {"model": model} | {key: value for key, value in entries.items() if not key.startswith("model__")}


def load(*args, **entries):
    """The tokenizer of a small tokenizer.json."""
    return Tokenizer(from_json(spec(*args, **entries)))


# --------------------------------------------------------------------------------------------- merges


def test_ignore_merges_looks_up_whole_pieces_first():
    """Only whole pieces, and only when the file says so."""
    assert load().encode("abc") == [0, 3]
    assert load(model__ignore_merges=True).encode("abc") == [5]
    assert load(model__ignore_merges=True).encode("abcabc") == [0, 3, 0, 3]


def test_both_spellings_of_merges():
    """`"a b"` and `["a", "b"]` are the same table."""
    assert load(merges=["b c", "a b", "ab c"]).encode("abab") == load().encode("abab") == [4, 4]


def test_tokens_with_a_blank():
    """Pairs can say them, strings cannot."""
    vocab = {"a": 0, " ": 1, "b": 2, "a ": 3, "a b": 4}
    assert load(vocab, [["a", " "], ["a ", "b"]]).encode("a b") == [4]
    with pytest.raises(TokenizerError, match="merge 0 is ambiguous"):
        load(vocab, ["a  ", "a  b"])


@pytest.mark.parametrize(
    ("merges", "message"),
    [
        ([], "merge table is empty"),
        ([["b", "c"], "ab"], "merge 1 is not a pair"),
        ([["b", "c"], ["a", "b", "c"]], "merge 1 is ambiguous"),
        ([["b", "c"], ["a", "z"]], "merge 1 .* 'z' is not in the vocabulary"),
        ([["b", "c"], ["b", "a"]], "merge 1 .* 'ba' is not in the vocabulary"),
        ([["b", "c"], 7], "not a whole tokenizer.json"),
        (None, "not a whole tokenizer.json"),
    ],
)
def test_merge_table_must_be_whole(merges, message):
    """Empty, or wrong in one line: an error that names the line."""
    with pytest.raises(TokenizerError, match=message):
        from_json(spec() | {"model": {"type": "BPE", "vocab": ABC, "merges": merges}})


def test_an_alphabet_without_merges_is_a_vocabulary():
    """Nothing is missing where there is nothing to merge."""
    assert load({"a": 0, "b": 1}, []).encode("abba") == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ({"a": 0, "b": 0}, "id 0 belongs to two tokens, 'a' and 'b'"),
        ({"a": -1}, "'a' has the id -1"),
        ({"a": "0"}, "'a' has the id '0'"),
        ({"a": True}, "'a' has the id True"),
        ({"a": 10**15}, "has the id 1000000000000000"),
        ([["a", 0]], "not a whole tokenizer.json"),
    ],
)
def test_ids_must_be_distinct_whole_numbers(vocab, message):
    """Duplicate ids would decode to whichever token came last."""
    with pytest.raises(TokenizerError, match=message):
        from_json({"model": {"vocab": vocab, "merges": []}})


# --------------------------------------------------------------------------------------------- stations


def pieces_spec(tiny, pre_tokenizer, **entries):
    """The bundled vocabulary, cut in another way."""
    return copy.deepcopy(dict(tiny.vocabulary.file.spec)) | {"pre_tokenizer": pre_tokenizer} | entries


PREFIXED = {"type": "ByteLevel", "add_prefix_space": True, "use_regex": False, "trim_offsets": True}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": True}


@pytest.mark.parametrize("kind", ["Regex", "String"])
def test_a_literal_pattern_is_not_a_regex(tiny, kind):
    r"""`{"String": "\p{L}+|\s"}` matches only itself, so that nothing is cut; one letter of JSON changes the ids."""
    split = {"type": "Split", "pattern": {kind: r"\p{L}+|\s"}, "behavior": "Isolated", "invert": False}
    entry = {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL]}
    ours = Tokenizer(from_json(pieces_spec(tiny, entry)))
    expected = {"Regex": ["in", " ", "the"], "String": ["in the"]}[kind]
    assert ours.vocabulary.split("in the") == expected


@pytest.mark.parametrize("pattern", [r"\p{N}{1,3}+", r"\p{N}{0,3}+", r"[0-9]{1}+", r"^a+$", r"\p{N}{1,3}", r"\p{N}++"])
def test_patterns_mean_what_they_mean_to_hugging_face(tiny, pattern):
    """Oniguruma is not tiktoken's engine: `{1,3}+` repeats there, and `^` and `$` stand at lines."""
    pytest.importorskip("tokenizers")
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": True}
    entry = pieces_spec(tiny, {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL]})
    ours, theirs = Tokenizer(from_json(entry)), hugging_face(entry)
    for text in ("12345678 12", "b\naa\nab", "a"):
        pieces = [piece for piece, _ in theirs.pre_tokenizer.pre_tokenize_str(text)]
        assert [spell(piece.encode()) for piece in ours.vocabulary.split(text)] == pieces


def test_a_repetition_that_means_two_things_is_refused():
    """`{2,3}+` has no single meaning that minifer could vouch for."""
    with pytest.raises(UnsupportedError, match="repeats a repetition"):
        load(pre_tokenizer={"type": "Split", "pattern": {"Regex": "a{2,3}+"}, "behavior": "Isolated"})


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("behavior", ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
def test_split_behaviors_equal_hugging_face(tiny, behavior, invert):
    """Five names for what becomes of a match, the right way round and inverted."""
    pytest.importorskip("tokenizers")
    split = {"type": "Split", "pattern": {"Regex": "[0-9]"}, "behavior": behavior, "invert": invert}
    entry = pieces_spec(tiny, {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL]})
    ours, theirs = Tokenizer(from_json(entry)), hugging_face(entry)
    for text in ("ab12c3", "1", "12", "a", "1a", "", "a1b", "12ab"):
        assert ours.encode(text) == theirs.encode(text).ids, text


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True, "trim_offsets": True},
        {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": False}, BYTE_LEVEL]},
        {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, PREFIXED]},
    ],
)
def test_prefix_space_and_digits_equal_hugging_face(tiny, entry):
    """A blank before every piece that has none; digits in runs and alone."""
    pytest.importorskip("tokenizers")
    ours, theirs = Tokenizer(from_json(pieces_spec(tiny, entry))), hugging_face(pieces_spec(tiny, entry))
    for text in ("Hello", " Hello", "", "\nHello", "a12b 3", "12", "  1", "½a"):
        assert ours.encode(text) == theirs.encode(text).ids, text
    assert ours.encode("") == []


def test_nfc_is_applied_and_stays(tiny):
    """With NFC, e and an accent become one letter, and decoding gives that letter."""
    plain, nfc = tiny, Tokenizer(from_json(pieces_spec(tiny, BYTE_LEVEL, normalizer={"type": "NFC"})))
    assert plain.decode(plain.encode("cafe\u0301")) == "cafe\u0301"
    assert nfc.decode(nfc.encode("cafe\u0301 \u212b")) == "caf\u00e9 \u00c5"


ADDED = [
    {"id": 1200, "content": "<L>", "lstrip": True},
    {"id": 1201, "content": "<R>", "rstrip": True},
    {"id": 1202, "content": "<N>"},
    {"id": 1203, "content": "<S>", "special": True},
]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a <L> b", [b"a", 1200, b" b"]),
        ("a <R> b", [b"a", b" ", 1201, b"b"]),
        ("a <N> b", [b"a", b" ", 1202, b" b"]),
        ("<R><L>", [1201, 1200]),
        ("<R> \u3000 <R>b", [1201, 1201, b"b"]),
        ("a \u3000\x1c<L>", [b"a", b" ", "\u3000".encode(), b"\x1c", 1200]),  # U+001C is no blank
    ],
)
def test_added_tokens_swallow_blanks_as_told(tiny, text, parts):
    """lstrip, rstrip, neither."""
    ours = Tokenizer(from_json(pieces_spec(tiny, BYTE_LEVEL | {"use_regex": True}, added_tokens=ADDED)))
    expected = [part if isinstance(part, int) else tiny.encode(part.decode()) for part in parts]
    assert ours.encode(text) == [index for part in expected for index in ([part] if isinstance(part, int) else part)]
    assert ours.encode(ours.decode(ours.encode(text))) == ours.encode(text)


def test_special_is_a_matter_of_trust(tiny):
    """An added token that is not special is found in every text, a special one only on request."""
    ours = Tokenizer(from_json(pieces_spec(tiny, BYTE_LEVEL, added_tokens=ADDED)))
    assert 1202 in ours.encode("<N>")
    assert 1203 not in ours.encode("<S>")
    assert ours.encode("<S>", allow_special=True) == [1203]


def test_post_processor_adds_bos_and_eos(tiny):
    """`add_special` adds what the file's template has around the text, once."""
    end, start = tiny.special_tokens["<|endoftext|>"], tiny.special_tokens["<|im_start|>"]
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "B"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "E"}}],
        "special_tokens": {"B": {"id": "B", "ids": [start]}, "E": {"id": "E", "ids": [end]}},
    }
    both = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}
    ours = Tokenizer(from_json(pieces_spec(tiny, BYTE_LEVEL, post_processor=both)))
    assert ours.encode("a", add_special=True) == [start, *ours.encode("a"), end]
    assert ours.encode("", add_special=True) == [start, end]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"pre_tokenizer": {"type": "BertPreTokenizer"}}, "BertPreTokenizer"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Punctuation"}]}}, "Punctuation"),
        ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Sideways"}}, "Sideways"),
        ({"normalizer": {"type": "Precompiled"}}, "Precompiled"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "BertNormalizer"}]}}, "BertNormalizer"),
        ({"decoder": {"type": "WordPiece"}}, "WordPiece"),
        ({"decoder": {"type": "ByteLevel"}}, "ByteLevel"),
        ({"post_processor": {"type": "RobertaProcessing"}}, "RobertaProcessing"),
        ({"model": {"type": "Unigram", "vocab": []}}, "Unigram"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.1}}, "dropout"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": [], "end_of_word_suffix": "</w>"}}, "end_of_word_suffix"),
        ({"added_tokens": [{"id": 9, "content": "x", "single_word": True}]}, "single_word"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change, name):
    """Never replaced by something similar."""
    with pytest.raises(UnsupportedError, match=name):
        Tokenizer(from_json(spec() | change))


def test_a_pattern_that_is_no_regex():
    """The pattern is quoted."""
    with pytest.raises(TokenizerError, match="not a regular expression"):
        load(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"})


@pytest.mark.parametrize(
    "added",
    [
        [{"id": 5, "content": "x"}],
        [{"id": 9, "content": "abc"}],
        [{"id": 9, "content": "x"}, {"id": 9, "content": "y"}],
        [{"id": "9", "content": "x"}],
        [{"id": 9, "content": ""}],
        [{"id": 9}],
    ],
)
def test_added_tokens_must_fit_the_vocabulary(added):
    """Another's id, another id, twice, damaged."""
    with pytest.raises(TokenizerError):
        load(added_tokens=added)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"model": 3}', "{}", '{"model": {}}', "[" * 100_000])
def test_damaged_files(tmp_path, content):
    """Every damage is a typed error, never an accident in the middle of the code."""
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(MiniferError):
        Tokenizer.from_pretrained(tmp_path)
