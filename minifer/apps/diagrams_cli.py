"""`minifer diagrams`: the figures of the documentation, drawn from the recorded runs that lie in diagrams/traces.

Without options it draws everything into diagrams/. `--check` draws nothing and says what is no longer what it would be:
somebody changed the code, a trace or a picture and not the others.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent
FOLDER = PACKAGE.parent / "diagrams"


def add_parser(subparsers: Any) -> None:
    """Declare `minifer diagrams`."""
    parser = subparsers.add_parser("diagrams", help="the figures of the documentation, from recorded runs")
    parser.add_argument("-o", "--out", type=Path, default=FOLDER, metavar="DIR", help="(default diagrams/)")
    parser.add_argument("--traces", type=Path, default=FOLDER / "traces", metavar="DIR", help="the recorded runs")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if something is old")
    parser.add_argument("--json", action="store_true", help="print what was written or found as JSON")


def run(args: argparse.Namespace) -> int:
    """Draw, or check."""
    from minifer.apps.view import diagrams_book

    if args.check:
        found = list(diagrams_book.drift(args.out, args.traces, PACKAGE))
        print(json.dumps({"drift": found}) if args.json else "\n".join(found) or "every figure is up to date")
        return 1 if found else 0
    files = diagrams_book.write(args.out, args.traces, PACKAGE, _bar)
    if args.json:
        print(json.dumps({"files": [str(path) for path in files]}))
    else:
        print("\n".join(str(path) for path in files))
    return 0


def _bar(diagrams: Sequence[Any]) -> Any:
    """The figures one by one, with a bar on the terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(diagrams, "drawing", console=console, transient=True, disable=not console.is_terminal)
