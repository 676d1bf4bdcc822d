"""Workloads: which prompts arrive when, as pure functions of a seed.

A load test is as good as its workload is repeatable. Everything random here comes from `random.Random` with a seed of
its own for each purpose, so the same seed gives the same prompts at every rate, the same pattern of gaps stretched to
another rate, and the same numbers on every machine.

**When.** Requests of many independent people arrive as a Poisson process: the gaps between them are exponential, with
mean 1 / rate. `burstiness` generalises this to Gamma(shape = burstiness, scale = 1 / (rate x burstiness)), which keeps
the mean and changes the spread (the standard deviation is mean / sqrt(burstiness)): below 1 requests come in bursts,
above 1 they come evenly, and infinity is a metronome. Rate infinity is everything at once. The first request is sent at
time 0, the others after their gaps. (vLLM stretches the schedule so that it ends at n / rate; here the realised rate
is left to chance and reported.)

**What.** Data sets have vLLM's names and its meaning of the options: `random`, `prefix_repetition`, `custom`.

With a tokenizer, random prompts are made of *whole words* (a blank and letters that are one token), so that their text
has exactly as many tokens as asked for, whether a server is sent ids or text. Without one they are random ids.

What this file does not do: send anything (`loadgen/`), or read the traces of real services (`simulate/`).
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import regex

from minifer.errors import FormatError, UsageError

if TYPE_CHECKING:
    from minifer.tokenizer import Tokenizer

DATASETS = ("random", "prefix_repetition", "custom")

WORD = regex.compile(r" \p{Latin}{2,}")
MOST_TOKENS = 100_000_000
"""In all prompts of a workload: they are made before the first is sent, and this many take some 4 GB."""

FEWEST_WORDS = 64
"""A vocabulary with fewer one-token words than this is used as plain ids."""


@dataclass(frozen=True)
class Arrival:
    """One request of a workload: its place, when it is due (seconds from the start), prompt, and tokens wanted.

    `prompt` is the text of the ids where it is known; a server that is sent either sees the same tokens.
    """

    index: int
    at: float
    prompt_ids: tuple[int, ...]
    output_len: int
    prompt: str | None = None


@dataclass(frozen=True)
class Prompt:
    """What an arrival asks for, before it has a time."""

    ids: tuple[int, ...]
    output_len: int
    text: str | None = None


def arrival_times(n: int, rate: float, burstiness: float = 1.0, seed: int | str = 0) -> list[float]:
    """`n` times in seconds, from 0 on, never falling. Raises UsageError for a rate or burstiness that is not above 0.

    >>> arrival_times(3, math.inf)
    [0.0, 0.0, 0.0]
    >>> arrival_times(4, 2.0, burstiness=math.inf)
    [0.0, 0.5, 1.0, 1.5]
    >>> arrival_times(9, 2.0, seed=7) == [at / 2 for at in arrival_times(9, 1.0, seed=7)]
    True
    """
    for name, value in (("request rate", rate), ("burstiness", burstiness)):
        if not value > 0:  # also NaN
            raise UsageError(f"the {name} must be above 0 (or inf), not {value:g}")
    if n < 0:
        raise UsageError(f"the number of requests must be at least 0, not {n}")
    if math.isinf(rate):
        return [0.0] * n
    if math.isinf(burstiness):
        return [i / rate for i in range(n)]
    source = _source(seed, "arrivals")
    # Drawn with mean 1 and scaled afterwards: the same seed at another rate is the same pattern, stretched.
    gaps = (source.gammavariate(burstiness, 1 / burstiness) / rate for _ in range(max(0, n - 1)))
    return list(accumulate(gaps, initial=0.0))[:n]


def make_workload(
    dataset_name: str = "random",
    *,
    num_prompts: int | None = 100,
    seed: int | str = 0,
    request_rate: float = math.inf,
    burstiness: float = 1.0,
    vocab_size: int | None = None,
    tokenizer: "Tokenizer | None" = None,
    random_input_len: int = 1024,
    random_output_len: int = 128,
    random_range_ratio: float | Mapping[str, float] = 0.0,
    random_prefix_len: int = 0,
    prefix_repetition_prefix_len: int = 256,
    prefix_repetition_suffix_len: int = 256,
    prefix_repetition_num_prefixes: int = 10,
    prefix_repetition_output_len: int = 128,
    dataset_path: str | Path | None = None,
    custom_output_len: int | None = 256,
    disable_shuffle: bool = False,
) -> list[Arrival]:
    """The arrivals of a data set, in the order of their times. Options and defaults are vLLM's.

    random              `random_input_len` and `random_output_len`, each drawn evenly from length x (1 -+ ratio), behind
                        a prefix of `random_prefix_len` tokens that all share
    prefix_repetition   `num_prefixes` prefixes, each with num_prompts // num_prefixes different suffixes, shuffled
    custom              lines of JSON: `{"prompt": "...", "output_tokens": 12}` or `{"prompt_ids": [...]}`, shuffled and
                        used again from the start if there are too few; `custom_output_len` None or -1 takes the
                        file's lengths. `num_prompts` None takes each line once

    Raises UsageError for values that make no sense, FormatError for a file that is not such lines.

    >>> arrivals = make_workload(num_prompts=2, request_rate=4, burstiness=math.inf, vocab_size=100,
    ...                          random_input_len=5, random_output_len=3)
    >>> [(a.at, len(a.prompt_ids), a.output_len) for a in arrivals]
    [(0.0, 5, 3), (0.25, 5, 3)]
    """
    if num_prompts is not None and num_prompts < 1:
        raise UsageError(f"a workload needs at least 1 prompt, not {num_prompts}")
    if dataset_path is not None and dataset_name != "custom":
        raise UsageError(f"a file of prompts ({dataset_path}) goes with the data set custom, not {dataset_name}")
    if dataset_name == "custom":
        lines = _read_lines(dataset_path)
        prompts = list(_custom(lines, num_prompts, seed, tokenizer, custom_output_len, disable_shuffle))
    elif dataset_name in DATASETS:
        draw = _drawer(tokenizer, vocab_size)
        count = num_prompts if num_prompts is not None else 100
        if dataset_name == "random":
            ratio = random_range_ratio
            lengths = _lengths(count, random_input_len, random_output_len, ratio, random_prefix_len, seed)
            prompts = list(_random(lengths, random_prefix_len, seed, draw))
        else:
            shape = (prefix_repetition_num_prefixes, prefix_repetition_prefix_len, prefix_repetition_suffix_len)
            prompts = _prefix_repetition(count, shape, prefix_repetition_output_len, seed, draw, disable_shuffle)
    else:
        raise UsageError(f"there is no data set {dataset_name!r}: use one of {', '.join(DATASETS)}")
    times = arrival_times(len(prompts), request_rate, burstiness, seed)
    return [Arrival(i, at, p.ids, p.output_len, p.text) for i, (at, p) in enumerate(zip(times, prompts, strict=True))]


def _source(seed: int | str, purpose: str) -> random.Random:
    """A generator for one purpose; a string is hashed with SHA-512, the same in every process."""
    return random.Random(f"{seed}:{purpose}")


Draw = Callable[[random.Random, int], tuple[tuple[int, ...], str | None]]
"""Draws n tokens: their ids, and their text where it encodes to just these ids."""


def _drawer(tokenizer: "Tokenizer | None", vocab_size: int | None) -> Draw:
    words = whole_words(tokenizer) if tokenizer is not None else []
    if tokenizer is None or len(words) < FEWEST_WORDS:
        size = tokenizer.vocab_size if tokenizer is not None else vocab_size
        if size is None or size < 1:
            raise UsageError("random prompts need a tokenizer or the size of a vocabulary")
        return lambda source, n: (tuple(source.randrange(size) for _ in range(n)), None)
    known = tokenizer

    def draw(source: random.Random, n: int) -> tuple[tuple[int, ...], str | None]:
        ids = tuple(source.choice(words) for _ in range(n))
        text = known.decode(ids)
        return ids, text if tuple(known.encode(text)) == ids else None

    return draw


def whole_words(tokenizer: "Tokenizer") -> list[int]:
    """The tokens that are a blank and Latin letters, and that such a text encodes to: they never merge with another."""
    found = []
    for i in range(tokenizer.vocab_size):
        text = tokenizer.token_bytes(i).decode("utf-8", errors="replace")
        if WORD.fullmatch(text) and not tokenizer.is_special(i) and tokenizer.encode(text) == [i]:
            found.append(i)
    return found


def _range(length: int, ratio: float, what: str) -> tuple[int, int]:
    """vLLM's interval: floor(length x (1 - ratio)) to ceil(length x (1 + ratio)), both included."""
    if not 0 <= ratio < 1:
        raise UsageError(f"the range ratio of the {what} must be from 0 to below 1, not {ratio:g}")
    return math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio))


