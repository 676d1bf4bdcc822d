"""`minifer roofline`: this machine's ceilings, what a model should do under them, and what it does.

With a model alone, everything is measured here and drawn. With `--hardware` nothing is: the prediction is made for a
machine from the table of datasheet figures, for any model whose configuration is at hand. With `--redraw` the figures
are drawn again from a `roofline.json`.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minifer.apps import options
from minifer.apps.numerals import milliseconds, three
from minifer.errors import FormatError, UsageError

WIDTH = 110
REPORT = "roofline.json"
PARTS = ("linears", "attention", "head", "other")
MOST_AT_ONCE = 64


def add_parser(subparsers: Any) -> None:
    """Declare `minifer roofline`."""
    parser = subparsers.add_parser("roofline", help="this machine's ceilings, and how near a model comes")
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", default="smollm2-135m",
        help="a known name, a folder, a .gguf file, `tiny`, `random:NAME`, or (with --hardware) a config.json",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("."), metavar="FOLDER", help="where files go (default: here)")
    parser.add_argument("--batch", type=_numbers, metavar="N,N", help="batch sizes of decode steps")
    parser.add_argument("--context", type=_numbers, metavar="N,N", help="contexts of decode steps, in tokens")
    parser.add_argument("--prompt", type=_numbers, metavar="N,N", help="prompt lengths of prefill steps")
    parser.add_argument("--json", action="store_true", help="print the report as JSON and nothing else")
    here = parser.add_argument_group("measuring here")
    here.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default auto)")
    here.add_argument("--threads", type=int, metavar="N", help="threads or processes (default: one per usable core)")
    here.add_argument("--repeats", type=int, default=5, metavar="N", help="least repetitions of a step (default 5)")
    here.add_argument("--fresh", action="store_true", help="measure the ceilings again, even if they were kept")
    here.add_argument("--quick", action="store_true", help="a few small steps only; half a minute")
    here.add_argument("--max-kv-gb", type=float, default=4.0, metavar="GB", help="most memory for a cache (default 4)")
    here.add_argument("--redraw", type=Path, metavar="FILE", help="draw the figures from this roofline.json again")
    there = parser.add_argument_group("predicting for elsewhere")
    there.add_argument("--hardware", metavar="NAME", help="a machine of the table (`--hardware list` shows it)")
    there.add_argument("--dtype", metavar="TYPE", help="format of the weights: bfloat16 (default), float32, q8_0 ...")


def run(args: argparse.Namespace) -> int:
    """Predict, measure or draw, as the options say."""
    if args.hardware is not None:
        from minifer.apps import roofline_elsewhere

        return roofline_elsewhere.run(args)
    if args.dtype is not None:
        raise UsageError("--dtype is for predictions with --hardware; what is measured here is float32")
    if args.redraw is not None:
        _print_files(_draw(_stored(args.redraw), args.out))
        return 0
    return _measure(args)


def _measure(args: argparse.Namespace) -> int:
    from minifer.apps.roofline_run import Run

    sweep = _sweep(args)
    llm = _open(args, sweep)
    with llm:
        job = Run(llm, sweep, threads=args.threads, kv_limit_bytes=_kv_limit(args), repeats=args.repeats)
        try:
            _steps(job, args)
        finally:
            # Ctrl-C, too, leaves what was measured until then.
            if job.report["steps"]:
                files = _save(job.report, args.out)
                if not job.report["complete"] and not args.json:
                    _print_files(files)
    if args.json:
        print(json.dumps(job.report, ensure_ascii=False))
    else:
        _print_files(files)
    return 0


def _steps(job: Any, args: argparse.Namespace) -> None:
    """Ceilings, prediction, steps, requests, ceilings; each told when it is known."""
    say = (lambda _: None) if args.json else _say
    with _Bar() as bar:
        bar.start("ceilings", 0)
        job.measure_ceilings(bar.update, fresh=args.fresh)
        say(ceilings_in_words(job.report))
        say("\nPredicted, before anything is measured:")
        for row in job.predict():
            rate = f"{three(row['batch'] * row['length'] / row['predicted_s'])} tok/s"
            say(f"  {_name(row):<18}{milliseconds(row['predicted_s']):>11}{rate:>15}   limited by {row['limiter']}")
        for name, crossing in job.report["crossings"].items():
            say(f"  {_CROSSINGS[name].format(**crossing)} {crossing['why']}.")
        heading = f"  {'step':<18}{'predicted':>11}{'measured':>11}{'ratio':>7}{'tok/s':>9}"
        say(f"\nMeasured (median of at least {args.repeats}):\n{heading}   time in linears, attention, head, other")
        bar.start("steps", len(job.steps))
        for row in job.measure_steps():
            say(f"  {row}" if isinstance(row, str) else _measured_line(row))
            bar.advance()
        if not job.report["steps"]:
            raise UsageError("nothing could be measured: " + "; ".join(job.report["refused"] or ["no step fits"]))
        say("\nWhole requests through the engine:\n"
            f"  {'prompt x batch':<18}{'TTFT':>11}{'predicted':>11}{'ITL':>11}{'predicted':>11}")  # fmt: skip
        bar.start("requests", job.num_requests)
        for row in job.measure_requests():
            say(_request_line(row))
            bar.advance()
        bar.start("ceilings once more", 0)
        job.finish()
    say(verdict(job.report))


def verdict(report: Mapping[str, Any]) -> str:
    """The labelled points of the first figure with their explanations, then the remarks."""
    from minifer.apps import roofline_report

    found = ["\nWhere the points stand, and why:"]
    for p in roofline_report.headline(report["points"]):
        text = f"{_name(p)}, {p['op']}, at {p['share']:.0%} of its roof: {p['explained'] or 'NOT EXPLAINED'}."
        found.append(textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="    "))
    cost = [row["timer_s"] / row["measured_s"] for row in report["steps"] if row["phase"] == "decode"]
    if cost:
        found.append(f"The timers themselves cost {min(cost):.1%} to {max(cost):.1%} of a decode step.")
    return "\n".join([*found, *(textwrap.fill(remark, WIDTH) for remark in report["remarks"])])


class _Bar:
    """One line on stderr that says what is being measured and how far it has come; the terminal only."""

    def __enter__(self) -> "_Bar":
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(file=sys.stderr)
        self._progress = Progress(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("")
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, what: str, total: int) -> None:
        """Something new; a total of 0 means that it is not known."""
        self._progress.reset(self._task, description=what, total=total or None)

    def advance(self) -> None:
        """One more is done."""
        self._progress.advance(self._task)

    def update(self, what: str, done: int, total: int) -> None:
        """The way in which the core reports its progress."""
        self._progress.update(self._task, description=what, completed=done, total=total or None)


_CROSSINGS = {
    "linears_compute_bound": "Linear layers turn compute-bound",
    "kv_equals_weights": "At context {context:,} a decode step reads as much cache as weights",
}


def ceilings_in_words(report: Mapping[str, Any]) -> str:
    """The model, the machine and its three ceilings."""
    m, c, s = report["model"], report["ceilings"], report["conditions"]
    overhead = sum(once for once, _ in c["overhead_s"].values())
    far = [r for r in c["machine"]["reads"] if r["threads"] == c["threads"]]
    levels = ", ".join(f"{_bytes(r['bytes'])} {r['bytes_per_s'] / 1e9:.3g}" for r in far)
    load = "unknown" if s["load_average"] is None else f"{s['load_average']:.1f}"  # Windows keeps none
    lines = [
        f"{m['name']}: {m['parameters'] / 1e6:,.1f} million parameters, {m['weight_bytes'] / 1e6:,.4g} MB of weights "
        f"read per step, {m['kv_bytes_per_token']:,} bytes of cache per token, {m['dtype']}, room {m['room']}",
        f"{s['cpu']}, {c['threads']} of {s['usable_cores']} cores, Python {s['python']}, NumPy {s['numpy']}, "
        f"{', '.join(s['blas'])}, load average {load}",
        f"Ceilings at a working set of {_bytes(c['working_set_bytes'])}: reads {c['read_bytes_per_s'] / 1e9:.3g} GB/s, "
        f"multiplies {c['flops_per_s'] / 1e9:.3g} GFLOP/s, ridge {c['ridge']:.3g} FLOP per byte; "
        f"a decode step without its work takes {milliseconds(overhead)}",
        *([f"Reading by working set, GB/s: {levels}"] if levels else []),
    ]
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines)


def _sweep(args: argparse.Namespace) -> Any:
    from minifer.apps.roofline_run import Sweep

    quick = {"prompts": (16, 128), "batches": (1, 4, 16), "contexts": (128, 512)} if args.quick else {}
    given = {"prompts": args.prompt, "batches": args.batch, "contexts": args.context}
    return Sweep(**{**quick, **{name: value for name, value in given.items() if value}})


def _open(args: argparse.Namespace, sweep: Any) -> Any:
    """The model with an engine that takes every prompt of the sweep in one step and its batches at once."""
    from minifer.llm import LLM

    at_once = max((b for b in sweep.batches if b <= MOST_AT_ONCE), default=1)
    with options.ProgressBars() as bars:
        return LLM(
            args.model,
            device=args.device,
            max_num_seqs=at_once,
            max_num_batched_tokens=max(*sweep.prompts, at_once),
            enable_prefix_caching=False,
            progress=bars.update,
            room_options={"threads": args.threads} if args.threads else None,
        )


def _kv_limit(args: argparse.Namespace) -> float:
    """The limit that was given, and at most a quarter of what is free now."""
    from minifer.apps.doctor import memory

    return min(args.max_kv_gb * 1e9, memory()["available_bytes"] / 4)


def _save(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write roofline.json, then the figures."""
    from minifer.formats.atomic import atomic_path

    path = folder / REPORT
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(report, indent=1, ensure_ascii=False), "utf-8")
    return [path, *_draw(report, folder)]


