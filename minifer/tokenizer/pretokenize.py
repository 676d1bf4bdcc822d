r"""Cutting text into pieces before any merging: the step that most re-implementations get wrong.

No merge crosses the border of a piece, so the pieces decide what can become a token at all. Each vocabulary was trained
with *its own* way of cutting and is right only with that one: with a wrong one the ids are still valid, the model still
talks, only worse, and nobody is told. Hence the rule of this file: **a way of cutting that is not known is refused by
name, never replaced by a similar one.**

What the patterns have in common, in GPT-2's words (`x| y` reads "x, or else y"):

    '(?:[sdmt]|ll|ve|re)      the end of don't, it's, we'll
    | ?\p{L}++                letters, with the one blank before them: " Paris" is one piece
    | ?\p{N}++                digits, likewise (later vocabularies: at most 3, or 1, so that numbers line up)
    | ?[^\s\p{L}\p{N}]++      signs
    |\s++$|\s+(?!\S)|\s       blanks; of several blanks before a word the last one is left for the word

**Whose letter, whose blank?** `\p{L}` is a letter and `\p{N}` a number in the sense of Unicode (`½` and `²` are
numbers), and `\s` is Unicode's White_Space: not `str.isspace`, which also counts U+001C to U+001F. The package `regex`
means exactly that by these letters, the standard library's `re` does not. In `(?i:s)` it knows, as Rust does, that `ſ`
is an s. `++` and `?+` take what they can and give nothing back, so that no input makes them try long runs again and
again.
(Unicode grows each year, and every library has the tables of its own year: characters of the last few versions may be
cut differently by Rust's.)

**From pattern to pieces.** `splitter(pattern)` is the quick way for a pattern that describes the pieces (`findall`).
A Hugging Face `tokenizer.json` instead lists *steps*, each of which cuts the pieces of the one before:
`from_json` turns that list into one function. Subtle: two steps are not one pattern with an `or`. SmolLM2 first cuts
out single digits, then applies GPT-2's pattern to what is left, so that in `a  1` both blanks end a piece and stay
together. `SMOLLM` says the same in one pattern (to see the end of the text, it looks for a digit).

Not here: normalising and added tokens, which come before (`tokenizer`), and merging, which comes after (`bpe`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import regex

from minifer.errors import TokenizerError, UnsupportedError

Split = Callable[[str], list[str]]

# tiktoken, tiktoken_ext/openai_public.py (r50k_base). It says what GPT-2's encoder.py says, with fewer steps back.
GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
# tiktoken, tiktoken_ext/openai_public.py (cl100k_base): GPT-3.5, GPT-4. Its `{1,3}+` is `{1,3}` here: nothing follows
# that could take anything back, and to Oniguruma, which reads our tokenizer.json in Hugging Face, `{1,3}+` means `+`.
CL100K = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
# tiktoken, tiktoken_ext/openai_public.py (o200k_base): GPT-4o, gpt-oss.
O200K = "|".join(
    [
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"""
        r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"""
        r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)
# meta-llama/Meta-Llama-3-8B, tokenizer.json, pre_tokenizer.pretokenizers[0].pattern.Regex.
LLAMA3 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
# Qwen/Qwen2-7B and Qwen/Qwen3-8B, tokenizer.json, the same place: Llama 3's with one digit at a time.
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# HuggingFaceTB/SmolLM2-135M, tokenizer.json: Digits(individual_digits), then ByteLevel with GPT-2's pattern.
SMOLLM = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++|\p{N}| ?[^\s\p{L}\p{N}]++|\s++(?=\p{N}|$)|\s+(?!\S)|\s"""

PATTERNS = {"gpt2": GPT2, "cl100k": CL100K, "o200k": O200K, "llama3": LLAMA3, "qwen2": QWEN2, "smollm": SMOLLM}