def _lengths(n: int, input_len: int, output_len: int, ratio: float | Mapping[str, float], prefix_len: int,
             seed: int | str) -> list[tuple[int, int]]:  # fmt: skip
    """Input (without the shared prefix) and output length of each request."""
    if isinstance(ratio, Mapping) and not {"input", "output"} <= ratio.keys():
        raise UsageError(f'a range ratio needs both "input" and "output", not {sorted(ratio)}')
    of_input, of_output = (ratio["input"], ratio["output"]) if isinstance(ratio, Mapping) else (ratio, ratio)
    shortest, longest = _range(input_len, of_input, "input")
    if prefix_len < 0 or shortest < 0 or prefix_len + shortest < 1:
        raise UsageError(f"prompts of {prefix_len} + {shortest} tokens: make --random-input-len larger")
    least, most = _range(output_len, of_output, "output")
    if output_len < 1:
        raise UsageError(f"--random-output-len must be at least 1, not {output_len}")
    _check_size(n * (prefix_len + longest))
    source = _source(seed, "lengths")
    return [(source.randint(shortest, longest), source.randint(max(1, least), most)) for _ in range(n)]


def _random(lengths: Sequence[tuple[int, int]], prefix_len: int, seed: int | str, draw: Draw) -> Iterator[Prompt]:
    prefix, prefix_text = draw(_source(seed, "prefix"), prefix_len)
    source = _source(seed, "prompts")
    for input_len, output_len in lengths:
        yield _join(prefix, prefix_text, *draw(source, input_len), output_len)


