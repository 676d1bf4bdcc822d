"""`minifer chat MODEL`: a conversation, turn by turn.

Each turn sends the whole conversation again, as a chat API does. What makes it quick is the prefix cache: the keys and
values of everything said before are still in their blocks, so that only the new words are computed. The line after an
answer says how many tokens that saved.

Ctrl-C stops the answer and not the program. It is noted by a signal handler and acted upon between two tokens, so that
the engine is never torn out of a step.
"""

import argparse
import contextlib
import importlib
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from minifer.apps import options
from minifer.apps.run_cli import checked, print_stream
from minifer.errors import MiniferError, RequestError

if TYPE_CHECKING:
    from minifer.llm import LLM, Chunk, RequestOutput
    from minifer.sampling import SamplingParams

MAX_TOKENS = 512
HELP = "/reset forgets what was said, /stats shows what it cost, /exit leaves; Ctrl-C stops an answer"


def add_parser(subparsers: Any) -> None:
    """Declare `minifer chat`."""
    parser = subparsers.add_parser("chat", help="talk with a model", epilog=HELP)
    options.add_model_options(parser)
    parser.add_argument("--system", metavar="TEXT", help="the system message (default: the template's own)")
    options.add_sampling_options(parser, MAX_TOKENS)


def run(args: argparse.Namespace) -> int:
    """Load the model and talk until the user leaves."""
    params = options.sampling_params(args)
    if params.n != 1:
        raise RequestError(f"a conversation goes on with one answer: n must be 1, not {params.n}")
    with options.open_model(args) as llm:
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                importlib.import_module("readline")  # its import alone gives input() a history and editing
            print(HELP)
        talk(Conversation(llm, params, args.system), _read_line)
    return 0


class Conversation:
    """The messages so far, and what each turn cost."""

    def __init__(self, llm: "LLM", params: "SamplingParams", system: str | None = None) -> None:
        """Start with nothing said."""
        self.llm, self.params, self.system = llm, params, system
        self.turns: list[RequestOutput] = []
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Forget what was said, but not the system message; the cache may keep its blocks."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def ask(self, text: str, stopped: Callable[[], bool]) -> "Iterator[Chunk]":
        """Say something and yield the pieces of the answer until it is complete or `stopped()`.

        Whatever was answered becomes part of the conversation, an answer that was stopped half-way too. If the request
        is refused (too long for the context), the conversation is as it was before.
        """
        self.messages.append({"role": "user", "content": text})
        last = None
        try:
            stream = self.llm.stream(self.llm.encode_chat(self.messages), self.params)
            for last in stream:
                yield last
                if stopped():
                    break
            stream.close()  # type: ignore[attr-defined]  # a generator: leaving it early ends the request
        finally:
            if last is None:
                self.messages.pop()
            else:
                self.messages.append({"role": "assistant", "content": last.output.text})
                self.turns.append(last.output)

    def stats(self) -> str:
        """What the conversation cost so far, in one line."""
        if not self.turns:
            return "nothing was said yet"
        output = sum(len(turn.token_ids) for turn in self.turns)
        said = f"turns: {len(self.turns)}, {output:,} tokens were generated"
        whole = [turn.metrics for turn in self.turns if turn.finish_reason is not None]  # a stopped one has no metrics
        prompt, cached = sum(m.prompt_tokens for m in whole), sum(m.cached_tokens for m in whole)
        if not prompt:
            return said
        return f"{said}, {cached:,} of {prompt:,} prompt tokens came from the cache ({cached / prompt:.0%})"


def talk(conversation: Conversation, read: Callable[[], str | None]) -> None:
    """Read lines and answer them until `read` returns None or /exit is said."""
    while (line := read()) is not None:
        text = line.strip()
        if text in ("/exit", "/quit"):
            return
        if text == "/reset":
            conversation.reset()
            print("forgotten")
        elif text == "/stats":
            print(conversation.stats())
        elif text.startswith("/"):
            print(HELP)
        elif text:
            _answer(conversation, text)


def _answer(conversation: Conversation, text: str) -> None:
    """One turn: print the answer, then what it cost. A mistake is one line, and the conversation goes on."""
    try:
        with ctrl_c_noted() as stopped:
            last = print_stream(conversation.ask(text, stopped))
        if last is not None:
            print(f"[{cost_of(checked(last.output))}]", file=sys.stderr)
    except MiniferError as error:
        print(f"minifer: {error} (/reset starts again)", file=sys.stderr)


def cost_of(output: "RequestOutput") -> str:
    """One answer in numbers: prompt, cached and generated tokens, TTFT and ITL. A stopped one has no metrics."""
    m = output.metrics
    if output.finish_reason is None:
        return f"stopped after {len(output.token_ids)} tokens"
    parts = [f"{m.prompt_tokens} tokens in, {m.cached_tokens} of them from the cache", f"{m.output_tokens} out"]
    if m.ttft is not None:
        parts.append(f"TTFT {m.ttft * 1e3:.0f} ms")
    if m.itl:
        parts.append(f"ITL {statistics.median(m.itl) * 1e3:.3g} ms")
    return ", ".join(parts)


@contextlib.contextmanager
def ctrl_c_noted() -> Iterator[Callable[[], bool]]:
    """While this is open, a first Ctrl-C is only noted; a second one interrupts as usual."""
    pressed: list[int] = []

    def note(number: int, _frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def _read_line() -> str | None:
    """The next line of the user, None at the end of the input. Ctrl-C at the prompt only clears the line."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except EOFError:
            if sys.stdin.isatty():
                print()
            return None
        except KeyboardInterrupt:
            print(f"\n{HELP}")
