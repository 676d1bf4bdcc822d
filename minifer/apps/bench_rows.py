"""Rows of measured speeds: how a list of times becomes figures, and how these are printed.

Keys and columns are llama-bench's, so that scripts which read its output read ours. Added are `test`, the median with
the smallest and largest sample, and the two shares: `mbu` is bytes per second over the reading ceiling, `mfu` FLOP per
second over the arithmetic ceiling, both with their numerators and denominators beside them.
"""

import csv
import io
import json
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from minifer.model.config import ModelConfig
from minifer.model.cost import num_parameters
from minifer.roofline.probes import Ceilings
from minifer.roofline.speed import Job, load_of

Row = dict[str, Any]

FORMATS = ("md", "json", "csv")


def model_columns(name: str, config: ModelConfig) -> Row:
    """What is the same in every row of a model. It runs in float32, whatever its file was."""
    parameters = num_parameters(config)
    return {
        "model_filename": name,
        "model_type": f"{config.model_type} {parameters / 1e6:.0f}M F32",
        "model_size": 4 * parameters,
        "model_n_params": parameters,
    }


def make_row(job: Job, seconds: Sequence[float], *, config: ModelConfig, ceilings: Ceilings, kv_width: int = 4,
             ubatch: int, **columns: Any) -> Row:  # fmt: skip
    """The row of a job that took these times."""
    load = load_of(config, job, ceilings, ubatch=ubatch, kv_width=kv_width)
    rates = [job.tokens / s for s in seconds]
    ns = [round(1e9 * s) for s in seconds]
    typical = statistics.median(seconds)
    return columns | {
        "test": job.name,
        "n_prompt": job.n_prompt,
        "n_gen": job.n_gen,
        "n_depth": job.n_depth,
        "n_seqs": job.batch,
        "n_ubatch": ubatch,
        "test_time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "avg_ns": round(statistics.fmean(ns)),
        "stddev_ns": round(_deviation(ns)),
        "avg_ts": statistics.fmean(rates),
        "stddev_ts": _deviation(rates),
        "median_ts": statistics.median(rates),
        "min_ts": min(rates),
        "max_ts": max(rates),
        "samples_ns": ns,
        "samples_ts": rates,
        "flops": load.flops,
        "bytes": load.bytes,
        "mbu": load.bytes / typical / ceilings.read_bytes_per_s,
        "mfu": load.flops / typical / ceilings.flops_per_s,
        "mbu_of_bytes_per_s": ceilings.read_bytes_per_s,
        "mfu_of_flops_per_s": ceilings.flops_per_s,
        "share": load.least_s / typical,
    }


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample; 0 for a single one, as llama-bench has it."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def as_markdown(rows: Sequence[Row]) -> str:
    """The table that llama-bench prints, with three columns more."""
    columns: dict[str, tuple[int, Any]] = {
        "model": (-30, lambda r: r["model_type"]),
        "size": (10, lambda r: f"{r['model_size'] / 2**20:.2f} MiB"),
        "params": (10, lambda r: f"{r['model_n_params'] / 1e6:.2f} M"),
        "backend": (-22, lambda r: r["backends"]),
        "threads": (7, lambda r: str(r["n_threads"])),
        "test": (15, lambda r: r["test"]),
        "t/s": (20, lambda r: f"{r['avg_ts']:.2f} ± {r['stddev_ts']:.2f}"),
        "median (min .. max)": (26, lambda r: f"{r['median_ts']:.2f} ({r['min_ts']:.2f} .. {r['max_ts']:.2f})"),
        "MBU": (6, lambda r: _percent(r["mbu"])),
        "MFU": (6, lambda r: _percent(r["mfu"])),
    }
    head = [_cell(name, width) for name, (width, _) in columns.items()]
    rule = ["-" * (abs(w) + 1) + ":" if w > 0 else "-" * (abs(w) + 2) for w, _ in columns.values()]
    body = [[_cell(text(row), width) for width, text in columns.values()] for row in rows]
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *body)]
    lines.insert(1, "|" + "|".join(rule) + "|")
    return "\n".join(lines)


def _cell(text: str, width: int) -> str:
    return text.rjust(width) if width > 0 else text.ljust(-width)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def as_json(rows: Sequence[Row]) -> str:
    """A list of rows, as `llama-bench -o json` prints it."""
    return json.dumps(list(rows), indent=2)


def as_csv(rows: Sequence[Row]) -> str:
    """A header and a line for each row, without the samples."""
    out = io.StringIO()
    names = [name for name in (rows[0] if rows else {}) if not name.startswith("samples_")]
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")


def printed(rows: Sequence[Row], form: str) -> str:
    """The rows in one of `FORMATS`."""
    return {"md": as_markdown, "json": as_json, "csv": as_csv}[form](rows)
