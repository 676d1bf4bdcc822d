"""`minifer bench tokenizer MODEL`: how fast text becomes tokens, and how fast a vocabulary is learnt, beside its peers.

    encode     English text with a cold cache, one thread. Beside it Hugging Face tokenizers, and tiktoken for rank
    files;
               and the cutting alone (`split`), which is the ceiling of this way to do it: no tokenizer that cuts with
               this regular expression can be quicker
    one letter a long run without any border, of n and of 2n letters: the ratio of the times tells linear from quadratic
    train      byte pair encoding from nothing. Beside it Hugging Face's trainer, and the loop that recounts everything
               after each merge, of which only the first merges are timed and the rest is extrapolated

All engines take turns within each repetition, so that a slow minute of the machine hits all of them; median, smallest
and largest are shown. Ids must be equal, or the row says so. The text is English from Python's own documentation and
sources, which is on every machine; `--text` takes another.
"""

import argparse
import ast
import importlib.metadata
import importlib.util
import json
import os
import statistics
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifer.apps.tokenizer_cli import open_tokenizer
from minifer.errors import UsageError

if TYPE_CHECKING:
    from minifer.tokenizer import Tokenizer

Row = dict[str, Any]
NAIVE_MERGES = 100


def add_parser(subparsers: Any) -> None:
    """Declare `minifer bench tokenizer`."""
    parser = subparsers.add_parser("tokenizer", help="encoding and training speed")
    parser.set_defaults(run=run, drop_missing=True)
    parser.add_argument("model", metavar="MODEL", help="a known name, a folder, or a .json, .gguf or .tiktoken file")
    parser.add_argument("--text", type=Path, metavar="FILE", help="the text to encode and to train on")
    parser.add_argument("--pattern", metavar="NAME", help="how to cut text, for a .tiktoken file")
    parser.add_argument("--mb", type=float, default=2.0, metavar="MB", help="text to encode, in MB (default 2)")
    parser.add_argument("--train-mb", type=float, default=10.0, metavar="MB", help="text to train on (default 10)")
    parser.add_argument("--vocab-size", type=int, default=4096, metavar="N", help="tokens to train (default 4096)")
    parser.add_argument("--letters", type=int, default=1_000_000, metavar="N", help="length of the run of one letter")
    parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="R", help="(default 5)")
    parser.add_argument("--no-train", action="store_true", help="leave the training out")
    parser.add_argument("--no-peers", action="store_true", help="only minifer")
    parser.add_argument("--json", action="store_true", help='print {"rows": [...], "conditions": {...}}')


def run(args: argparse.Namespace) -> int:
    """Measure, then print the table or the JSON."""
    if args.repetitions < 1 or min(args.mb, args.train_mb) <= 0 or args.vocab_size <= 256 or args.letters < 2:
        raise UsageError(
            "-r must be at least 1, --mb and --train-mb above 0, --vocab-size above 256, --letters above 1"
        )
    os.environ["TOKENIZERS_PARALLELISM"], os.environ["RAYON_NUM_THREADS"] = "false", "1"  # one thread, as we have
    tokenizer = open_tokenizer(args)
    report: dict[str, Any] = {"rows": [], "conditions": conditions(args)}
    for rows in (encode_rows(tokenizer, args), letter_rows(tokenizer, args), train_rows(args)):
        for row in rows:
            report["rows"].append(row)
            if not args.json:
                print_row(row, first=len(report["rows"]) == 1)
    if args.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        print("\n" + "\n".join(f"{name}: {value}" for name, value in report["conditions"].items()))
    return 0


# ---------------------------------------------------------------------------------------------------- what is measured


def encode_rows(tokenizer: "Tokenizer", args: argparse.Namespace) -> Iterator[Row]:
    """Encoding and decoding of English text, and its cutting alone."""
    from minifer.tokenizer import Tokenizer

    text = text_of(args, args.mb, prose)
    ids = tokenizer.encode(text)
    file = tokenizer.vocabulary.file
    engines: dict[str, Callable[[Any], Any]] = {
        "encode, minifer": lambda fresh: fresh.encode(text),
        "encode with a warm cache, minifer": lambda _: tokenizer.encode(text),
        "split alone, minifer": lambda _: tokenizer.vocabulary.split(text),
        "decode, minifer": lambda _: tokenizer.decode(ids),
    }
    engines |= {f"encode, {name}": partial(_ignoring, encode, text) for name, encode in peers(tokenizer, args).items()}
    taken = take_turns(engines, args.repetitions, lambda: Tokenizer(file, missing="drop"))
    for name, (seconds, result) in taken.items():
        note = "" if not name.startswith("encode") or result == ids else "ids differ"
        yield row_of(name, seconds, len(text.encode()), len(ids), note, taken["encode, minifer"][0])


