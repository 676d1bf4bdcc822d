"""The result of a load test with the keys of vLLM's `bench serve`, as JSON and as a table.

What vLLM has no key for is added under names of our own: the two clocks, what is counted apart, where the token counts
come from, which clock each figure is on. A key means the same here and there, with these differences, all on purpose:

    ttft, itl             an event without text moves no clock; vLLM's client counts one as a token
    std, mean, pXX        None for an empty list; vLLM writes 0
    failed requests       enter nothing; in the detailed lists they are None, not 0
    request_goodput       always there: without `--goodput`, MLPerf's limits for a server hold

Percentiles interpolate linearly, as NumPy's do.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from minifer.apps.loadgen.record import Record, best_second, most_at_once, realised_rate
from minifer.apps.loadgen.run import Run
from minifer.apps.numerals import or_dash
from minifer.apps.summary import SLO_SERVER, describe, summarise
from minifer.errors import UsageError
from minifer.formats.atomic import atomic_file
from minifer.metrics import meets

METRICS = ("ttft", "tpot", "itl", "e2el")
PERCENTS = (50.0, 90.0, 95.0, 99.0)
ENGINE_METRICS = ("queue", "prefill", "decode")
CACHE_WORTH_A_WORD = 0.01
"""Share of prompt tokens from a prefix cache above which the result carries a warning."""


def vllm_json(
    run: Run,
    *,
    request_rate: float = math.inf,
    burstiness: float = 1.0,
    max_concurrency: int | None = None,
    metrics: Sequence[str] = METRICS,
    percents: Sequence[float] = PERCENTS,
    slo_ms: Mapping[str, float] = SLO_SERVER,
    detailed: bool = False,
    cache_hits: float | None = None,
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One run as vLLM's client writes it. `about` goes first (backend, model, date ...).

    `cache_hits` is how many prompt tokens the server's `/metrics` said it found in its cache during the run, for
    servers that do not say so with each answer. `detailed` adds a list of every figure, a place per request.
    """
    records = [r for r in run.records if not r.unfinished and r.sent is not None]
    in_process = any(r.engine is not None for r in records)
    found = summarise([r.metrics() for r in records], run.duration, slo_ms=slo_ms, percents=percents,
                      itl_of="token" if in_process else "event")  # fmt: skip
    dropped = [name for name in (*METRICS, *ENGINE_METRICS)
               if name not in metrics and not (in_process and name in ENGINE_METRICS)]  # fmt: skip
    found = {key: value for key, value in found.items() if not _belongs_to(key, dropped)}
    result = {
        **(about or {}),
        "num_prompts": len(run.records),
        "request_rate": _number(request_rate),
        "burstiness": _number(burstiness),
        "max_concurrency": max_concurrency,
        **found,
        "interrupted": run.interrupted,
        "unfinished": len(run.records) - len(records),
        "realised_request_rate": realised_rate(records),
        "max_output_tokens_per_s": best_second(records),
        "max_concurrent_requests": most_at_once(records),
        "tokens_from": _tokens_from(records),
        **_from_due(records, run.duration, max_concurrency, percents, slo_ms),
    }
    if cache_hits is not None:
        result["total_cached_tokens"] = max(result["total_cached_tokens"], round(cache_hits))
    result["warnings"] = warnings(result, records)
    return result | (_lists(run.records) if detailed else {})


def _belongs_to(key: str, names: Sequence[str]) -> bool:
    return any(key.endswith(f"_{name}_ms") for name in names)


def _number(value: float) -> float | str:
    """JSON has no infinity; vLLM writes the word."""
    return "inf" if math.isinf(value) else value


def _tokens_from(records: Sequence[Record]) -> str:
    done = [r for r in records if r.done]
    return "usage" if all(r.output_tokens is not None for r in done) else "events"


def _from_due(records: Sequence[Record], duration: float, limit: int | None, percents: Sequence[float],
              slo_ms: Mapping[str, float]) -> dict[str, Any]:  # fmt: skip
    """The second clock, which starts when a request was due. Without a limit on concurrency both are the same."""
    if limit is None:
        return {}
    done = [r for r in records if r.done]
    seen = [r.metrics(from_due=True) for r in done]
    lists = {
        "client_queue_time": [r.sent - r.due for r in done if r.sent is not None],
        "ttft_including_client_queue": [m.ttft for m in seen if m.ttft is not None],
        "e2el_including_client_queue": [m.e2e for m in seen if m.e2e is not None],
    }
    found: dict[str, Any] = {}
    for name, seconds in lists.items():
        found |= {f"{what}_{name}_ms": v for what, v in describe([1e3 * s for s in seconds], percents).items()}
    kept = sum(m.output_tokens > 0 and meets(m, slo_ms) for m in seen)
    found["request_goodput_including_client_queue"] = kept / duration if duration > 0 else None
    return found


