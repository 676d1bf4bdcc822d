"""The loop of every driver: a model is loaded once, then each line of JSON asks for one job. See `peerlib.py`.

This file is copied beside the driver into the peer's folder and runs with the peer's Python: standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

WARM_UP_TOKENS = 4
"""Decode steps before a measurement, as minifer does it."""


@dataclass(frozen=True)
class Job:
    """Either a prompt of `n_prompt` tokens or `n_gen` generated ones, behind `n_depth` tokens that are in the cache
    already, for `batch` sequences at once. To warm up, a generation is only a few steps long."""

    n_prompt: int
    n_gen: int
    n_depth: int
    batch: int
    warmup: bool

    @property
    def steps(self) -> int:
        """Decode steps to make."""
        return min(self.n_gen, WARM_UP_TOKENS) if self.warmup else self.n_gen


def drive(load: Callable[[str, int], Callable[[Job], float]]) -> None:
    """Run a driver: `load(model, threads)` gives a function that takes a job and returns its seconds.

    An exception in a job is its answer; the driver goes on. One in `load` ends it.
    """
    if len(sys.argv) != 3:
        raise SystemExit(f"usage: {sys.argv[0]} MODEL THREADS   (jobs as JSON on stdin)")
    answers = _own_stdout()
    run = load(sys.argv[1], int(sys.argv[2]))
    _say(answers, {"ready": True})
    for line in sys.stdin:
        try:
            _say(answers, {"seconds": run(Job(**json.loads(line)))})
        except Exception as error:
            _say(answers, {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})


def _own_stdout() -> TextIO:
    """A handle on stdout that only answers go to: whatever else an engine prints there goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _say(answers: TextIO, value: dict[str, object]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
