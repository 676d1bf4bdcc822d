"""`minifer bench batching MODEL`: what continuous batching, the prefix cache, chunks and pages gain and cost.

    static      static against continuous batching on one workload, beside the law that says what to expect
    prefix      a cached prefix against computing the same tokens on an existing context
    chunk       the size of a prompt's chunks against the worst gap in running answers
    paged       decoding on a contiguous cache, on a fresh pool, on shuffled blocks
    scheduler   the decisions alone, and writing a trace

Every ratio is taken between runs that take turns. The ceilings of the machine are measured before and after; if they
have moved by more than 10 %, no figure of the run is worth keeping. Lengths and prompts come from `--seed`.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from minifer.apps.bench_batching_law import Law
from minifer.apps.bench_batching_parts import Alone, Chunk, Paged, Prefix
from minifer.apps.bench_batching_rows import QUICK, Part, Sizes, table
from minifer.apps.bench_micro import (
    ROOMS,
    ceiling_conditions,
    ceiling_line,
    ceilings_of,
    condition_lines,
    conditions,
    progress_bar,
    quiet_warning,
)
from minifer.apps.options import ProgressBars
from minifer.errors import UsageError
from minifer.model.load import Model, load_model
from minifer.roofline.probes import Ceilings, usable_cores
from minifer.roofline.speed import RoomBench

PARTS: dict[str, Callable[[RoomBench, Sizes, int], Part]] = {
    "static": Law,
    "prefix": Prefix,
    "chunk": Chunk,
    "paged": Paged,
    "scheduler": Alone,
}
FIGURE = Path("batching.png")


def add_parser(subparsers: Any) -> None:
    """Declare `minifer bench batching`."""
    parser = subparsers.add_parser("batching", help="static and continuous batching on one workload")
    parser.add_argument("model", metavar="MODEL", help="a known name, a folder, a .gguf file, `tiny`, or `random:NAME`")
    parser.add_argument("--only", metavar="PART,PART", help=f"some of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works, not for figures")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of lengths and prompts (default 0)")
    parser.add_argument("-r", "--repetitions", type=int, metavar="N", help="of what is cheap (default 5)")
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="(default: one per usable core)")
    parser.add_argument("--room", default="cpu", choices=ROOMS, help="(default cpu)")
    parser.add_argument("--figure", type=Path, default=FIGURE, metavar="PATH", help=f"(default {FIGURE})")
    parser.add_argument("--json", action="store_true", help='print {"rows": [...], "conditions": {...}}')


def run(args: argparse.Namespace) -> int:
    """Measure, print, draw. Ctrl-C prints and draws what there is by then."""
    names, sizes = check(args)
    threads = args.threads or usable_cores()
    with ProgressBars() as bars:
        model = load_model(args.model, progress=bars.update)
    report = Report(args, model, threads)
    bench = RoomBench(model, args.room, threads)
    try:
        report.parts = [PARTS[name](bench, sizes, args.seed) for name in names]
        with bench.blas_threads(), progress_bar(sum(part.ticks for part in report.parts)) as advance:
            for part in report.parts:
                part.measure(advance)
        bench.close()
        report.finish()
    finally:
        bench.close()
        report.print()
    return 0


def check(args: argparse.Namespace) -> tuple[list[str], Sizes]:
    """The parts, in their own order, and the sizes. Raises UsageError for values that make no sense."""
    wanted = args.only.split(",") if args.only is not None else list(PARTS)
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        raise UsageError(f"--only {unknown[0]!r}: use some of {', '.join(PARTS)}, with commas")
    if args.repetitions is not None and args.repetitions < 1:
        raise UsageError(f"--repetitions must be at least 1, not {args.repetitions}")
    if args.threads is not None and args.threads < 1:
        raise UsageError(f"--threads must be at least 1, not {args.threads}")
    if args.figure.is_dir() or not args.figure.absolute().parent.is_dir():
        raise UsageError(f"--figure {args.figure}: give the name of a file in a folder that exists")
    sizes = QUICK if args.quick else Sizes()
    if args.repetitions is not None:
        sizes = replace(sizes, repeats=args.repetitions, long_repeats=min(args.repetitions, sizes.long_repeats))
    return [name for name in PARTS if name in wanted], sizes


class Report:
    """The ceilings around a run, and what its parts found."""

    def __init__(self, args: argparse.Namespace, model: Model, threads: int) -> None:
        """Measure the ceilings for the first time."""
        self.args, self.model, self.threads = args, model, threads
        self.parts: Sequence[Part] = ()
        self.conditions = conditions(model, threads)
        self.conditions |= {"room": args.room, "seed": args.seed, "quick": args.quick}
        self.conditions["interleaved"] = "whatever is compared takes turns"
        self.before = ceilings_of(model, threads)
        self.after: Ceilings | None = None

    def finish(self) -> None:
        """Measure them again, when the room has gone."""
        self.after = ceilings_of(self.model, self.threads)

    def print(self) -> None:
        """The table and what it means, or one JSON object; then the figure. Nothing if nothing was measured."""
        from minifer.apps.view.batching_figures import draw

        rows = [row for part in self.parts for row in part.rows()]
        if not rows:
            return
        found: dict[str, Any] = {
            "rows": [row.as_dict() for row in rows],
            "words": [words for part in self.parts for words in part.words()],
            "conditions": self.conditions | ceiling_conditions(self.before, self.after),
        }
        figure = draw(found, self.args.figure)
        if self.args.json:
            print(json.dumps(found | {"figure": str(figure) if figure else None}, indent=2, default=str))
            return
        print(table(rows))
        print("\n" + "\n".join(found["words"]))
        print("\n" + "\n".join([*condition_lines(self.conditions), ceiling_line(self.before, self.after)]))
        if (warning := quiet_warning(self.before, self.after)) is not None:
            print(warning)
        if figure:
            print(f"figure: {figure}")
