"""`minifer bench micro MODEL`: the speed of prefill and decode, as shares of what this machine can do.

The flags and the table are llama-bench's (`-p 512 -n 128 -d 1024 -r 5`), with one difference: `-b` is how many
sequences decode in one step. Two columns more say how near the speed is to the ceilings that were measured in the same
run: MBU for reading (weights and KV cache), MFU for arithmetic. The ceilings are measured again at the end; if they
have moved by more than 10 %, the machine was not quiet and no figure of the run is worth keeping.

Engines take turns: every repetition of a test goes round all of them (the rooms named with `--room`, and with `--peers`
other engines on this machine), so that what slows the machine for a while slows all of them.

`--profile` shows instead where the time of a step goes, and how large a step is with nothing to compute.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from minifer import __version__
from minifer.apps import bench_peers
from minifer.apps.bench_peers import PeerInfo
from minifer.apps.bench_profile import overhead_line, profile_object, profile_table
from minifer.apps.bench_rows import FORMATS, Row, make_row, model_columns, printed
from minifer.apps.options import ProgressBars
from minifer.errors import CapacityError, MiniferError, UsageError
from minifer.model.config import ModelConfig
from minifer.model.load import Model, load_model
from minifer.roofline.probes import Ceilings, measure_ceilings, usable_cores
from minifer.roofline.profile import null_profile, profile
from minifer.roofline.speed import UBATCH, Job, RoomBench

ROOMS = ("reference", "cpu")

QUIET = 0.10
"""Ceilings that move by more than this between the beginning and the end mean that the machine was busy."""

SHARE_OF_MEMORY = 0.5
"""Most of the available memory that a KV cache may take."""


class Bench(Protocol):
    """What is measured: a room, or a peer."""

    def run(self, job: Job, *, warm_up: bool = False) -> float: ...
    def close(self) -> None: ...


@dataclass
class Contestant:
    """An engine that takes part: its columns in the table, the width of its KV cache, and the seconds it took."""

    name: str
    bench: Bench
    columns: Row
    kv_width: int = 4
    seconds: dict[Job, list[float]] = field(default_factory=dict)


def add_parser(subparsers: Any) -> None:
    """Declare `minifer bench micro`."""
    parser = subparsers.add_parser("micro", help="prefill and decode speed of one model")
    parser.add_argument("model", metavar="MODEL", help="a known name, a folder, a .gguf file, `tiny`, or `random:NAME`")
    number, count = "one number, or several with commas", {"type": numbers, "metavar": "N"}
    parser.add_argument("-p", "--n-prompt", default=[512], help=f"tokens of a prompt; {number} (default 512)", **count)
    parser.add_argument("-n", "--n-gen", default=[128], help=f"tokens to generate; {number} (default 128)", **count)
    parser.add_argument("-d", "--n-depth", default=[0], help=f"tokens that are in the cache already; {number}", **count)
    parser.add_argument("-b", "--batch", default=[1], help=f"sequences that decode together; {number}", **count)
    parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="(default 5)")
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="(default: one per usable core)")
    parser.add_argument("-ub", "--ubatch-size", type=int, default=UBATCH, metavar="N",
                        help=f"most tokens of a prompt in one step (default {UBATCH})")  # fmt: skip
    parser.add_argument("-o", "--output", choices=FORMATS, default="md", help="(default md)")
    parser.add_argument("--json", action="store_true", help='print {"rows": [...], "conditions": {...}}')
    parser.add_argument("--room", default="cpu", metavar="ROOM", help="cpu, reference, or both with a comma")
    parser.add_argument("--peers", action="store_true", help="also measure the peers that are installed")
    parser.add_argument("--peer", action="append", metavar="NAME", default=[], help="only this peer; may be repeated")
    parser.add_argument("--profile", action="store_true", help="show where the time of a step goes")


def numbers(text: str) -> list[int]:
    """Whole numbers with commas between them.

    >>> numbers("1,8")
    [1, 8]
    """
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers like 512 or 1,8") from None
    if min(found) < 0:
        raise argparse.ArgumentTypeError(f"{min(found)} is negative")
    return found


def run(args: argparse.Namespace) -> int:
    """Measure, and print. Ctrl-C prints what there is by then."""
    rooms, threads = check(args)
    jobs, peers = jobs_of(args), bench_peers.chosen(args.peer) if args.peers or args.peer else []
    with ProgressBars() as bars:
        model = load_model(args.model, progress=bars.update)
    check_fit(model.config, jobs)
    if args.profile:
        return run_profile(args, model, rooms[0], threads)
    report = Report(model, threads, args.ubatch_size)
    try:
        with contestants(model, rooms, peers, threads, args.ubatch_size) as found:
            report.contestants = found
            measure(found, jobs, args.repetitions)
        report.finish()
    finally:
        report.print(args.output, as_object=args.json)
    return 0


def run_profile(args: argparse.Namespace, model: Model, room: str, threads: int) -> int:
    """`--profile`: the parts of a prefill and of decode steps, and the step without numbers."""
    before = ceilings_of(model, threads)
    bench = RoomBench(model, room, threads, ubatch=args.ubatch_size)
    try:
        profiles = [profile(bench, job, before, args.repetitions) for job in jobs_of(args)]
    finally:
        bench.close()
    null = null_profile(model.config, room, threads)
    after = ceilings_of(model, threads)
    if args.json:
        found = {
            "profiles": [profile_object(p) for p in profiles],
            "null_step": profile_object(null),
            "conditions": conditions(model, threads) | ceiling_conditions(before, after) | {"room": room},
        }
        print(json.dumps(found, indent=2, default=str))
        return 0
    for one in profiles:
        print(profile_table(one, f"{model.name}, minifer {room}, {threads} threads"), end="\n\n")
    print(overhead_line(null, profiles))
    print(ceiling_line(before, after))
    if (warning := quiet_warning(before, after)) is not None:
        print(warning)
    return 0


def check(args: argparse.Namespace) -> tuple[list[str], int]:
    """The rooms and the number of threads. Raises UsageError for values that make no sense."""
    for name in ("repetitions", "ubatch_size"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}")
    if args.threads is not None and not 1 <= args.threads <= (os.cpu_count() or 1):
        raise UsageError(f"--threads must be between 1 and {os.cpu_count()}, the cores of this machine")
    if args.profile and (args.peers or args.peer or "," in args.room or args.output != "md"):
        raise UsageError("--profile looks into one room and prints a table, or JSON with --json: no peers, no -o")
    rooms = list(dict.fromkeys(args.room.split(",")))
    unknown = [room for room in rooms if room not in ROOMS]
    if unknown:
        raise UsageError(f"--room {unknown[0]!r}: use {', '.join(ROOMS)}, or both with a comma")
    return rooms, args.threads or usable_cores()


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """The tests, in llama-bench's order: for each depth the prompts, then what is generated. 0 leaves a test out."""
    jobs = []
    for depth in args.n_depth:
        jobs += [Job(n_prompt=n, n_depth=depth) for n in args.n_prompt if n]
        jobs += [Job(n_gen=n, n_depth=depth, batch=b) for n in args.n_gen if n for b in args.batch]
    if not jobs:
        raise UsageError("nothing to measure: -p and -n are both 0")
    return list(dict.fromkeys(jobs))


