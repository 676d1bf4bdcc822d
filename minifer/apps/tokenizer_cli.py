"""`minifer tokenize` shows how a text is cut and what it costs; `minifer train-tokenizer` learns from your own text."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifer.apps import options
from minifer.errors import UsageError

if TYPE_CHECKING:
    from minifer.tokenizer import Tokenizer

COLOURS = ("white on blue", "black on green", "white on magenta", "black on cyan", "white on red", "black on yellow")
MOST_PIECES_WITH_MERGES = 40
SAMPLE_BYTES = 1_000_000

# Article 1 of the Universal Declaration of Human Rights, first sentence (OHCHR's translations).
SENTENCE = {
    "English": "All human beings are born free and equal in dignity and rights.",
    "German": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "French": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "Spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "Vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "Turkish": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "Russian": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "Arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
    "Hebrew": "כל בני אדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "Chinese": "人人生而自由,在尊严和权利上一律平等。",
    "Japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
}


def add_parser(subparsers: Any) -> None:
    """Declare `minifer tokenize` and `minifer train-tokenizer`."""
    cut = subparsers.add_parser("tokenize", help="text -> pieces, ids, count, price")
    cut.set_defaults(run=run)
    cut.add_argument("model", metavar="MODEL", help="a known name, a folder, a tokenizer.json, .gguf or .tiktoken file")
    cut.add_argument("text", nargs="?", metavar="TEXT", help="the text; read from stdin if it is absent or `-`")
    cut.add_argument("--merges", action="store_true", help="show every merge, in order")
    cut.add_argument("--price", type=float, metavar="P", help="what the text costs at P per million tokens")
    cut.add_argument("--languages", action="store_true", help="compare one sentence in several languages instead")
    cut.add_argument("--allow-special", action="store_true", help="let `<|im_end|>` and the like be control tokens")
    cut.add_argument("--add-special", action="store_true", help="add BOS or EOS as the vocabulary wants it")
    cut.add_argument("--pattern", metavar="NAME", help="how to cut text, for a .tiktoken file: a name or a regex")
    cut.add_argument("--drop-missing", action="store_true", help="leave out text that the vocabulary has no tokens for")
    cut.add_argument("--json", action="store_true", help="print JSON")
    train = subparsers.add_parser("train-tokenizer", help="make a vocabulary from text")
    train.set_defaults(run=run_train)
    train.add_argument("files", nargs="+", type=Path, metavar="FILE", help="UTF-8 text; each file is one document")
    train.add_argument("--vocab-size", type=int, required=True, metavar="N", help="tokens in all, bytes included")
    train.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="the folder to write to")
    train.add_argument("--pattern", default="gpt2", metavar="NAME", help="how to cut text: a name or a regex (gpt2)")
    train.add_argument(
        "--special", action="append", metavar="TOKEN", help="a control token, the first is EOS; may be repeated"
    )
    train.add_argument("--json", action="store_true", help="print JSON")


# ---------------------------------------------------------------------------------------------------- tokenize


def run(args: argparse.Namespace) -> int:
    """`minifer tokenize ...`."""
    if args.price is not None and not 0 <= args.price < float("inf"):
        raise UsageError(f"--price is {args.price}; it is money per million tokens, 0 or more")
    text = None if args.languages else options.read_prompt(args.text)
    tokenizer = open_tokenizer(args)
    if text is None:
        rows = language_rows(tokenizer, args.price)
        print(json.dumps({"model": args.model, "rows": rows}, ensure_ascii=False)) if args.json else print_languages(
            rows
        )
        return 0
    report = describe(tokenizer, text, args)
    if args.json:
        print(json.dumps(report, ensure_ascii=False))
        return 0
    print_pieces(report["tokens"])
    if args.merges:
        print_merges(report["merges"])
    print(summary(report))
    return 0


def open_tokenizer(args: argparse.Namespace) -> "Tokenizer":
    """The vocabulary of the command line, fetched first if it has to be."""
    from minifer import hub
    from minifer.tokenizer import Tokenizer

    path = Path(args.model)
    if not path.exists():
        with options.ProgressBars() as bars:
            found = hub.locate(args.model, progress=bars.update)
        path = Path(args.model) if found.kind == "random" else found.path
    return Tokenizer.from_pretrained(path, pattern=args.pattern, missing="drop" if args.drop_missing else "error")


def describe(tokenizer: "Tokenizer", text: str, args: argparse.Namespace) -> dict[str, Any]:
    """Everything that is printed, as plain data."""
    from minifer.tokenizer.pretokenize import fix_surrogates

    pieces = tokenizer.pieces(text, add_special=args.add_special, allow_special=args.allow_special)
    report: dict[str, Any] = {
        "model": args.model,
        "tokens": [
            {"id": token, "text": data.decode("utf-8", "replace"), "bytes": data.hex()} for token, data in pieces
        ],
        "count": len(pieces),
        "characters": len(text),
        "bytes": len(fix_surrogates(text).encode()),
    }
    if args.price is not None:
        report |= {"price_per_million": args.price, "price": len(pieces) * args.price / 1e6}
    if args.merges:
        report["merges"] = list(merge_rows(tokenizer, fix_surrogates(text)))
    return report


def merge_rows(tokenizer: "Tokenizer", text: str) -> Iterator[dict[str, Any]]:
    """For each different piece of the text its stages, from single bytes to tokens."""
    vocabulary = tokenizer.vocabulary
    for piece in dict.fromkeys(vocabulary.split(vocabulary.normalize(text))):
        stages = [[show(token) for token in stage] for stage in vocabulary.stages(piece)]
        yield {"piece": show(piece.encode()), "stages": stages}


def show(data: bytes) -> str:
    r"""Bytes so that each can be seen: text as text, line ends as signs, the rest as numbers.

    >>> show(" Paris\n".encode()), show(b"\xf0\x9f")
    ('·Paris↵', '<f0 9f>')
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"<{data.hex(' ')}>"
    named = {" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥"}
    return "".join([named.get(c, c if c.isprintable() else f"<{ord(c):x}>") for c in text])


