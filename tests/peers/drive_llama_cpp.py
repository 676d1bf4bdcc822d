"""Measures llama.cpp with its own programs: llama-bench for one sequence, llama-batched-bench for several.

Each job starts the program anew (the file is in the page cache, so that takes under a second); the program warms up and
keeps its own time. Its KV cache is float16, its default.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from driving import Job, drive

PROGRAMS = Path(__file__).resolve().parent / "bin"

LEAST_CONTEXT = 256
"""llama.cpp rounds the context of a sequence up to this, but warms up with what was asked for, and fails on less."""

ATTEMPTS = 5


def load(model: str, threads: int) -> Callable[[Job], float]:
    """Nothing stays loaded: a job is a program."""

    def run(job: Job) -> float:
        return (several if job.batch > 1 else single)(model, threads, job)

    return run


def single(model: str, threads: int, job: Job) -> float:
    """One sequence: a test of llama-bench, repeated once."""
    sizes = {"-p": job.n_prompt, "-n": job.steps, "-d": job.n_depth, "-t": threads, "-r": 1}
    (row,) = json.loads(call("llama-bench", "-m", model, "-o", "json", *flat(sizes)))
    return float(row["samples_ns"][0]) / 1e9


def several(model: str, threads: int, job: Job) -> float:
    """Several sequences: the generating half of llama-batched-bench.

    It cannot start from an empty cache, so a depth of 0 is a depth of 1. It prints by a thread of its own that is not
    waited for at the end, and the last row may be lost: so a second test follows, and the first one's row is read.
    """
    if job.n_prompt:
        raise ValueError("llama.cpp is measured with several sequences only while generating")
    depth = max(1, job.n_depth)
    context = job.batch * max(LEAST_CONTEXT, depth + job.steps)
    sizes = {"-ntg": job.steps, "-npl": job.batch, "-c": context, "-t": threads, "-tb": threads}
    for _ in range(ATTEMPTS):
        words = ("-m", model, "-npp", f"{depth},1", "--output-format", "jsonl", *flat(sizes))
        rows = [json.loads(line) for line in call("llama-batched-bench", *words).splitlines() if line.startswith("{")]
        if rows and rows[0]["pp"] == depth:
            return float(rows[0]["t_tg"])
    raise RuntimeError(f"llama-batched-bench printed no row in {ATTEMPTS} attempts")


def flat(options: dict[str, int]) -> list[str]:
    """{"-p": 1} -> ["-p", "1"]"""
    return [word for name, value in options.items() for word in (name, str(value))]


def call(program: str, *words: str) -> str:
    """What a program prints. Raises RuntimeError with its last words if it fails."""
    quiet = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # or a debugger's output hides the reason
    result = subprocess.run([str(PROGRAMS / program), *words], capture_output=True, text=True, env=quiet)
    if result.returncode:
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()
        raise RuntimeError(f"{program} failed with code {result.returncode}: {said[-1] if said else 'silently'}")
    return result.stdout


if __name__ == "__main__":
    drive(load)
