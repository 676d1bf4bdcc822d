"""`minifer step WORKLOAD`: watch the scheduler decide, one step at a time, with no model and no waiting.

Each step shows the plan as a sentence, the queue, who sits in the batch, and the map of the blocks. In a terminal,
keys move forward and back; with `--script`, in a pipe and with `--json` nothing is asked.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from minifer.apps.stepper import SCHEDULERS, Block, Frame, Stepper, as_json, load_workload
from minifer.errors import UsageError
from minifer.limits import EngineConfig

KEYS = "n/space/right forward, b/left back, 0 start, e end, q quit"
SIZES = ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len")


def add_parser(subparsers: Any) -> None:
    """Declare `minifer step`."""
    parser = subparsers.add_parser("step", help="the scheduler, one step at a time, with no model")
    parser.add_argument(
        "workload", nargs="?", default="demo", metavar="WORKLOAD", help="`demo`, or a .json or .csv file"
    )
    parser.add_argument("--scheduler", choices=sorted(SCHEDULERS), default="continuous", help="(default continuous)")
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help="over the workload's own limit")
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--enable-prefix-caching", action=switch, default=None, help="find shared prefixes again")
    parser.add_argument("--enable-chunked-prefill", action=switch, default=None, help="split long prompts over steps")
    parser.add_argument("--script", metavar="KEYS", help=f"keys to press, such as 'nnnbe' ({KEYS})")
    parser.add_argument("--max-steps", type=int, default=2000, metavar="N", help="end a long run here (default 2000)")
    parser.add_argument("--json", action="store_true", help="print the frames as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Step through a workload."""
    limits, arrivals = load_workload(args.workload)
    stepper = Stepper(arrivals, make_config(args, limits), args.scheduler)
    if args.script is not None:
        frames: Iterable[Frame] = walk(stepper, iter(args.script.replace(" ", "")), args.max_steps)
    elif sys.stdin.isatty() and sys.stdout.isatty() and not args.json:
        frames = walk(stepper, keys(), args.max_steps)
    else:
        frames = all_frames(stepper, args.max_steps)
    if args.json:
        config = {f.name: getattr(stepper.config, f.name) for f in fields(stepper.config)}
        print(json.dumps({"limits": config, "scheduler": args.scheduler, "frames": [as_json(f) for f in frames]}))
        return 0
    for frame in frames:
        print(draw(frame, stepper.config.block_size), flush=True)
    return 0


def make_config(args: argparse.Namespace, limits: dict[str, Any]) -> EngineConfig:
    """The limits of the workload under those of the command line, and small defaults under both."""
    names = {f.name for f in fields(EngineConfig)}
    if unknown := sorted(limits.keys() - names):
        raise UsageError(f"the workload's limits have {unknown[0]!r}; known are {', '.join(sorted(names))}")
    small = {"num_blocks": 16, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 16}
    given = {name: value for name in names if (value := getattr(args, name, None)) is not None}
    return EngineConfig(**{**small, **limits, **given})


def all_frames(stepper: Stepper, most: int) -> Iterator[Frame]:
    """Every step from the first to the last."""
    for number in range(1, most + 1):
        frame = stepper.frame(number)
        if frame.step < number:
            return
        yield frame


def walk(stepper: Stepper, pressed: Iterator[str], most: int) -> Iterator[Frame]:
    """The frames that a sequence of keys leads to. Raises UsageError for a key that means nothing."""
    at = 0
    yield stepper.frame(0)
    for key in pressed:
        if key == "q":
            return
        if key not in "nbe0":
            raise UsageError(f"the key {key!r} means nothing here: {KEYS}")
        wanted = {"n": at + 1, "b": at - 1, "e": most, "0": 0}[key]
        frame = stepper.frame(min(max(wanted, 0), most))
        at = frame.step
        yield frame


# ---- drawing ---------------------------------------------------------------------------------------------------------


def draw(frame: Frame, block_size: int) -> str:
    """One frame as text of at most 100 columns, except for the sentence."""
    lines = ["", frame.sentence]
    lines.append(f"  queue     {' '.join(frame.waiting) or '(empty)'}")
    for seat in frame.running:
        work = f"{seat.did} {seat.new}" if seat.new else seat.did
        answer = " ".join(map(str, seat.output[-8:]))
        lines.append(
            f"  {seat.id:<9} {work:<12} {seat.computed:>4} of {seat.known:<4} in the cache   "
            f"{'... ' if len(seat.output) > 8 else ''}{answer}"
        )
    lines += [
        f"  {'blocks' if row == 0 else '':<9} {text}" for row, text in enumerate(_block_rows(frame.blocks, block_size))
    ]
    ended = [f"{name} ({reason})" for name, _, reason in frame.said if reason]
    counts = f"{frame.preemptions} preemptions so far, {frame.tokens_from_cache} tokens from the cache"
    lines.append(f"  ended     {', '.join(ended) or '-'}; {counts}")
    if frame.done:
        lines.append("  everybody is done, and every answer is the one it would have been alone")
    return "\n".join(lines)


def _block_rows(blocks: tuple[Block, ...], block_size: int) -> Iterator[str]:
    """Ten blocks a line: who holds it (and how many more do), and how many of its slots are used."""
    for start in range(0, min(len(blocks), 200), 10):
        yield " ".join(_cell(block, block_size) for block in blocks[start : start + 10]).rstrip()
    if len(blocks) > 200:
        yield f"... and {len(blocks) - 200} more"


def _cell(block: Block, block_size: int) -> str:
    if block.state == "blank":
        return f"{'.':<8}"
    if block.state == "idle":
        return f"{'(cached)':<8}"
    more = f"+{len(block.held_by) - 1}" if len(block.held_by) > 1 else ""
    fill = "" if block.used == block_size else f" {block.used}"
    return f"{block.held_by[0][: 8 - len(more) - len(fill)] + more + fill:<8}"


# ---- keys ------------------------------------------------------------------------------------------------------------


def keys() -> Iterator[str]:
    """Keys from the terminal, one at a time, with the arrows and the space bar translated."""
    print(KEYS)
    names = {
        " ": "n",
        "\r": "n",
        "\n": "n",
        "\x1b[C": "n",
        "\x1b[D": "b",
        "\xe0M": "n",
        "\xe0K": "b",
        "\x04": "q",
        "": "q",
    }
    while True:
        key = _read_key()
        if key == "\x03":
            raise KeyboardInterrupt
        meant = names.get(key, key)
        if meant in ("n", "b", "e", "0", "q"):
            yield meant


def _read_key() -> str:
    try:
        import termios
        import tty
    except ImportError:  # Windows
        import msvcrt

        key: str = msvcrt.getwch()  # type: ignore[attr-defined]
        return key + msvcrt.getwch() if key in "\x00\xe0" else key  # type: ignore[attr-defined]
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        key = sys.stdin.read(1)
        return key + sys.stdin.read(2) if key == "\x1b" else key
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
