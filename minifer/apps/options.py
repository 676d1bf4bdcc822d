"""Options that several commands share: which model on which device, and how to sample. Names are vLLM's."""

import argparse
import os
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifer.errors import UsageError

if TYPE_CHECKING:
    from minifer.llm import LLM
    from minifer.sampling import SamplingParams


def add_model_options(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """The model as first positional argument (or, with a default, as `--model`), its device and the engine's sizes."""
    what = "a known name, a folder, a .gguf file, `tiny`, or `random:NAME`"
    if default is None:
        parser.add_argument("model", metavar="MODEL", help=what)
    else:
        parser.add_argument("--model", default=default, metavar="MODEL", help=f"{what} (default {default})")
    group = parser.add_argument_group("engine")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or strict (default auto)")
    group.add_argument("--dtype", help="on a GPU: bfloat16 (the default), float16 or float32")
    group.add_argument("--no-graph", action="store_true", help="on a GPU: launch the kernels of a step one by one")
    add_limit_options(group)


def add_limit_options(group: Any) -> None:
    """The engine's sizes and switches; what is not given is None."""
    group.add_argument("--max-model-len", type=int, metavar="N", help="longest prompt and answer together, in tokens")
    group.add_argument("--num-blocks", type=int, metavar="N", help="blocks of the KV cache")
    group.add_argument("--block-size", type=int, metavar="N", help="tokens in a block")
    group.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="tokens that one step may compute")
    switch = argparse.BooleanOptionalAction
    group.add_argument("--enable-prefix-caching", action=switch, default=None, help="find shared prefixes again")
    group.add_argument("--enable-chunked-prefill", action=switch, default=None, help="split long prompts over steps")


def add_sampling_options(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """All of SamplingParams. Two defaults are not the API's: greedy, so that two runs agree, and longer answers."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--n", type=int, metavar="N", help="answers to one prompt (default 1)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default 0)")
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K most likely tokens (0: all)")
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the most likely tokens that make up P")
    group.add_argument("--min-p", type=float, metavar="P", help="drop tokens below P times the likeliest one")
    group.add_argument("--repetition-penalty", type=float, metavar="R", help="above 1 discourages what was said")
    group.add_argument("--presence-penalty", type=float, metavar="R", help="subtracted from every token used before")
    group.add_argument("--frequency-penalty", type=float, metavar="R", help="subtracted for every use of a token")
    group.add_argument("--seed", type=int, metavar="S", help="makes a draw repeatable")
    group.add_argument("--max-tokens", type=int, default=max_tokens, metavar="N", help=f"(default {max_tokens})")
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    group.add_argument(
        "--stop-token-ids", type=int, action="append", metavar="ID", help="end after this token; likewise"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on after the end-of-sequence token")
    group.add_argument("--logprobs", type=int, metavar="K", help="report the K likeliest tokens (with --json)")


def sampling_params(args: argparse.Namespace) -> "SamplingParams":
    """The SamplingParams of a command line; what was not given keeps its default. Raises RequestError."""
    from minifer.sampling import SamplingParams

    names = [field.name for field in fields(SamplingParams)]
    return SamplingParams(**{n: v for n in names if (v := getattr(args, n, None)) is not None})


def open_model(args: argparse.Namespace, model: str | None = None) -> "LLM":
    """Load the model, fetching it first if it has to be, with progress bars on stderr."""
    from minifer.device import select_device
    from minifer.llm import LLM

    engine = {n: v for n in ENGINE_OPTIONS if (v := getattr(args, n, None)) is not None}
    if getattr(args, "no_graph", False):
        if select_device(args.device).name == "cpu":
            raise UsageError("--no-graph is about CUDA graphs, and this runs on the CPU: leave it out")
        engine["room_options"] = {"graphs": False}
    with ProgressBars() as bars:
        return LLM(model or args.model, progress=bars.update, **engine)


ENGINE_OPTIONS = (
    "device",
    "dtype",
    "max_model_len",
    "num_blocks",
    "block_size",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "enable_chunked_prefill",
)

LONGEST_NAME = 24
"""Files in the cache are named by their hash; a bar needs the room."""


class ProgressBars:
    """A bar on stderr for each thing that takes time. Nothing is drawn before the first report."""

    def __init__(self, *, counts: bool = False) -> None:
        """Nothing is drawn yet. What is reported are bytes, or with `counts` numbers of things."""
        self._counts = counts
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "ProgressBars":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def update(self, what: str, done: int, total: int) -> None:
        """Report `done` of `total` bytes (or things) of `what`; a total of 0 means that it is not known."""
        if self._bars is None:
            self._bars = self._start()
        if what not in self._tasks:
            name = what if len(what) <= LONGEST_NAME else f"{what[: LONGEST_NAME - 3]}..."
            self._tasks[what] = self._bars.add_task(name, total=total or None)
        self._bars.update(self._tasks[what], completed=done, total=total or None)

    def _start(self) -> Any:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        amount = MofNCompleteColumn() if self._counts else DownloadColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn())
        bars = Progress(*columns, console=Console(file=sys.stderr))
        bars.start()
        return bars


def check_output(option: str, path: Path | None) -> None:
    """Raise UsageError before the work where a file of that name could not be written after it."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise UsageError(f"{option} {path} cannot be written: it is a folder, and a file's name is wanted")
    if not folder.is_dir():
        raise UsageError(f"{option} {path} cannot be written: there is no folder {path.parent}")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {path} cannot be written: nobody may write into {path.parent}")


FIGURES = (".svg", ".png")


def check_figure(path: Path | None) -> None:
    """The same of `--figure`, whose ending says the format."""
    if path is not None and path.suffix.lower() not in FIGURES:
        raise UsageError(f"--figure {path}: a figure is written as {' or '.join(FIGURES)}")
    check_output("--figure", path)


def remember_defaults(parser: argparse.ArgumentParser) -> None:
    """Let `refuse_unused` see later which options were given. The last call on a parser, behind all its options."""
    parser.set_defaults(defaults={action.dest: action.default for action in parser._actions})


def refuse_unused(args: argparse.Namespace, names: Iterable[str], command: str) -> None:
    """Raise UsageError for options that say nothing to this kind of command: whoever gives one means another kind."""
    for name in names:
        if getattr(args, name) != args.defaults[name]:
            raise UsageError(f"{command} makes no use of --{name.replace('_', '-')}: leave it out")


def read_prompt(given: str | None) -> str:
    """The prompt of the command line, or all of stdin if there is none or it is `-`, without the line end that `echo`
    puts behind it. Raises UsageError."""
    if given is not None and given != "-":
        return given
    if given is None and sys.stdin is not None and sys.stdin.isatty():
        raise UsageError("there is no prompt: give one as an argument, or pipe it in")
    text = sys.stdin.read().removesuffix("\n") if sys.stdin is not None else ""
    if not text:
        raise UsageError("there is no prompt: stdin was empty")
    return text
