"""The page of a comparison: its figures, and under which conditions they were measured, as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from minifer.apps.compare_same import Same
from minifer.apps.numerals import three
from minifer.apps.serve_results import rate_word

Results = Mapping[str, Sequence[Mapping[str, Any]]]
"""The points of each server, in vLLM's JSON."""

COLUMNS: tuple[tuple[str, str | None], ...] = (
    ("rate", None),
    ("server", None),
    ("requests", "completed"),
    ("failed", "failed"),
    ("output tok/s", "output_throughput"),
    ("req/s", "request_throughput"),
    ("TTFT p50", "median_ttft_ms"),
    ("TTFT p99", "p99_ttft_ms"),
    ("ITL p50", "median_itl_ms"),
    ("ITL p99", "p99_itl_ms"),
    ("TPOT p50", "median_tpot_ms"),
    ("TPOT p99", "p99_tpot_ms"),
    ("E2EL p50", "median_e2el_ms"),
    ("goodput", "request_goodput"),
)


def page(results: Results, same: Mapping[str, Sequence[Same]], conditions: Mapping[str, Any],
         figure: str | None) -> str:  # fmt: skip
    """All of it. `same` has the checks of each rate."""
    parts = ["# Servers compared", *_remarks(results, same), _table(results)]
    if figure:
        parts.append(f"![throughput and latency against the request rate]({figure})")
    parts += [
        "Times in milliseconds. TTFT: from sending the request to the first text. ITL: gaps between events with text, "
        "pooled over all requests. TPOT: (last text - first text) / (tokens - 1), one value per request. Percentiles "
        "interpolate linearly; failed requests are in no figure. Goodput: requests per second within the limits "
        f"{_slo(results)}. Token counts are the servers' own.",
        "## The first server beside the others",
        _ratio_table(results),
        "## The same work",
        _same_table(same),
        "## Conditions",
        "\n".join(f"* {name}: {value}" for name, value in conditions.items() if name not in ("servers", "turns")),
        "## Servers",
        "\n".join(_server(name, about) for name, about in conditions["servers"].items()),
        "## Turns, in the order they were taken",
        _turns(conditions["turns"]),
    ]
    return "\n\n".join(parts) + "\n"


def _remarks(results: Results, same: Mapping[str, Sequence[Same]]) -> list[str]:
    """What is wrong comes first."""
    found = remarks(results, same)
    return ["\n".join(f"* **{words}**" for words in found)] if found else []


def remarks(results: Results, same: Mapping[str, Sequence[Same]]) -> list[str]:
    """Warnings of the points and faults of the checks, each with its rate."""
    said = [f"{name}, rate {rate_word(p)}: {words}" for name, ps in results.items() for p in ps
            for words in p["warnings"]]  # fmt: skip
    return [*said, *(f"rate {rate}: {fault}" for rate, checks in same.items() for s in checks for fault in s.faults)]


def _table(results: Results) -> str:
    rates = list(dict.fromkeys(rate_word(p) for points in results.values() for p in points))
    rows = [[rate, name, *(_cell(p.get(key)) for _, key in COLUMNS if key)] for rate in rates
            for name, points in results.items() for p in points if rate_word(p) == rate]  # fmt: skip
    return _markdown([name for name, _ in COLUMNS], rows, left=2)


RATIOS = {"output_throughput": "output tok/s", "median_ttft_ms": "TTFT p50", "p99_ttft_ms": "TTFT p99",
          "median_tpot_ms": "TPOT p50", "median_e2el_ms": "E2EL p50"}  # fmt: skip


def ratios(results: Results) -> list[dict[str, Any]]:
    """The first server's figures over each other server's, rate by rate; None where one of the two is missing.

    >>> slow, fast = ({"request_rate": "inf", "output_throughput": rate} for rate in (50.0, 75.0))
    >>> found = ratios({"ours": [fast], "theirs": [slow]})[0]
    >>> found["rate"], found["first"], found["over"], found["output_throughput"], found["median_ttft_ms"]
    ('inf', 'ours', 'theirs', 1.5, None)
    """
    (first, ours), *others = results.items()
    found = []
    for mine in ours:
        for name, points in others:
            for theirs in points:
                if rate_word(theirs) == rate_word(mine):
                    pairs = {key: (mine.get(key), theirs.get(key)) for key in RATIOS}
                    shares = {key: a / b if a is not None and b else None for key, (a, b) in pairs.items()}
                    found.append({"rate": rate_word(mine), "first": first, "over": name, **shares})
    return found


def _ratio_table(results: Results) -> str:
    rows = [[r["rate"], f"{r['first']} / {r['over']}", *("-" if r[key] is None else f"{r[key]:.2f}" for key in RATIOS)]
            for r in ratios(results)]  # fmt: skip
    if not rows:
        return "One server alone: there is nothing to compare."
    words = "Above 1 is good for the first server in the first column of numbers, below 1 in the others."
    return _markdown(["rate", "servers", *RATIOS.values()], rows, left=2) + "\n\n" + words


def _cell(value: Any) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else three(value)


def _same_table(same: Mapping[str, Sequence[Same]]) -> str:
    names = ["rate", "server", "against", "answers", "equal prompt tokens", "equal output tokens", "equal texts",
             "median agreement"]  # fmt: skip
    rows = []
    for rate, checks in same.items():
        for s in checks:
            counts = (s.compared, s.equal_prompt_tokens, s.equal_output_tokens, s.equal_texts)
            share = "-" if s.median_agreement is None else f"{s.median_agreement:.0%}"
            rows.append([rate, s.server, s.against, *map(str, counts), share])
    return _markdown(names, rows, left=3) if rows else "One server alone: there is nothing to compare."


def _server(name: str, about: Mapping[str, Any]) -> str:
    lines = [f"* **{name}**: {about['url']}, API {about['backend']}, model `{about.get('model')}`, version "
             f"{about.get('version') or 'not told'}; outside its turn {about['idle']}"]  # fmt: skip
    if about.get("command"):
        lines.append(f"  `{about['command']}`")
    return "\n".join(lines)


def _turns(turns: Sequence[Mapping[str, Any]]) -> str:
    rows = [[t["started"], str(t["rate"]), t["server"], f"{t['duration']:.0f} s", _cell(t["load_average"])]
            for t in turns]  # fmt: skip
    return _markdown(["began", "rate", "server", "took", "load average before"], rows, left=3)


def _markdown(names: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A table; the first `left` columns are words, the others numbers."""
    rule = [":---" if i < left else "---:" for i in range(len(names))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (names, rule, *rows))


def _slo(results: Results) -> str:
    limits: Mapping[str, float] = next((p["goodput_slo_ms"] for points in results.values() for p in points), {})
    return ", ".join(f"{name} {limit:g} ms" for name, limit in limits.items())
