"""Measures llama.cpp with its own programs: llama-bench for one sequence, llama-batched-bench for several.

Each job starts the program anew (the file is in the page cache, so that takes under a second); the program warms up and
keeps its own time. Its KV cache is float16, its default.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from driving import Job, drive

PROGRAMS = Path(__file__).resolve().parent / "bin"


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

    It cannot start from an empty cache, so a depth of 0 is a depth of 1.
    """
    if job.n_prompt:
        raise ValueError("llama.cpp is measured with several sequences only while generating")
    depth = max(1, job.n_depth)
    context = job.batch * (depth + job.steps)
    sizes = {"-npp": depth, "-ntg": job.steps, "-npl": job.batch, "-c": context, "-t": threads, "-tb": threads}
    out = call("llama-batched-bench", "-m", model, "--output-format", "jsonl", *flat(sizes))
    row = json.loads(next(line for line in out.splitlines() if line.startswith('{"n_kv_max"')))
    return float(row["t_tg"])


def flat(options: dict[str, int]) -> list[str]:
    """{"-p": 1} -> ["-p", "1"]"""
    return [word for name, value in options.items() for word in (name, str(value))]


def call(program: str, *words: str) -> str:
    """What a program prints. Raises RuntimeError with its last words if it fails."""
    result = subprocess.run([str(PROGRAMS / program), *words], capture_output=True, text=True)
    if result.returncode:
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()
        raise RuntimeError(f"{program} failed with code {result.returncode}: {said[-1] if said else 'silently'}")
    return result.stdout


if __name__ == "__main__":
    drive(load)