def _lists(records: Sequence[Record]) -> dict[str, list[Any]]:
    """vLLM's lists of `--save-detailed`, in seconds; a request that failed has None where it has no figure."""
    seen = [r.metrics() if r.done else None for r in records]
    return {
        "input_lens": [r.prompt_tokens if r.prompt_tokens is not None else r.wanted_input for r in records],
        "output_lens": [r.tokens for r in records],
        "ttfts": [m.ttft if m else None for m in seen],
        "itls": [list(m.itl) if m else [] for m in seen],
        "latencies": [m.e2e if m else None for m in seen],
        "start_times": [r.sent for r in records],
        "queue_times": [None if r.sent is None else r.sent - r.due for r in records],
        "generated_texts": [r.text for r in records],
        "errors": [r.error or ("unfinished" if not r.done else "") for r in records],
    }


def warnings(result: Mapping[str, Any], records: Sequence[Record]) -> list[str]:
    """What a reader has to know before believing the figures."""
    found = []
    if result["interrupted"]:
        found.append(
            f"stopped early: {result['unfinished']} of {result['num_prompts']} requests are not in the figures"
        )
    if result["failed"]:
        reasons = [r.error for r in records if r.error]
        found.append(f"{result['failed']} requests failed and are in no figure; the first: {reasons[0]}")
    cached, prompts = result["total_cached_tokens"], result["total_input_tokens"]
    if prompts and cached / prompts > CACHE_WORTH_A_WORD:
        what = f"{cached:,} of {prompts:,} prompt tokens came out of the server's prefix cache"
        found.append(f"{what}: new prompts take longer to their first token (another --seed makes new ones)")
    if result["tokens_from"] == "events":
        found.append("the server sends no usage: tokens are counted as events, which may hold several")
    short = [r for r in records if r.done and r.tokens < r.wanted_output]
    if short:
        found.append(f"{len(short)} answers are shorter than asked for: the texts had ended")
    return found


def result_name(result: Mapping[str, Any]) -> str:
    """The file name that vLLM would give it."""
    model = str(result.get("model_id") or "model").rstrip("/").split("/")[-1]
    limit = f"-concurrency{result['max_concurrency']}" if result["max_concurrency"] is not None else ""
    return f"{result.get('label') or 'minifer'}-{result['request_rate']}qps{limit}-{model}-{result['date']}.json"


def save(result: Mapping[str, Any], path: Path) -> Path:
    """Write it as JSON, whole or not at all."""
    with atomic_file(path) as file:
        file.write((json.dumps(result, indent=2, default=str) + "\n").encode())
    return path


def date_now() -> str:
    """The date as vLLM writes it."""
    return datetime.now().strftime("%Y%m%d-%H%M%S")


def parse_slo(words: Sequence[str], option: str = "--goodput") -> dict[str, float]:
    """`["ttft:500", "tpot:30"]` as milliseconds. Raises UsageError.

    >>> parse_slo(["ttft:500", "e2el:2e3"])
    {'ttft': 500.0, 'e2el': 2000.0}
    """
    found = {}
    for word in words:
        name, _, value = word.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = math.nan
        if name not in ("ttft", "tpot", "e2el") or not limit > 0:
            raise UsageError(f"{option} {word!r}: write ttft:MS, tpot:MS or e2el:MS")
        if name in found:
            raise UsageError(f"{option} {word!r}: {name} is there twice")
        found[name] = limit
    return found


WIDE = 140
"""Columns of a table that goes to a file."""
FITS, FIRST_TO_GO = 100, ("sent", "ITL", "E2EL")
"""A terminal with fewer columns is shown fewer of the table's."""

COLUMNS = ("rate", "sent", "done", "req/s", "out tok/s", "TTFT p50", "p99", "ITL p50", "p99", "TPOT p50", "p99",
           "E2EL p50", "goodput")  # fmt: skip


def cells(result: Mapping[str, Any]) -> list[str]:
    """One line of the table; times in milliseconds, `-` for what is undefined or was not asked for."""
    spread = ["ttft", "itl", "tpot"]
    times = [result.get(f"{what}_{name}_ms") for name in spread for what in ("median", "p99")]
    done = f"{result['completed']}" + (f" ({result['failed']} failed)" if result["failed"] else "")
    realised = result["realised_request_rate"] if result["request_rate"] != "inf" else None
    values = [result["request_throughput"], result["output_throughput"], *times, result.get("median_e2el_ms"),
              result["request_goodput"]]  # fmt: skip
    return [rate_word(result), or_dash(realised), done, *map(or_dash, values)]


def rate_word(result: Mapping[str, Any]) -> str:
    """The rate of a result as people write it: 0.5, 2, inf."""
    return f"{float(result['request_rate']):g}"


def print_table(rows: Sequence[tuple[str, Mapping[str, Any]]], names: str | None = None) -> None:
    """Rows of `(name, result)`; the names have a column if it is given a heading."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDE)
    shown = [i for i in range(len(COLUMNS)) if console.width >= FITS or COLUMNS[i].split()[0] not in FIRST_TO_GO]
    shown = [i for i in shown if i - 1 in shown or COLUMNS[i] != "p99"]  # a p99 goes with its p50
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    if names is not None:
        table.add_column(names, no_wrap=True)
    for i in shown:
        table.add_column(COLUMNS[i], justify="right")
    for name, result in rows:
        values = cells(result)
        table.add_row(*([name] if names is not None else []), *(values[i] for i in shown))
    console.print(table)