def check_fit(config: ModelConfig, jobs: Sequence[Job]) -> None:
    """Refuse what the model's context or this machine's memory has no room for, before anything runs."""
    from minifer.apps.doctor import memory

    available = memory()["available_bytes"]
    for job in jobs:
        if job.length > config.max_position_embeddings:
            raise UsageError(f"{job.name} needs {job.length} positions, the model has {config.max_position_embeddings}")
        needed = job.length * job.batch * config.kv_bytes_per_token
        if needed > SHARE_OF_MEMORY * available:
            raise CapacityError(
                f"{job.name} needs {needed / 1e9:.1f} GB of KV cache, and {available / 1e9:.1f} GB of memory are "
                f"available: lower -b or -d"
            )


@contextlib.contextmanager
def contestants(
    model: Model, rooms: Sequence[str], peers: Sequence[PeerInfo], threads: int, ubatch: int
) -> Iterator[list[Contestant]]:
    """The rooms and the peers, ready to run; all are closed at the end."""
    columns = model_columns(model.name, model.config) | {"n_threads": threads}
    found: list[Contestant] = []
    with contextlib.ExitStack() as stack:
        for room in rooms:
            bench = RoomBench(model, room, threads, ubatch=ubatch)
            stack.callback(bench.close)
            more = {"backends": f"minifer {room}", "build_number": __version__, "type_k": "f32", "type_v": "f32"}
            found.append(Contestant(f"minifer {room}", bench, columns | more))
        if peers:
            found += _peers(model, peers, threads, columns, stack)
        yield found


