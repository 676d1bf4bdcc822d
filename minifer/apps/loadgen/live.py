"""What a run looks like while it lasts: a bar on stderr with the median TTFT and ITL so far.

It is redrawn when a request ends, at most twice a second, and once a second where none ends. That takes about a
millisecond of the thread that reads the clock, and nothing where nobody looks: no bar is drawn into a file.
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence

from minifer.apps.loadgen.record import Record
from minifer.apps.loadgen.run import Watch
from minifer.apps.numerals import three
from minifer.metrics import percentile

REDRAW_S = 0.5
NEWEST = 50
"""How many of the newest answers the medians are of, so that a long run does not slow down."""


@contextlib.contextmanager
def live(what: str, total: int, hidden: bool = False) -> Iterator[Watch]:
    """A bar for a run of `total` requests; gives the function to call with the records."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[seen]}"))  # fmt: skip
    with Progress(*columns, console=console, disable=hidden or not console.is_terminal, auto_refresh=False) as bar:
        task, last = bar.add_task(what, total=total, seen=""), 0.0

        def watch(records: Sequence[Record], done: int) -> None:
            nonlocal last
            if bar.disable or (time.monotonic() - last < REDRAW_S and done < total):
                return
            last = time.monotonic()
            bar.update(task, completed=done, seen=so_far(records), refresh=True)

        yield watch


def so_far(records: Sequence[Record]) -> str:
    """The words beside the bar.

    >>> one = Record(0, due=0.0, sent=0.0, events=[(0.25, "a"), (0.35, "b")], unfinished=True)
    >>> so_far([one, Record(1, due=0.0, sent=0.0, error="refused")])
    'TTFT 250 ms, ITL 100 ms, 1 failed'
    """
    begun = [r for r in records if r.error is None and r.events][-NEWEST:]
    seen = [r.metrics() for r in begun]
    ttft = percentile([m.ttft for m in seen if m.ttft is not None], 50)
    itl = percentile([gap for m in seen for gap in m.itl], 50)
    failed = sum(r.error is not None for r in records)
    parts = [f"{name} {three(1e3 * value)} ms" for name, value in (("TTFT", ttft), ("ITL", itl)) if value is not None]
    return ", ".join([*parts, f"{failed} failed"] if failed else parts)