def letter_rows(tokenizer: "Tokenizer", args: argparse.Namespace) -> Iterator[Row]:
    """One letter without a border, n and 2n times."""
    texts = {"n": "a" * (args.letters // 2), "2n": "a" * (args.letters // 2 * 2)}
    engines = {f"one letter, {name}": partial(_ignoring, tokenizer.encode, text) for name, text in texts.items()}
    taken = take_turns(engines, min(args.repetitions, 5), lambda: None)
    half, whole = (statistics.median(taken[f"one letter, {name}"][0]) for name in texts)
    for (name, (seconds, ids)), text in zip(taken.items(), texts.values(), strict=True):
        note = f"time(2n) / time(n) = {whole / half:.2f}" if name.endswith("2n") else ""
        yield row_of(name, seconds, len(text), len(ids), note)


def train_rows(args: argparse.Namespace) -> Iterator[Row]:
    """Training, ours first, then Hugging Face's and the naive loop."""
    if args.no_train:
        return
    from minifer.tokenizer import bpe

    text = text_of(args, args.train_mb, sources)
    size, merges = len(text.encode()), args.vocab_size - 256
    ours = timed(lambda: bpe.train(text, args.vocab_size))
    yield row_of("train, minifer", [ours[0]], size, len(ours[1]), f"{len(ours[1])} merges")
    if not args.no_peers and importlib.util.find_spec("tokenizers"):
        theirs = timed(lambda: train_hugging_face(text, args.vocab_size))
        note = f"{merges} merges"
        yield row_of("train, tokenizers", [theirs[0]], size, merges, note, [ours[0]])
    words = bpe.count_words(text)
    some = min(NAIVE_MERGES, merges)
    seconds, found = timed(lambda: recount_everything(words, some))
    whole = seconds / some * merges
    note = f"{merges} merges would take {whole:.0f} s, {whole / ours[0]:.0f} x ours"
    if list(found) != list(ours[1])[: len(found)]:
        note += "; merges differ"
    yield row_of(f"train by recounting, {some} merges", [seconds], size, some, note)


def peers(tokenizer: "Tokenizer", args: argparse.Namespace) -> dict[str, Callable[[str], list[int]]]:
    """Those that are installed and can read this vocabulary, as functions from text to ids."""
    from minifer.tokenizer.vocab import json_of_ranks, with_cut

    file = tokenizer.vocabulary.file
    found: dict[str, Callable[[str], list[int]]] = {}
    if args.no_peers:
        return found
    if importlib.util.find_spec("tokenizers"):
        import tokenizers

        peer = tokenizers.Tokenizer.from_str(json.dumps(json_of_ranks(file) if file.spec is None else with_cut(file)))
        peer.encode_special_tokens = True
        found["tokenizers"] = lambda text: list(peer.encode(text, add_special_tokens=False).ids)
    if importlib.util.find_spec("tiktoken") and file.spec is None:
        import tiktoken

        from minifer.tokenizer.pretokenize import PATTERNS

        pattern = PATTERNS.get(file.cut_by or "", file.cut_by or "")
        other = tiktoken.Encoding("peer", pat_str=pattern, mergeable_ranks=dict(file.ranks), special_tokens={})
        found["tiktoken"] = other.encode_ordinary
    return found


def train_hugging_face(text: str, vocab_size: int) -> Any:
    """Hugging Face's trainer on the same text, with the same bytes to start from and the same way to cut."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    peer = Tokenizer(models.BPE())
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    peer.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, initial_alphabet=alphabet)
    )
    return peer


def recount_everything(words: Mapping[bytes, int], merges: int) -> dict[tuple[int, int], int]:
    """Byte pair encoding as it is defined: all pairs are counted again after each merge. Ties as in `bpe.train`.

    >>> recount_everything({b"aaabdaaabac": 1}, 3)
    {(97, 97): 256, (256, 97): 257, (257, 98): 258}
    """
    rows = [(list(word), count) for word, count in words.items()]
    tokens = {byte: bytes([byte]) for byte in range(256)}
    made: dict[tuple[int, int], int] = {}
    for new in range(256, 256 + merges):
        counts: Counter[tuple[int, int]] = Counter()
        for row, count in rows:
            for pair in pairwise(row):
                counts[pair] += count
        if not counts:
            break
        most = max(counts.values())
        tied = [pair for pair, count in counts.items() if count == most]
        best = min(tied, key=lambda pair: (tokens[pair[0]] + tokens[pair[1]], pair))
        made[best], tokens[new] = new, tokens[best[0]] + tokens[best[1]]
        for row, _ in rows:
            i = 0
            while i < len(row) - 1:
                if (row[i], row[i + 1]) == best:
                    row[i : i + 2] = [new]
                i += 1
    return made


# ---------------------------------------------------------------------------------------------------- how


def _ignoring(encode: Callable[[str], list[int]], text: str, _: Any) -> list[int]:
    return encode(text)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result of one call."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def take_turns(
    engines: Mapping[str, Callable[[Any], Any]], repetitions: int, fresh: Callable[[], Any]
) -> dict[str, tuple[list[float], Any]]:
    """Each engine once, then each again: seconds by engine, and the last result. `fresh()` is made anew, untimed."""
    taken: dict[str, tuple[list[float], Any]] = {name: ([], None) for name in engines}
    for _ in range(repetitions):
        for name, call in engines.items():
            made = fresh()
            seconds, result = timed(lambda: call(made))  # noqa: B023
            taken[name] = ([*taken[name][0], seconds], result)
    return taken


def row_of(
    test: str, seconds: list[float], size: int, tokens: int, note: str = "", ours: list[float] | None = None
) -> Row:
    """One row: llama-bench's keys (tokens per second), and MB per second of text."""
    rates = [tokens / s for s in seconds]
    row: Row = {
        "test": test,
        "avg_ts": statistics.fmean(rates),
        "stddev_ts": statistics.stdev(rates) if len(rates) > 1 else 0.0,
        "samples_ts": rates,
        "median_mbs": size / 1e6 / statistics.median(seconds),
        "min_mbs": size / 1e6 / max(seconds),
        "max_mbs": size / 1e6 / min(seconds),
        "seconds": statistics.median(seconds),
        "bytes": size,
        "tokens": tokens,
        "note": note,
    }
    if ours is not None:
        row["times_minifer"] = statistics.median(ours) / statistics.median(seconds)
    return row


def print_row(row: Row, first: bool) -> None:
    """One line of the table, printed as soon as it is measured."""
    if first:
        print(f"{'test':<36} {'MB/s':>8} {'min .. max':>16} {'tokens/s':>11} {'s':>7} {'x minifer':>9}  note")
    span = f"{row['min_mbs']:.2f} .. {row['max_mbs']:.2f}"
    times = f"{row['times_minifer']:.2f}" if "times_minifer" in row else ""
    cells = f"{row['median_mbs']:>8.2f} {span:>16} {row['avg_ts']:>11,.0f} {row['seconds']:>7.2f} {times:>9}"
    print(f"{row['test']:<36} {cells}  {row['note']}".rstrip(), flush=True)


def conditions(args: argparse.Namespace) -> dict[str, Any]:
    """Under which circumstances."""
    from minifer.apps import doctor

    versions, cpu = doctor.versions(), doctor.cpu()
    packages = ("regex", "tokenizers", "tiktoken")
    return {
        "model": args.model,
        "text": str(args.text or "English documentation and sources of Python's standard library"),
        "threads": 1,
        "repetitions": args.repetitions,
        **{name: versions[name] for name in ("minifer", "python", "system")},
        **{name: importlib.metadata.version(name) for name in packages if importlib.util.find_spec(name)},
        "cpu": cpu["name"],
        "load_average": cpu["load_average"],
    }


# ---------------------------------------------------------------------------------------------------- text


def text_of(args: argparse.Namespace, megabytes: float, default: Callable[[], Iterator[str]]) -> str:
    """That many MB of the given file or of Python's own text, repeated if there is less."""
    wanted = round(megabytes * 1e6)
    parts = [args.text.read_text(encoding="utf-8")] if args.text else []
    size = sum(len(part.encode()) for part in parts)
    for part in default() if not args.text else ():
        parts.append(part)
        size += len(part.encode())
        if size >= wanted:
            break
    if not size:
        raise UsageError(f"{args.text} is empty")
    data = "".join(parts).encode()
    return (data * (wanted // size + 1))[:wanted].decode("utf-8", "ignore")


def prose() -> Iterator[str]:
    """English prose: Python's language reference, then the docstrings of its standard library."""
    from pydoc_data import topics

    yield from (topics.topics[name] for name in sorted(topics.topics))
    for source in sources():
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                yield text + "\n\n"


def sources() -> Iterator[str]:
    """The standard library's files in the order of their names: English and code."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" not in path.parts:
            try:
                yield path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
