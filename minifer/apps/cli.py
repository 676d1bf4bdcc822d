"""The command `minifer`: finds the app a command belongs to, imports only that one, and turns failures into one line.

An app is a module of this folder with two functions: `add_parser(subparsers)` declares its arguments, `run(args)`
does the work and returns the exit status. A command is listed when its module is there.

Exit status: 0 done, 1 something unexpected, 2 a mistake that the message explains, 130 stopped by Ctrl-C,
141 nobody was reading the output any more.
"""

import argparse
import contextlib
import difflib
import errno
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NoReturn

from minifer import __version__
from minifer.errors import MiniferError, UsageError

OK, UNEXPECTED, MISTAKE, INTERRUPTED, NO_READER = 0, 1, 2, 130, 141


@dataclass(frozen=True)
class Command:
    """One command: its name as typed (`bench micro` is two words), its module in `minifer.apps`, a line of help."""

    name: str
    module: str
    help: str
    group: str


START, MODELS, BENCH, SERVE, LOOK = "start here", "text and models", "measure", "serve", "look inside"

COMMANDS = (
    Command("demo", "demo", "one question, answered; then the request's path in numbers", START),
    Command("run", "run_cli", "complete a prompt", START),
    Command("roofline", "roofline_cli", "this machine's ceilings, and how near a model comes", START),
    Command("xray", "xray_cli", "one page that shows a whole run, step by step", START),
    Command("labs", "labs_cli", "rebuild minifer yourself, a phase at a time", START),
    Command("chat", "chat_cli", "talk with a model, the KV cache kept between turns", MODELS),
    Command("tokenize", "tokenizer_cli", "text -> pieces, ids, count, price", MODELS),
    Command("train-tokenizer", "tokenizer_cli", "make a vocabulary from text", MODELS),
    Command("models", "models_cli", "list, pull, locate and remove models", MODELS),
    Command("export", "models_cli", "write a model as a GGUF file or a Hugging Face folder", MODELS),
    Command("doctor", "doctor", "this machine: versions, memory, GPU, what will not run", MODELS),
    Command("bench micro", "bench_micro", "prefill and decode speed of one model", BENCH),
    Command("bench batching", "bench_batching", "static and continuous batching on one workload", BENCH),
    Command("bench tokenizer", "bench_tokenizer", "encoding and training speed", BENCH),
    Command("bench gpu", "bench_gpu", "what this GPU does, and how near a model comes", BENCH),
    Command("bench serve", "bench_serve", "load any server and time its answers", BENCH),
    Command("bench compare", "bench_compare", "several servers, one workload, one client", BENCH),
    Command("serve", "serve_cli", "an HTTP server that speaks OpenAI's and Ollama's language", SERVE),
    Command("simulate", "simulate_cli", "a fleet on a virtual clock", SERVE),
    Command("step", "step_cli", "the scheduler, one step at a time, with no model", LOOK),
    Command("trace", "trace_cli", "the record of a run, drawn on the terminal", LOOK),
    Command("kernel", "kernel_cli", "one GPU kernel, run on this machine's CPU", LOOK),
    Command("diagrams", "diagrams_cli", "the figures of the documentation, from recorded runs", LOOK),
)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, like every other error of minifer."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit status; `argv` without the program's name, default `sys.argv[1:]`."""
    words = list(sys.argv[1:] if argv is None else argv)
    _make_streams_forgiving()
    try:
        status = _dispatch(words)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        _say("stopped")
        return INTERRUPTED
    except BrokenPipeError:
        # `minifer run ... | head -1`: the reader has left. Python would complain once more while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    except MiniferError as error:
        return _fail(error, str(error), MISTAKE)
    except OSError as error:
        return _fail(error, _explain_os_error(error), MISTAKE)
    except Exception as error:
        text = f"unexpected {type(error).__name__}: {error} (this is a bug; set MINIFER_DEBUG=1 for the traceback)"
        return _fail(error, text, UNEXPECTED)


def available() -> tuple[Command, ...]:
    """The commands whose modules are installed."""
    return tuple(c for c in COMMANDS if importlib.util.find_spec(f"minifer.apps.{c.module}") is not None)


def help_text() -> str:
    """What `minifer --help` prints: the commands by group, those to start with first."""
    commands = available()
    lines = ["minifer: LLM inference that you can read, run, measure and rebuild.", "", "usage: minifer COMMAND ..."]
    for group in dict.fromkeys(c.group for c in commands):
        lines += ["", f"{group}:"]
        lines += [f"  {c.name:<17}{c.help}" for c in commands if c.group == group]
    lines += ["", "`minifer COMMAND --help` explains one command, `minifer --version` prints the version."]
    return "\n".join(lines)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text())
        return OK
    if words[0] in ("-V", "--version"):
        print(f"minifer {__version__}")
        return OK
    command = _find(words)
    module = importlib.import_module(f"minifer.apps.{command.module}")
    args = _parse(command, module, words)
    status: int = args.run(args) if callable(getattr(args, "run", None)) else module.run(args)
    return status


def _parse(command: Command, module: ModuleType, words: list[str]) -> argparse.Namespace:
    """Build the parser of this one command (argparse would need every app imported) and read the words with it.

    Options may stand between positional arguments (`run MODEL --json PROMPT`), which plain `parse_args` gets wrong
    where one of them is optional; commands with commands of their own cannot have that.
    """
    *family, name = command.name.split()
    subparsers = Parser(prog=" ".join(["minifer", *family])).add_subparsers(dest="command")
    module.add_parser(subparsers)
    parser, rest = subparsers.choices[name], words[len(family) + 1 :]
    try:
        args = parser.parse_intermixed_args(rest)
    except TypeError:
        args = parser.parse_args(rest)
    args.command = name
    return args


def _find(words: list[str]) -> Command:
    commands = {c.name: c for c in available()}
    name = words[0]
    family = [full for full in commands if full.startswith(f"{name} ")]
    if family:
        if len(words) > 1 and f"{name} {words[1]}" in commands:
            return commands[f"{name} {words[1]}"]
        kinds = ", ".join(full.split()[1] for full in family)
        raise UsageError(f"`minifer {name}` needs one of: {kinds}")
    if name in commands:
        return commands[name]
    near = difflib.get_close_matches(name, commands, n=1)
    hint = f"did you mean `minifer {near[0]}`?" if near else "`minifer --help` lists the commands"
    raise UsageError(f"there is no command {name!r}; {hint}")


def _fail(error: Exception, text: str, status: int) -> int:
    if os.environ.get("MINIFER_DEBUG"):
        raise error
    _say(" ".join(text.split()))
    return status


def _say(text: str) -> None:
    """One line on stderr; if even that is closed there is nobody left to tell."""
    with contextlib.suppress(OSError):
        print(f"minifer: {text}", file=sys.stderr, flush=True)


def _explain_os_error(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    if error.errno == errno.ENOSPC:
        return f"the disk is full{where}; free some space, or set MINIFER_HOME to a folder on another disk"
    return f"{error.strerror or error}{where}"


def _make_streams_forgiving() -> None:
    """A console that cannot show a character gets a `?` in its place, not an exception (old Windows code pages)."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
