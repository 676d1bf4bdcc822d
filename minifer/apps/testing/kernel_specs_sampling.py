"""What the kernels that choose a token must give: the very tokens that `minifer/sampling.py` chooses.

Rows of logits that go wrong elsewhere: ties (the smallest id wins), -inf among them, NaN, +inf, nothing but -inf. And
the step to the next position: within a block, into the next block, past the end of the table, and rows that stay put.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from minifer.apps.testing.kernel_case import Case, Launch, nothing
from minifer.apps.testing.kernel_sources import Build
from minifer.sampling import log_softmax, sample
from minifer.sampling_params import SamplingParams

Shape = Mapping[str, Any]
OFF = np.float32(-3e38)

ARGMAX_SHAPES: tuple[Shape, ...] = (
    {"rows": 9, "vocab": 300, "block": 128},
    {"rows": 1, "vocab": 1, "block": 32},
    {"rows": 9, "vocab": 33, "block": 1024},
    {"rows": 6, "vocab": 4097, "block": 256},
)
SAMPLE_SHAPES: tuple[Shape, ...] = (
    {"rows": 9, "vocab": 100, "block": 64},
    {"rows": 10, "vocab": 33, "block": 256},
    {"rows": 12, "vocab": 1025, "block": 128},
)
PARAMS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.3, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=2.0, top_k=20, top_p=0.5, min_p=0.05),
    SamplingParams(temperature=0.01),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=1.0, top_p=0.01),
)


def argmax_advance(rng: np.random.Generator, build: Build, shape: Shape) -> Case:
    """The first of the largest, its log-probability, and every sequence a step on."""
    rows, vocab = shape["rows"], shape["vocab"]
    logits = _logits(rng, rows, vocab, nasty=True)
    usable = [np.isfinite(row.max()) for row in logits]
    tokens = np.array([int(row.argmax()) if good else -1 for row, good in zip(logits, usable, strict=True)])
    logprobs = np.full(rows, np.nan)
    for i in range(rows):
        if usable[i]:
            logprobs[i] = log_softmax(logits[i])[tokens[i]]
    return _case("argmax_advance", build, shape, rng, logits, {}, tokens, logprobs, np.array(usable))


def sample_advance(rng: np.random.Generator, build: Build, shape: Shape) -> Case:
    """One draw a row, each with other parameters; a broken row gives -1."""
    rows, vocab = shape["rows"], shape["vocab"]
    logits = _logits(rng, rows, vocab, nasty=False)
    if rows > len(PARAMS):
        logits[-1, vocab // 2] = np.nan
    params = [PARAMS[i % len(PARAMS)] for i in range(rows)]
    seeds = np.array(rng.integers(0, 2**63, rows), np.uint64)
    usable = np.array([bool(np.isfinite(row.max())) for row in logits])
    positions = _positions(rows)
    chosen = [
        sample(row, p, seed=int(seed), position=int(at) + 1) if good else None
        for row, p, seed, at, good in zip(logits, params, seeds, positions, usable, strict=True)
    ]
    tokens = np.array([one.token_id if one else -1 for one in chosen])
    logprobs = np.array([one.logprob if one else 0.0 for one in chosen])
    extra: dict[str, np.ndarray] = {
        "temperatures": np.array([p.temperature for p in params], np.float32),
        "floors": np.array([np.float32(np.log(p.min_p)) if p.min_p > 0 else OFF for p in params], np.float32),
        "top_ks": np.array([p.top_k for p in params], np.int32),
        "top_ps": np.array([p.top_p for p in params], np.float64),
        "seeds": seeds,
    }
    return _case("sample_advance", build, shape, rng, logits, extra, tokens, logprobs, np.ones(rows, bool))


def _logits(rng: np.random.Generator, rows: int, vocab: int, *, nasty: bool) -> np.ndarray:
    logits = (rng.standard_normal((rows, vocab)) * 3).astype(np.float32)
    logits[0, [vocab // 3, -1, vocab // 2]] = logits[0].max() + 1  # a tie
    if rows > 2 and vocab > 2:
        logits[1, 1::2] = -np.inf
        logits[2] = np.float32(0.5)
    if nasty and rows > 5:
        logits[3, vocab // 2] = np.nan
        logits[4] = -np.inf
        logits[5, -1] = np.inf
    return logits


def _positions(rows: int) -> np.ndarray:
    return np.array([0, 6, 7, 11, 23, 8][:rows] + list(range(max(0, rows - 6))), np.int32)


def _case(
    kernel: str, build: Build, shape: Shape, rng: np.random.Generator, logits: np.ndarray,
    extra: dict[str, np.ndarray], tokens: np.ndarray, logprobs: np.ndarray, compared: np.ndarray,
) -> Case:  # fmt: skip
    """What both have in common: the step of each sequence, in blocks of 8 and a table of 3."""
    rows, vocab, size, width = shape["rows"], shape["vocab"], 8, 3
    positions = _positions(rows)
    tables = rng.permutation(rows * width).reshape(rows, width).astype(np.int32)
    lengths = positions + 1
    slots = tables[np.arange(rows), positions // size] * size + positions % size
    if rows > 1:
        slots[1] = -1
    moves = slots >= 0
    after = np.where(moves, positions + 1, positions)
    within = after // size < width
    block = tables[np.arange(rows), np.minimum(after // size, width - 1)]
    new_slots = np.where(moves, np.where(within, block * size + after % size, -1), slots)
    names = ("logits", *extra, "tokens", "logprobs", "positions", "lengths", "slots", "tables")
    arrays = (logits, *extra.values(), nothing((rows,), "int32"), nothing((rows,), "float32"), positions,
              lengths.astype(np.int32), slots.astype(np.int32), tables)  # fmt: skip
    launch = Launch(kernel, (rows,), (shape["block"],), (*names, vocab, size, width))
    expected = {"tokens": tokens, "positions": after, "lengths": np.where(moves, after + 1, lengths)}
    expected |= {"slots": new_slots, "logprobs": logprobs}
    case = Case(f"{kernel}, {rows} rows", build, [launch], dict(zip(names, arrays, strict=True)), expected)
    case.anything = {"logprobs": ~compared}
    return case