def _peers(
    model: Model, peers: Sequence[PeerInfo], threads: int, columns: Row, stack: contextlib.ExitStack
) -> Iterator[Contestant]:
    with ProgressBars() as bars:
        benches = stack.enter_context(bench_peers.running(peers, model, threads, bars.update))
    for bench in benches:
        info, width = bench.info, f"f{8 * bench.info.kv_width}"
        more = {"backends": info.name, "build_number": info.version, "type_k": width, "type_v": width}
        yield Contestant(info.name, bench, columns | more, info.kv_width)


def measure(found: Sequence[Contestant], jobs: Sequence[Job], repetitions: int) -> None:
    """Every test on every engine: once to warm up, then in turns. An engine that fails at a test drops out of it."""
    total = len(jobs) * len(found) * (repetitions + 1)
    with progress_bar(total) as advance:
        for job in jobs:
            going = list(found)
            for repetition in range(repetitions + 1):
                for one in list(going):
                    advance(f"{job.name} {one.name}")
                    try:
                        seconds = one.bench.run(job, warm_up=repetition == 0)
                    except MiniferError as error:
                        print(f"minifer: {job.name} left out: {error}", file=sys.stderr)
                        going.remove(one)
                        continue
                    if repetition:
                        one.seconds.setdefault(job, []).append(seconds)