def _prefix_repetition(n: int, shape: tuple[int, int, int], output_len: int, seed: int | str, draw: Draw,
                       in_order: bool) -> list[Prompt]:  # fmt: skip
    num_prefixes, prefix_len, suffix_len = shape
    if num_prefixes < 1 or n < num_prefixes:
        raise UsageError(f"{n} prompts cannot share {num_prefixes} prefixes: there must be at least one for each")
    if prefix_len + suffix_len < 1 or min(prefix_len, suffix_len) < 0 or output_len < 1:
        raise UsageError(f"lengths of {prefix_len} + {suffix_len} and {output_len} tokens: each must be at least 1")
    _check_size(n * (prefix_len + suffix_len))
    source, prompts = _source(seed, "prompts"), []
    for _ in range(num_prefixes):
        prefix = draw(source, prefix_len)
        prompts += [_join(*prefix, *draw(source, suffix_len), output_len) for _ in range(n // num_prefixes)]
    if not in_order:
        _source(seed, "order").shuffle(prompts)
    return prompts


def _check_size(tokens: int) -> None:
    if tokens > MOST_TOKENS:
        raise UsageError(f"a workload of {tokens:,} prompt tokens does not fit into memory: at most {MOST_TOKENS:,}; "
                         "use fewer or shorter prompts")  # fmt: skip


def _join(head: tuple[int, ...], head_text: str | None, tail: tuple[int, ...], tail_text: str | None,
          output_len: int) -> Prompt:  # fmt: skip
    """Whole words stay whole beside each other, so texts may be joined like ids."""
    text = head_text + tail_text if head_text is not None and tail_text is not None else None
    return Prompt(head + tail, output_len, text)


def _read_lines(path: str | Path | None) -> list[dict[str, Any]]:
    if path is None:
        raise UsageError("the data set `custom` needs --dataset-path, a file of JSON lines")
    found = []
    try:
        text = Path(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(_checked(json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise FormatError(f"{path}, line {number}: {error}") from error
    if not found:
        raise FormatError(f"{path} has no lines: each should be an object with a `prompt`")
    return found


def _checked(line: Any) -> dict[str, Any]:
    if not isinstance(line, dict) or not ("prompt" in line or "prompt_ids" in line):
        raise ValueError("each line should be an object with a `prompt` (text) or `prompt_ids`")
    if not isinstance(line.get("prompt", ""), str):
        raise ValueError(f"`prompt` must be text, not {line['prompt']!r}")
    ids = line.get("prompt_ids", [0])
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise ValueError("`prompt_ids` must be a list of token ids")
    if "output_tokens" in line and (type(line["output_tokens"]) is not int or line["output_tokens"] < 1):
        raise ValueError(f"`output_tokens` must be a whole number above 0, not {line['output_tokens']!r}")
    return line


def _custom(lines: list[dict[str, Any]], n: int | None, seed: int | str, tokenizer: "Tokenizer | None",
            output_len: int | None, in_order: bool) -> Iterator[Prompt]:  # fmt: skip
    lines = list(lines)
    if not in_order:
        _source(seed, "order").shuffle(lines)
    _check_size(n or 0)
    own_lengths = output_len is None or output_len == -1
    for i in range(len(lines) if n is None else n):
        line = lines[i % len(lines)]
        length = line.get("output_tokens") if own_lengths else output_len
        if length is None:
            raise UsageError("a line has no `output_tokens`: give it one, or --custom-output-len for all")
        text, ids = line.get("prompt"), line.get("prompt_ids")
        if ids is None and text is not None and tokenizer is not None:
            ids = tokenizer.encode(text, add_special=True)
        yield Prompt(tuple(ids or ()), length, text)
