"""Recorded traffic as a workload: the CSV files of Azure's LLM inference traces.

Three columns, one row per request: TIMESTAMP, ContextTokens (the prompt), GeneratedTokens (the answer). The texts are
not in it, so each prompt becomes tokens that no other prompt begins with: nothing is found in the prefix cache, which
is what the file lets one say about it.

Rows are read one by one as the run needs them, so an hour of traffic takes no more memory than a minute. Source of the
format: Patel et al. 2024, "Splitwise: Efficient generative LLM inference using phase splitting".
"""

import csv
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path

from minifer.apps.workloads import Arrival
from minifer.errors import FormatError, UsageError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

LONGEST = 1 << 20
"""Tokens of a prompt or an answer. A row beyond it is a mistake, and would take the memory of its prompt."""


def azure_arrivals(
    path: Path, *, rate_scale: float = 1.0, limit: int | None = None, skip: int = 0
) -> Iterator[Arrival]:
    """The requests of a file in order, `rate_scale` times as dense in time; `limit` of them, behind the first `skip`.

    Time starts at the first request given. Raises UsageError for bad options at once, and FormatError, with the line,
    for a file that has other columns, that is not about whole numbers, or in which time runs backwards.
    """
    if not rate_scale > 0 or rate_scale == float("inf"):
        raise UsageError(f"--rate-scale is a positive number, not {rate_scale}")
    if skip < 0 or (limit is not None and limit < 1):
        raise UsageError(f"a window of {limit} requests behind the first {skip} is empty: --limit is at least 1")
    check_columns(path)
    for _ in _timed(path, rate_scale, limit, skip):  # every row is read once before anything is simulated
        pass
    # No two prompts share a first token, so no two share a block.
    return (
        Arrival(index, at, (index + 1, *[0] * (prompt_len - 1)), output_len)
        for index, (at, prompt_len, output_len) in enumerate(_timed(path, rate_scale, limit, skip))
    )


def check_columns(path: Path) -> None:
    """Raise FormatError unless the file begins with the three columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file), [])
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"{path} is not a CSV file: {error}") from error
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        found = ", ".join(header)[:80]
        raise FormatError(f"{path} lacks the columns {', '.join(missing)}; its first line says {found!r}")


def _timed(path: Path, rate_scale: float, limit: int | None, skip: int) -> Iterator[tuple[float, int, int]]:
    """Seconds since the first row of the window, tokens of the prompt, tokens of the answer."""
    first: datetime | None = None
    before = 0.0
    stop = None if limit is None else skip + limit
    for line, when, prompt_len, output_len in islice(_rows(path), skip, stop):
        first = first or when
        at = (when - first).total_seconds() / rate_scale
        if at < before:
            raise FormatError(f"{path}, line {line}: time runs backwards, by {before - at:.3f} s")
        before = at
        yield at, prompt_len, output_len


def _rows(path: Path) -> Iterator[tuple[int, datetime, int, int]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            when, prompt, answer = (row.get(name) for name in COLUMNS)
            yield line, _time(path, line, when), _count(path, line, prompt), _count(path, line, answer)


def _time(path: Path, line: int, text: str | None) -> datetime:
    """A time stamp; the seventh digit of a second, which Python does not take, is dropped."""
    head, _, fraction = (text or "").strip().partition(".")
    try:
        return datetime.fromisoformat(f"{head}.{fraction[:6]:0<6}" if fraction else head)
    except ValueError as error:
        raise FormatError(f"{path}, line {line}: {text!r} is not a time like 2023-11-16 18:15:46.68") from error


def _count(path: Path, line: int, text: str | None) -> int:
    try:
        value = int(text or "")
    except ValueError as error:
        raise FormatError(f"{path}, line {line}: {text!r} is not a whole number of tokens") from error
    if not 1 <= value <= LONGEST:
        raise FormatError(f"{path}, line {line}: {value} tokens are not between 1 and {LONGEST:,}")
    return value
