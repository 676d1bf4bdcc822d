"""`minifer run MODEL "prompt"`: complete a prompt from the command line or from stdin.

One answer is streamed as it grows; several answers, or `--json`, are printed when they are complete.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from minifer.apps import options
from minifer.errors import MiniferError

if TYPE_CHECKING:
    from minifer.llm import Chunk, RequestOutput

MAX_TOKENS = 128


def add_parser(subparsers: Any) -> None:
    """Declare `minifer run`."""
    parser = subparsers.add_parser("run", help="complete a prompt")
    options.add_model_options(parser)
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the text; read from stdin if it is absent or `-`")
    parser.add_argument("--chat", action="store_true", help="put the prompt into the model's chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object with token ids and metrics")
    options.add_sampling_options(parser, MAX_TOKENS)


def run(args: argparse.Namespace) -> int:
    """Load the model and answer. Values are checked before anything is fetched or loaded."""
    params = options.sampling_params(args)
    text = options.read_prompt(args.prompt)
    with options.open_model(args) as llm:
        prompt = llm.encode_chat([{"role": "user", "content": text}]) if args.chat else text
        if args.json:
            print(json.dumps(as_dict(llm.name, checked(llm.generate([prompt], params)[0])), ensure_ascii=False))
        elif params.n > 1:
            print_answers(checked(llm.generate([prompt], params)[0]))
        elif last := print_stream(llm.stream(prompt, params)):
            checked(last.output)
    return 0


def print_stream(chunks: "Iterable[Chunk]") -> "Chunk | None":
    """Print an answer while it grows, and return its last chunk. However it ends, the cursor is on a new line."""
    text, last = "", None
    try:
        for last in chunks:
            text = last.text or text
            sys.stdout.write(last.text)
            sys.stdout.flush()
    finally:
        if not text.endswith("\n"):
            print(flush=True)
    return last


def print_answers(output: "RequestOutput") -> None:
    """Several answers to one prompt, numbered."""
    for part in output.outputs:
        print(f"--- {part.index + 1} of {len(output.outputs)} ({part.finish_reason})\n{part.text}")


def as_dict(model: str, output: "RequestOutput") -> dict[str, Any]:
    """The whole request as plain data: the first answer at the top level, all of them under `outputs`."""
    parts = [asdict(part) for part in output.outputs]
    return {
        "model": model,
        "prompt": output.prompt,
        "prompt_token_ids": list(output.prompt_ids),
        **{name: parts[0][name] for name in ("text", "token_ids", "finish_reason", "metrics")},
        "outputs": parts,
    }


def checked(output: "RequestOutput") -> "RequestOutput":
    """The output itself. Raises MiniferError if one of its answers broke down on the way."""
    for part in output.outputs:
        if part.finish_reason == "error":
            raise MiniferError(f"the answer broke off: {part.error}")
    return output
