"""`minifer trace FILE`: what an engine did, from its record; on the terminal, as a figure, or for Perfetto.

minifer trace run.jsonl                                    who ran when
minifer trace run.jsonl --what timeline                    the slots of the batch
minifer trace run.jsonl --what latency --request r2        one request, token by token
minifer trace run.jsonl --what blocks --figure blocks.svg  the KV cache, drawn
minifer trace run.jsonl --perfetto run.json                for https://ui.perfetto.dev
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifer.errors import UsageError

if TYPE_CHECKING:
    from minifer.apps.view.trace_model import Trace

WHAT = ("requests", "timeline", "latency", "load", "cache", "blocks")
SAME = {"queue": "load"}
"""Other words for a view."""


def add_parser(subparsers: Any) -> None:
    """Declare `minifer trace`."""
    parser = subparsers.add_parser("trace", help="the record of a run, drawn on the terminal")
    parser.add_argument("file", metavar="FILE", help="a trace (.jsonl), or - for stdin")
    parser.add_argument("--what", choices=(*WHAT, *SAME), metavar="VIEW", help=f"{', '.join(WHAT)} (default requests)")
    parser.add_argument("--request", metavar="ID", help="the request that `latency` shows (default: the first)")
    parser.add_argument("--beside", metavar="FILE", help="another trace, for `timeline` on the same clock")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the view as .svg or .png")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write the trace for ui.perfetto.dev")
    parser.add_argument("--width", type=int, metavar="N", help="columns (default: those of the terminal, else 100)")
    parser.add_argument("--json", action="store_true", help="print the numbers of the view as JSON")


def run(args: argparse.Namespace) -> int:
    """Read the trace, then write or show what was asked for."""
    from minifer.apps.view import trace_data, trace_model

    what = SAME.get(args.what, args.what) or ("latency" if args.request else "requests")
    if args.request is not None and what != "latency":
        raise UsageError(f"--request belongs to --what latency, not to {what}")
    if args.beside is not None and what != "timeline":
        raise UsageError(f"--beside belongs to --what timeline, not to {what}")
    trace = trace_model.load(sys.stdin if args.file == "-" else args.file)
    if args.request is not None:
        trace.life(args.request)
    files = [*_figure(args, trace, what), *_perfetto(args, trace)]
    if args.json:
        data = trace_data.KINDS[what](trace, args.request) if what == "latency" else trace_data.KINDS[what](trace)
        beside = {"beside": trace_data.timeline(_other(args))} if args.beside is not None else {}
        print(json.dumps({"what": what, **data, **beside, "files": [str(path) for path in files]}, ensure_ascii=False))
    elif files:
        print("\n".join(str(path) for path in files))
    else:
        _show(args, trace, what)
    return 0


def _figure(args: argparse.Namespace, trace: "Trace", what: str) -> list[Path]:
    if args.figure is None:
        return []
    from minifer.apps.view import figure_style, trace_figures

    if args.beside is not None:
        figure = trace_figures.timeline_figure([trace, _other(args)])
    else:
        draw = trace_figures.FIGURES[what]
        figure = draw(trace, args.request) if what == "latency" else draw(trace)
    words = f"{what} of a run of {trace.model}: {len(trace.lives)} requests in {len(trace.steps)} steps"
    with figure_style.style():
        return [figure_style.save(figure, args.figure, f"{what}: {trace.model}", words)]


def _other(args: argparse.Namespace) -> "Trace":
    from minifer.apps.view import trace_model

    return trace_model.load(args.beside)


def _perfetto(args: argparse.Namespace, trace: "Trace") -> list[Path]:
    if args.perfetto is None:
        return []
    from minifer.apps.view.trace_perfetto import perfetto
    from minifer.formats.atomic import atomic_path

    with atomic_path(args.perfetto) as temporary:
        temporary.write_text(json.dumps(perfetto(trace), separators=(",", ":")), encoding="utf-8")
    return [args.perfetto]


def _show(args: argparse.Namespace, trace: "Trace", what: str) -> None:
    import os

    from minifer.apps.view import trace_text

    width = args.width or shutil.get_terminal_size((100, 24)).columns
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    lines = [*trace_text.summary(trace, width), "", *trace_text.show(trace, what, args.request, width, color)]
    if args.beside is not None:
        other = _other(args)
        lines += ["", *trace_text.summary(other, width), "", *trace_text.show(other, what, None, width, color)]
    print("\n".join(lines))
