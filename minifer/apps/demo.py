"""`minifer demo`: one question to a real model, its answer as it grows, and the path of that request in numbers.

Two probes measure the ceilings of this machine just before, and once more after: each phase is shown as a share of
what was possible here and now. One short request goes through first, so that no figure contains the first touch of the
weights.
"""

import argparse
import json
import os
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifer.apps import options
from minifer.apps.run_cli import checked, print_stream
from minifer.errors import DownloadError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from minifer.apps.journey import Journey
    from minifer.llm import LLM, Chunk
    from minifer.roofline.probes import Ceilings

MODEL = "smollm2-135m"
QUESTION = "What is the capital of France?"
TINY_QUESTION = "Tell me a story."  # the world of `tiny` has no capitals
MAX_TOKENS = 48
FIGURE = "minifer-demo.png"
WARM_UP_TOKENS = 4
WIDTH = 100


def add_parser(subparsers: Any) -> None:
    """Declare `minifer demo`."""
    parser = subparsers.add_parser("demo", help="one question, answered; then the request's path in numbers")
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help=f"the question (default: {QUESTION!r})")
    parser.add_argument("--figure", type=Path, metavar="PATH", help=f"where the picture goes (default {FIGURE})")
    parser.add_argument("--json", action="store_true", help="print the numbers as one JSON object and nothing else")
    options.add_model_options(parser, default=MODEL)
    options.add_sampling_options(parser, MAX_TOKENS)


def run(args: argparse.Namespace) -> int:
    """Answer, and tell how it went."""
    params = options.sampling_params(args)
    if params.n != 1:
        raise UnsupportedError(f"the demo follows one answer: n must be 1, not {params.n}")
    if args.figure is not None and not args.figure.parent.is_dir():
        raise UsageError(f"the figure cannot be written to {args.figure}: there is no folder {args.figure.parent}")
    llm = open_or_tiny(args)
    question = args.prompt if args.prompt is not None else TINY_QUESTION if llm.name == "tiny" else QUESTION
    with llm:
        show = _collect if args.json else print_stream
        journey = take(llm, question, params, show, announce=not args.json)
    figure = save_figure(journey, args.figure)
    if args.json:
        print(json.dumps(journey.as_dict() | {"figure": str(figure)}, ensure_ascii=False))
    else:
        print()
        for line in journey.lines():
            print(textwrap.fill(line, WIDTH, subsequent_indent="  ") if len(line) > WIDTH else line)
        print(f"figure: {figure}")
    return 0


def open_or_tiny(args: argparse.Namespace) -> "LLM":
    """The model that was asked for; if it cannot be fetched, say so and take the one that lies in the package."""
    try:
        return options.open_model(args)
    except DownloadError as error:
        print(f"minifer: {error}", file=sys.stderr)
        print(
            "minifer: going on with `tiny`, the small model in the package; it only knows its own stories",
            file=sys.stderr,
        )
        return options.open_model(args, "tiny")


def take(
    llm: "LLM",
    question: str,
    params: Any,
    show: "Callable[[Any], Chunk | None]",
    *,
    announce: bool = True,
) -> "Journey":
    """Send one question through a loaded model and record its journey."""
    from minifer.apps.journey import FLOAT32_BYTES, Journey, heading
    from minifer.model.cost import num_parameters

    conditions = _conditions()
    ceilings = _measure(FLOAT32_BYTES * num_parameters(llm.config))
    _warm_up(llm)
    if announce:
        print(f"{heading(llm.name, llm.config, ceilings)}\n\n> {question}")
    sent = llm.clock.now()
    ids = llm.encode_chat([{"role": "user", "content": question}])
    tokenize_s = llm.clock.now() - sent
    pieces: list[str] = []
    last = show(_recorded(llm.stream(ids, params), pieces))
    assert last is not None, "a stream ends with a chunk"
    output = checked(last.output)
    metrics = output.metrics
    first = tokenize_s + (metrics.ttft or 0.0)
    return Journey(
        model=llm.name,
        config=llm.config,
        question=question,
        answer=output.text,
        answer_pieces=tuple(pieces),
        pieces=_boundaries(llm, question),
        prompt_tokens=len(ids),
        tokenize_s=tokenize_s,
        scheduled_s=tokenize_s + (metrics.queue_time or 0.0),
        token_times_s=tuple(accumulate(metrics.itl, initial=first)),
        finish_reason=output.finish_reason,
        ceilings=ceilings,
        ceilings_after=_measure(ceilings.working_set_bytes),
        conditions=conditions,
        num_cached=metrics.cached_tokens,
    )


def save_figure(journey: "Journey", path: Path | None) -> Path:
    """Draw the journey and return where it is: the path that was asked for, or the current folder if one may write
    there, or else the system's folder for temporary files."""
    from minifer.apps.journey_figure import draw

    if path is None:
        folder = Path.cwd() if os.access(Path.cwd(), os.W_OK) else Path(tempfile.gettempdir())
        path = folder / FIGURE
    return draw(journey, path)


def _collect(chunks: "Iterable[Chunk]") -> "Chunk | None":
    """Read an answer to its end without showing it."""
    last = None
    for chunk in chunks:
        last = chunk
    return last


def _recorded(chunks: "Iterable[Chunk]", pieces: list[str]) -> "Iterator[Chunk]":
    """The same chunks, while their texts are noted in `pieces`."""
    for chunk in chunks:
        pieces.append(chunk.text)
        yield chunk


def _measure(working_set_bytes: int) -> "Ceilings":
    from minifer.apps.doctor import memory
    from minifer.roofline.probes import measure_ceilings

    return measure_ceilings(working_set_bytes, memory_limit_bytes=memory()["available_bytes"])


def _warm_up(llm: "LLM") -> None:
    """The template once, a prefill and two decode steps: too short for a block, so nothing stays in the cache."""
    from minifer.sampling import SamplingParams

    llm.encode_chat([{"role": "user", "content": "."}])
    llm.generate([[0] * WARM_UP_TOKENS], SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True))


def _boundaries(llm: "LLM", text: str) -> tuple[str, ...]:
    """The text cut where its tokens meet."""
    if llm.tokenizer is None:
        return (text,)
    return tuple(piece.decode("utf-8", "replace") for _, piece in llm.tokenizer.pieces(text))


def _conditions() -> dict[str, Any]:
    """Under which circumstances the numbers came about. The tenth of a second is for seeing who else is at work: a load
    average remembers the last minute, and with it the loading of this very model."""
    import psutil

    from minifer.apps import doctor

    return doctor.conditions() | {"others_busy": psutil.cpu_percent(interval=0.1) / 100}