def fix_surrogates(text: str) -> str:
    r"""Make `text` encodable: a surrogate pair becomes its character, a lone surrogate U+FFFD (tiktoken's rule).

    Python strings can hold halves of characters, and `json.loads('"\\ud83d"')` makes one.

    >>> fix_surrogates("\ud83d\udc4d"), fix_surrogates("a\ud83d")
    ('👍', 'a�')
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def compile_pattern(pattern: str, flags: int = 0) -> regex.Pattern[str]:
    """Compile a pattern, or say what is wrong with it."""
    try:
        return regex.compile(pattern, flags)
    except regex.error as error:
        raise TokenizerError(f"the pre-tokenizer pattern {pattern!r} is not a regular expression: {error}") from None


def splitter(pattern: str) -> Split:
    """A function that cuts text into the matches of `pattern`; what lies between matches becomes a piece, too.

    >>> splitter(GPT2)("We'll  pay ½")
    ['We', "'ll", ' ', ' pay', ' ½']
    """
    if pattern in PATTERNS.values():  # these match every character, so nothing can lie between
        return regex.compile(pattern).findall
    return partial(split_text, compile_pattern(pattern), "Isolated", False)


def split_text(pattern: regex.Pattern[str], behavior: str, invert: bool, text: str) -> list[str]:
    """Cut `text` at the matches of `pattern`; `behavior` says what becomes of them (Hugging Face's five names).

    >>> digit = regex.compile("[0-9]")
    >>> for name in BEHAVIORS:
    ...     print(name, split_text(digit, name, False, "ab12c3"))
    Isolated ['ab', '1', '2', 'c', '3']
    Removed ['ab', 'c']
    MergedWithPrevious ['ab1', '2', 'c3']
    MergedWithNext ['ab', '1', '2c', '3']
    Contiguous ['ab', '12', 'c', '3']
    """
    parts = [(part, matched != invert) for part, matched in matches_and_gaps(pattern, text)]
    return BEHAVIORS[behavior](parts)


def matches_and_gaps(pattern: regex.Pattern[str], text: str) -> Iterator[tuple[str, bool]]:
    """All of `text` in order, as (part, whether it is a match); empty parts are left out."""
    end = 0
    for match in pattern.finditer(text):
        if match.start() > end:
            yield text[end : match.start()], False
        if match.end() > match.start():
            yield match.group(), True
        end = match.end()
    if end < len(text):
        yield text[end:], False


def _merged_with_previous(parts: list[tuple[str, bool]]) -> list[str]:
    pieces: list[str] = []
    previous_matched = True
    for part, matched in parts:
        if matched and not previous_matched:
            pieces[-1] += part
        else:
            pieces.append(part)
        previous_matched = matched
    return pieces


def _merged_with_next(parts: list[tuple[str, bool]]) -> list[str]:
    turned = _merged_with_previous([(part[::-1], matched) for part, matched in reversed(parts)])
    return [piece[::-1] for piece in reversed(turned)]


def _contiguous(parts: list[tuple[str, bool]]) -> list[str]:
    pieces: list[str] = []
    for i, (part, matched) in enumerate(parts):
        if i and matched == parts[i - 1][1]:
            pieces[-1] += part
        else:
            pieces.append(part)
    return pieces


BEHAVIORS: dict[str, Callable[[list[tuple[str, bool]]], list[str]]] = {
    "Isolated": lambda parts: [part for part, _ in parts],
    "Removed": lambda parts: [part for part, matched in parts if not matched],
    "MergedWithPrevious": _merged_with_previous,
    "MergedWithNext": _merged_with_next,
    "Contiguous": _contiguous,
}


# --------------------------------------------------------------------------------- the steps of a tokenizer.json


def from_json(spec: dict[str, Any] | None) -> Split:
    """The function that a `pre_tokenizer` entry of a tokenizer.json describes; None cuts nothing.

    Raises `UnsupportedError` for a step, or an option of a step, that is not known.
    """
    steps = flatten(spec)
    if [_without_defaults(step) for step in steps] == [_without_defaults(step) for step in flatten(json_of(SMOLLM))]:
        return splitter(SMOLLM)
    splits = [split for step in steps for split in _step(step)]
    if not splits:
        return lambda text: [text]
    return splits[0] if len(splits) == 1 else partial(_one_after_another, splits)


def json_of(pattern: str) -> dict[str, Any]:
    """The `pre_tokenizer` entry that says in tokenizer.json what `pattern` says here."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    if pattern == GPT2:
        return byte_level | {"use_regex": True}
    first: dict[str, Any] = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    if pattern == SMOLLM:
        first, byte_level = {"type": "Digits", "individual_digits": True}, json_of(GPT2)
    return {"type": "Sequence", "pretokenizers": [first, byte_level]}


def flatten(spec: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a `pre_tokenizer` entry in a row: sequences may be nested, and no entry is no step."""
    if spec is None:
        return []
    if spec.get("type") != "Sequence":
        return [spec]
    return [step for part in spec.get("pretokenizers", []) for step in flatten(part)]


def _without_defaults(step: dict[str, Any]) -> dict[str, Any]:
    defaults = {"add_prefix_space": True, "use_regex": True} if step.get("type") == "ByteLevel" else {}
    return {key: value for key, value in (defaults | step).items() if key != "trim_offsets"}


def _one_after_another(splits: list[Split], text: str) -> list[str]:
    pieces = [text]
    for split in splits:
        pieces = [part for piece in pieces for part in split(piece)]
    return pieces


def _step(step: dict[str, Any]) -> list[Split]:
    kind = step.get("type")
    if kind == "Split":
        return [_split_step(step)]
    if kind == "Digits":
        return [splitter(r"\p{N}" if step.get("individual_digits") else r"\p{N}+")]
    if kind == "ByteLevel":
        prefix = [_with_prefix_space] if step.get("add_prefix_space", True) else []
        return prefix + ([splitter(GPT2)] if step.get("use_regex", True) else [])
    if kind == "Metaspace" and len(step.get("replacement", "▁")) == 1:
        return [partial(_metaspace, step.get("replacement", "▁"), prepend_scheme(step), step.get("split", True))]
    raise UnsupportedError(
        f"this vocabulary cuts text with the pre-tokenizer {kind!r}, which minifer does not have; "
        "it has Split, Digits, ByteLevel, Metaspace and sequences of them"
    )


def _split_step(step: dict[str, Any]) -> Split:
    behavior, invert = step.get("behavior"), bool(step.get("invert", False))
    if behavior not in BEHAVIORS:
        raise UnsupportedError(f"unknown Split behavior {behavior!r}; known: {', '.join(BEHAVIORS)}")
    source = step["pattern"].get("Regex")
    if source in PATTERNS.values() and behavior == "Isolated" and not invert:
        return splitter(source)
    return partial(split_text, pattern_of(step["pattern"]), behavior, invert)


def pattern_of(spec: dict[str, Any]) -> regex.Pattern[str]:
    """`{"Regex": ...}` or `{"String": ...}`, which is a literal text, even if it looks like a regular expression.

    Hugging Face compiles the first with Oniguruma. There `^` and `$` always stand at lines, and a plus after `{1,3}` is
    not possessive but repeats once more.
    """
    match spec:
        case {"Regex": str(source)}:
            if regex.search(r"\{([2-9]|1\d)[\d,]*\}\+", source):
                raise UnsupportedError(
                    f"the pattern {source!r} repeats a repetition in a way that minifer does not have"
                )
            source = regex.sub(r"\{1(,\d*)?\}\+", "+", regex.sub(r"\{0?,\d*\}\+", "*", source))
            return compile_pattern(source, regex.MULTILINE)
        case {"String": str(source)}:
            return compile_pattern(regex.escape(source))
    raise UnsupportedError(f"unknown pattern {spec!r}; known are {{'Regex': ...}} and {{'String': ...}}")


def _with_prefix_space(text: str) -> list[str]:
    return [text if text.startswith(" ") else " " + text]


def prepend_scheme(step: Mapping[str, Any]) -> str:
    """When a Metaspace step puts a blank before the text: "always", "first" or "never"; older files have a flag."""
    if step.get("type") != "Metaspace":
        return "never"
    return str(step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never"))


def _metaspace(mark: str, scheme: str, split: bool, text: str) -> list[str]:
    """Blanks as `mark`. The scheme "first" needs the whole text, so `tokenizer` takes care of it."""
    text = text.replace(" ", mark)
    if scheme == "always" and not text.startswith(mark):
        text = mark + text
    return split_text(regex.compile(regex.escape(mark)), "MergedWithNext", False, text) if split else [text]