def summary(report: dict[str, Any]) -> str:
    """Counts in a sentence, and the price if there is one."""
    per_token = f": {report['bytes'] / report['count']:.2f} bytes per token" if report["count"] else ""
    lines = [f"{report['count']:,} tokens, {report['characters']:,} characters, {report['bytes']:,} bytes{per_token}"]
    if "price" in report:
        lines.append(
            f"at {report['price_per_million']:g} per million tokens: {report['price']:.8f}".rstrip("0").rstrip(".")
        )
    return "\n".join(lines)


def print_pieces(tokens: Sequence[dict[str, Any]]) -> None:
    """Pieces above their ids in columns, neighbours in different colours; without colours a bar stands between."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    gap = " " if console.color_system else "|"
    rows: list[tuple[Text, Text]] = []
    for i, token in enumerate(tokens):
        shown = show(bytes.fromhex(token["bytes"]))
        width = max(cell_len(shown), len(str(token["id"])))
        if not rows or rows[-1][0].cell_len + width + 1 > console.width:
            rows.append((Text(), Text()))
        rows[-1][0].append(shown + " " * (width - cell_len(shown)), style=COLOURS[i % len(COLOURS)]).append(gap)
        rows[-1][1].append(f"{token['id']:<{width}}", style="dim").append(gap)
    for above, below in rows:
        console.print(above, no_wrap=True, crop=False, overflow="ignore")
        console.print(below, no_wrap=True, crop=False, overflow="ignore")
    if rows:
        print()


def print_merges(rows: Sequence[dict[str, Any]]) -> None:
    """One block for each piece, one line for each merge."""
    for row in rows[:MOST_PIECES_WITH_MERGES]:
        width = len(str(len(row["stages"]) - 1))
        for number, stage in enumerate(row["stages"]):
            print(f"  {number:>{width}}  {' '.join(stage)}")
        print()
    if len(rows) > MOST_PIECES_WITH_MERGES:
        print(f"... and {len(rows) - MOST_PIECES_WITH_MERGES} more different pieces (--json has all)\n")


def language_rows(tokenizer: "Tokenizer", price: float | None) -> list[dict[str, Any]]:
    """The same sentence in each language: its size in characters, bytes and tokens."""
    rows: list[dict[str, Any]] = []
    for language, sentence in SENTENCE.items():
        tokens, size = len(tokenizer.encode(sentence)), len(sentence.encode())
        row: dict[str, Any] = {"language": language, "characters": len(sentence), "bytes": size, "tokens": tokens}
        row |= {"tokens_per_byte": tokens / size, "tokens_per_character": tokens / len(sentence)}
        row["times_english"] = tokens / (rows[0]["tokens"] if rows else tokens)
        if price is not None:
            row["price_of_a_million"] = tokens * price
        rows.append(row)
    return rows


def print_languages(rows: Sequence[dict[str, Any]]) -> None:
    """A table on stdout."""
    from rich.console import Console
    from rich.table import Table

    names = ["language", "chars", "bytes", "tokens", "tok/byte", "tok/char", "x English"]
    if "price_of_a_million" in rows[0]:
        names.append("1M times")
    table = Table(*names, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        cells = [row["language"], *(str(row[name]) for name in ("characters", "bytes", "tokens"))]
        cells += [f"{row[name]:.2f}" for name in ("tokens_per_byte", "tokens_per_character", "times_english")]
        cells += [f"{row['price_of_a_million']:,.2f}"] if "price_of_a_million" in row else []
        table.add_row(*cells)
    Console().print(table)
    print("\nUniversal Declaration of Human Rights, article 1, first sentence")


# ---------------------------------------------------------------------------------------------------- train-tokenizer


def run_train(args: argparse.Namespace) -> int:
    """`minifer train-tokenizer ...`."""
    from minifer.tokenizer import Tokenizer, bpe
    from minifer.tokenizer.pretokenize import PATTERNS

    special = args.special or ["<|endoftext|>"]
    if len(set(special)) < len(special) or "" in special:
        raise UsageError("--special: each control token can be given once, and none is empty")
    if args.vocab_size < 256 + len(special):
        raise UsageError(f"--vocab-size is {args.vocab_size}; 256 bytes and {len(special)} control tokens need more")
    if args.output.exists() and not args.output.is_dir():
        raise UsageError(f"{args.output} is a file; -o names the folder to write to")
    texts = [bpe.as_text(path.read_bytes(), str(path)) for path in args.files]
    pattern = PATTERNS.get(args.pattern, args.pattern)
    with MergeBar() as bar:
        merges = bpe.train(texts, args.vocab_size - len(special), pattern, bar.update)
    tokenizer = Tokenizer.from_merges(merges, pattern=pattern, special_tokens=special)
    tokenizer.save(args.output)
    report = trained_report(tokenizer, texts, len(merges), args)
    print(json.dumps(report, ensure_ascii=False) if args.json else trained_summary(report))
    return 0


def trained_report(
    tokenizer: "Tokenizer", texts: Sequence[str], merges: int, args: argparse.Namespace
) -> dict[str, Any]:
    """What was made, and how well it packs the text it was made from (its first megabyte)."""
    sample = "".join(texts)[:SAMPLE_BYTES]
    return {
        "output": str(args.output),
        "vocab_size": tokenizer.vocab_size,
        "asked_for": args.vocab_size,
        "merges": merges,
        "special_tokens": tokenizer.special_tokens,
        "bytes": sum(len(text.encode()) for text in texts),
        "bytes_per_token": len(sample.encode()) / len(tokenizer.encode(sample)),
    }


def trained_summary(report: dict[str, Any]) -> str:
    """The same in sentences."""
    control = len(report["special_tokens"])
    lines = [
        f"{report['vocab_size']:,} tokens: 256 bytes, {report['merges']:,} merges, {control} control",
        f"{report['bytes_per_token']:.2f} bytes per token on the text it was trained on ({report['bytes']:,} bytes)",
        f"written to {report['output']} (tokenizer.json, tokenizer_config.json)",
    ]
    if report["vocab_size"] < report["asked_for"]:
        lines.insert(1, f"fewer than the {report['asked_for']:,} asked for: the text has no more pairs to merge")
    return "\n".join(lines)


class MergeBar:
    """A progress bar on stderr that counts merges; drawn from the first merge on."""

    def __init__(self) -> None:
        """Nothing is drawn yet."""
        self._bar: Any = None

    def __enter__(self) -> "MergeBar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int) -> None:
        """`done` of `total` merges are made."""
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("merges"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(file=sys.stderr))
            self._bar.start()
            self._bar.add_task("merges", total=total)
        self._bar.update(self._bar.task_ids[0], completed=done)