def _draw(report: Mapping[str, Any], folder: Path) -> list[Path]:
    from minifer.apps.view.roofline_figures import draw_all

    folder.mkdir(parents=True, exist_ok=True)
    return draw_all(report, folder)


def _stored(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text("utf-8"))
        missing = {"model", "ceilings", "conditions", "points", "steps", "requests"} - report.keys()
    except (ValueError, AttributeError) as error:
        raise FormatError(f"{path} is no {REPORT}: {error}") from None
    if missing:
        raise FormatError(f"{path} is no {REPORT}: it lacks {', '.join(sorted(missing))}")
    stored: dict[str, Any] = report
    return stored


def _numbers(text: str) -> tuple[int, ...]:
    """`1,8,64` as numbers, in their order and each once."""
    try:
        numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers such as 1,8,64") from None
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: every number must be at least 1")
    return numbers


def _measured_line(row: Mapping[str, Any]) -> str:
    whole = sum(row["parts_s"].values())
    shares = "  ".join(f"{row['parts_s'].get(name, 0) / whole:4.0%}" for name in PARTS)
    times = f"{milliseconds(row['predicted_s']):>11}{milliseconds(row['measured_s']):>11}{row['ratio']:>7.2f}"
    return f"  {_name(row):<18}{times}{three(row['tokens_per_s']):>9}   {shares}"


def _request_line(row: Mapping[str, Any]) -> str:
    name = f"{row['prompt']:,} x {row['batch']}"
    values = (row["ttft_s"], row["predicted_ttft_s"], row["itl_s"], row["predicted_itl_s"])
    return f"  {name:<18}" + "".join(f"{milliseconds(value):>11}" for value in values)


def _name(row: Mapping[str, Any]) -> str:
    if row["phase"] == "prefill":
        return f"prefill {row['length']:,}"
    return f"decode {row['batch']} at {row['context']:,}"


def _bytes(count: float) -> str:
    """A size with its unit: 32 KiB, 2 MiB, 1.0 GiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):.3g} {unit}"
    return f"{count} bytes"


def _say(text: str) -> None:
    print(text, flush=True)


def _print_files(files: list[Path]) -> None:
    print("\nwritten: " + ", ".join(str(path) for path in files))