@contextlib.contextmanager
def progress_bar(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr, drawn only for somebody who looks at it; the function that it gives advances it by one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(file=sys.stderr)
    # A bar that refreshes itself would take time from what is measured: it is redrawn between two measurements only.
    with Progress(*columns, console=console, disable=not console.is_terminal, auto_refresh=False) as bar:
        task, done = bar.add_task("", total=total), 0

        def advance(what: str) -> None:
            nonlocal done
            bar.update(task, description=what, completed=done, refresh=True)
            done += 1

        yield advance


class Report:
    """The ceilings around a run, and its rows."""

    def __init__(self, model: Model, threads: int, ubatch: int) -> None:
        """Measure the ceilings for the first time."""
        self._model, self._threads, self._ubatch = model, threads, ubatch
        self.conditions = conditions(model, threads)
        self.contestants: list[Contestant] = []
        self.before = ceilings_of(model, threads)
        self.after: Ceilings | None = None

    def finish(self) -> None:
        """Measure them again, when the room has gone."""
        self.after = ceilings_of(self._model, self._threads)

    def rows(self) -> list[Row]:
        """All rows, test by test. Shares are taken of the higher of the two measurements of each ceiling."""
        best = best_of(self.before, self.after)
        jobs = dict.fromkeys(job for one in self.contestants for job in one.seconds)
        return [
            make_row(job, one.seconds[job], config=self._model.config, ceilings=best, kv_width=one.kv_width,
                     ubatch=self._ubatch, **one.columns)
            for job in jobs for one in self.contestants if job in one.seconds
        ]  # fmt: skip

    def as_object(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {"rows": self.rows(), "conditions": self.conditions | ceiling_conditions(self.before, self.after)}

    def print(self, form: str, *, as_object: bool) -> None:
        """Print the rows as wanted; what a reader of the table has to know stands below it, or on stderr."""
        rows = self.rows()
        if not rows:
            return  # nothing was measured, and the error says why
        if as_object:
            print(json.dumps(self.as_object(), indent=2, default=str))
            return
        print(printed(rows, form))
        lines = [*condition_lines(self.conditions), ceiling_line(self.before, self.after)]
        if (warning := quiet_warning(self.before, self.after)) is not None:
            lines.append(warning)
        print("\n" + "\n".join(lines) if form == "md" else "\n".join(lines),
              file=sys.stdout if form == "md" else sys.stderr)  # fmt: skip


def ceilings_of(model: Model, threads: int) -> Ceilings:
    """Both ceilings, reading as much as the model's weights are."""
    from minifer.apps.doctor import memory

    available = memory()["available_bytes"]
    return measure_ceilings(4 * model.weights.num_parameters, memory_limit_bytes=available, threads=threads,
                            seconds_each=1.0)  # fmt: skip


def best_of(before: Ceilings, after: Ceilings | None) -> Ceilings:
    """A ceiling is what the machine can do, so the higher of two measurements counts."""
    if after is None:
        return before
    return Ceilings(
        max(before.read_bytes_per_s, after.read_bytes_per_s),
        max(before.flops_per_s, after.flops_per_s),
        before.working_set_bytes,
        before.threads,
    )


def quiet_warning(before: Ceilings, after: Ceilings | None) -> str | None:
    """One line if the ceilings moved by more than `QUIET`.

    >>> quiet_warning(Ceilings(10e9, 100e9, 1), Ceilings(8e9, 100e9, 1))
    'machine not quiet: the ceilings moved by -20 % during the run, measure again'
    """
    if after is None or abs(drift := before.drift(after)) <= QUIET:
        return None
    return f"machine not quiet: the ceilings moved by {100 * drift:+.0f} % during the run, measure again"


def ceiling_line(before: Ceilings, after: Ceilings | None) -> str:
    """What 100 % is."""
    best = best_of(before, after)
    again = f", measured again {100 * before.drift(after):+.1f} %" if after else ""
    return (
        f"100 % MBU = {best.read_bytes_per_s / 1e9:.1f} GB/s read over {best.working_set_bytes / 1e6:.0f} MB; "
        f"100 % MFU = {best.flops_per_s / 1e9:.0f} GFLOP/s in float32; {best.threads} threads{again}"
    )


def ceiling_conditions(before: Ceilings, after: Ceilings | None) -> dict[str, Any]:
    """The ceilings as data."""
    return {
        "ceilings_before": asdict(before),
        "ceilings_after": asdict(after) if after else None,
        "drift": before.drift(after) if after else None,
        "quiet": quiet_warning(before, after) is None if after else None,
    }


def conditions(model: Model, threads: int) -> dict[str, Any]:
    """Under which circumstances the figures came about."""
    from minifer.apps import doctor

    shared = doctor.conditions()
    return {
        "cpu_info": shared.pop("cpu"),  # llama-bench's name for it
        **shared,
        "threads": threads,
        "blas": doctor.blas(),
        "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE"),
        "model": model.name,
        "interleaved": "each repetition of a test goes round all engines",
    }


def condition_lines(found: dict[str, Any]) -> list[str]:
    """The conditions that belong under a table."""
    libraries = ", ".join(f"{b['internal_api']} {b['version']} ({b['architecture']})" for b in found["blas"])
    if found["openblas_coretype"]:
        libraries += f", OPENBLAS_CORETYPE={found['openblas_coretype']}"
    load = f", load average {found['load_average']:.2f} at the start" if found["load_average"] is not None else ""
    return [
        f"build: minifer {found['minifer']}, Python {found['python']}, NumPy {found['numpy']}, {libraries}",
        f"machine: {found['cpu_info']}, {found['usable_cores']} usable cores, {found['system']}{load}",
    ]
