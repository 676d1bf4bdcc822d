"""What the attention kernels must give: rotation and cache, decoding in stretches, prefill in tiles.

The cache of a case is a shuffled one: blocks lie in any order, and whatever no sequence owns is NaN, the rest of a
sequence's last block included. Table entries past a sequence's blocks point to a block of NaN. So a key too many, or
one of somebody else's, is NaN in the result.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from minifer.apps.testing.kernel_case import Case, Launch, decode, encode, nothing
from minifer.apps.testing.kernel_sources import Build

Shape = Mapping[str, Any]
NO_WINDOW = 2**31 - 1
NEG_BIG = -1.0e30
SHORTEST_STRETCH = 32

ROPE_SHAPES: tuple[Shape, ...] = (
    {"tokens": 5, "kv_heads": 3, "bias": True, "gains": True},
    {"tokens": 1, "kv_heads": 1},
    {"tokens": 4, "kv_heads": 2, "bias": True},
    {"tokens": 7, "kv_heads": 2, "gains": True},
)
DECODE_SHAPES: tuple[Shape, ...] = (
    {"lengths": (37, 0, 1), "kv_heads": 2, "block_size": 16, "splits": 2, "rows": True},
    {"lengths": (70, 32, 33, 31), "kv_heads": 3, "block_size": 8, "splits": 3},
    {"lengths": (100,), "kv_heads": 1, "block_size": 16, "splits": 1},
    {"lengths": (65, 129), "kv_heads": 2, "block_size": 5, "splits": 4, "window": 40},
    {"lengths": (16, 17), "kv_heads": 1, "block_size": 16, "splits": 5, "window": 1},
)
COMBINE_SHAPES: tuple[Shape, ...] = (
    {"sequences": 3, "kv_heads": 2, "splits": 3, "rows": True},
    {"sequences": 1, "kv_heads": 1, "splits": 1},
    {"sequences": 2, "kv_heads": 3, "splits": 16},
)
PREFILL_SHAPES: tuple[Shape, ...] = (
    {"counts": (7, 2), "past": (0, 30), "kv_heads": 2, "block_size": 16},
    {"counts": (1,), "past": (0,), "kv_heads": 1, "block_size": 16},
    {"counts": (33, 5, 16), "past": (3, 64, 0), "kv_heads": 1, "block_size": 8},
    {"counts": (20, 11), "past": (0, 40), "kv_heads": 2, "block_size": 5, "window": 9},
    {"counts": (40,), "past": (33,), "kv_heads": 1, "block_size": 16, "window": 1},
)


class PagedCache:
    """Keys and values of some sequences, in float64 as `[length, kv_heads, D]`, and the pages that they lie in."""

    def __init__(
        self, rng: np.random.Generator, build: Build, lengths: tuple[int, ...], kv_heads: int, block_size: int
    ) -> None:
        """Fill pages in shuffled order."""
        blocks = [-(-n // block_size) for n in lengths]
        total, width = sum(blocks) + 2, max(max(blocks), 1) + 1
        order = rng.permutation(total)
        shape = (total * block_size, kv_heads, build.head_dim)
        pages = {name: np.full(shape, np.nan) for name in "kv"}
        self.tables = np.full((len(lengths), width), order[-1], np.int32)  # the last block belongs to nobody
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []
        taken = 0
        for i, length in enumerate(lengths):
            self.tables[i, : blocks[i]] = order[taken : taken + blocks[i]]
            taken += blocks[i]
            t = np.arange(length)
            slots = self.tables[i, t // block_size] * block_size + t % block_size
            for name, kept in (("k", self.keys), ("v", self.values)):
                numbers = decode(encode(rng.standard_normal((length, *shape[1:])), build.dtype))
                pages[name][slots] = numbers
                kept.append(numbers)
        self.k, self.v = (encode(pages[name], build.dtype) for name in "kv")


def attend(q: np.ndarray, keys: np.ndarray, values: np.ndarray, first: int, last: int) -> np.ndarray:
    """One query `[H, D]` over keys `first` to `last`, that one left out: `[H, D]`; zeros if there are none."""
    group = len(q) // keys.shape[1]
    out = np.zeros_like(q)
    for h in range(len(q) if last > first else 0):
        scores = keys[first:last, h // group] @ q[h] / math.sqrt(q.shape[-1])
        p = np.exp(scores - scores.max())
        out[h] = p / p.sum() @ values[first:last, h // group]
    return out


def rope_kv_write(rng: np.random.Generator, build: Build, shape: Shape) -> Case:
    """Queries rotated, keys rotated into their slots, values into theirs; the last token is padding."""
    tokens, kv, d, eps = shape["tokens"], shape["kv_heads"], build.head_dim, 1e-6
    heads, slots_in_all, longest = kv * build.group, 4 * tokens, 50
    qkv = encode(rng.standard_normal((tokens, heads + 2 * kv, d)), build.dtype)
    bias = encode(rng.standard_normal((heads + 2 * kv) * d), build.dtype) if shape.get("bias") else None
    gains = [encode(rng.standard_normal(d) + 1, build.dtype) if shape.get("gains") else None for _ in "qk"]
    angles = np.arange(longest)[:, None] * 100.0 ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    positions = rng.integers(0, longest, tokens).astype(np.int32)
    slots = rng.permutation(slots_in_all)[:tokens].astype(np.int32)
    if tokens > 1:
        slots[-1] = -1
    caches = [encode(rng.standard_normal((slots_in_all, kv, d)), build.dtype) for _ in "kv"]

    x = decode(qkv) + (0 if bias is None else decode(bias).reshape(heads + 2 * kv, d))
    parts = []
    for part, gain in zip(np.split(x, [heads, heads + kv], axis=1), [*gains, None], strict=True):
        scale = 1 if gain is None else decode(gain) / np.sqrt((part**2).mean(-1, keepdims=True) + eps)
        parts.append(part * scale)
    q, k = (rotated(part, cos[positions].astype(float), sin[positions].astype(float)) for part in parts[:2])
    written, real = [decode(cache).copy() for cache in caches], slots >= 0
    for pages, new in zip(written, (k, parts[2]), strict=True):
        pages[slots[real]] = new[real]

    names = ("qkv", "bias", "q_gain", "k_gain", "cos", "sin", "positions", "slots", "q", "k_cache", "v_cache")
    arrays = (qkv, bias, *gains, cos, sin, positions, slots, nothing(q.shape, build.dtype), *caches)
    launch = Launch("rope_kv_write", (tokens, heads + 2 * kv), (32,), (*names, heads, kv, eps))
    expected = {"q": q, "k_cache": written[0], "v_cache": written[1]}
    return Case("bias, norm, rotation, cache", build, [launch], dict(zip(names, arrays, strict=True)), expected)


def rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """`x [T, H, D]` with the pairs (i, i + D/2) rotated."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def paged_split(rng: np.random.Generator, build: Build, shape: Shape) -> Case:
    """Maximum, sum and unnormalised output of every stretch, as the header of the kernel defines stretches."""
    case, cache, q = _decode(rng, build, shape)
    splits, window = shape["splits"], shape.get("window", NO_WINDOW)
    sequences, heads, d = len(shape["lengths"]), q.shape[1], build.head_dim
    stats = np.zeros((sequences, heads, splits, 2))
    out = np.zeros((sequences, heads, splits, d))
    stats[..., 0] = NEG_BIG
    for b, length in enumerate(shape["lengths"]):
        first = max(0, length - window)
        stretch = max(SHORTEST_STRETCH, -(-(length - first) // splits))
        for h in range(heads):
            for s in range(splits):
                seen = slice(first + s * stretch, min(length, first + (s + 1) * stretch))
                keys, values = cache.keys[b][seen, h // build.group], cache.values[b][seen, h // build.group]
                if len(keys):
                    scores = keys @ q[b, h] / math.sqrt(d)
                    p = np.exp(scores - scores.max())
                    stats[b, h, s], out[b, h, s] = (scores.max(), p.sum()), p @ values
    case.expected = {"part_stats": stats, "part_out": out}
    return case


def paged_attention(rng: np.random.Generator, build: Build, shape: Shape) -> Case:
    """Both kernels of decode attention in a row, against attention as the textbook has it."""
    case, cache, q = _decode(rng, build, shape)
    sequences, heads = len(shape["lengths"]), q.shape[1]
    window, rows = shape.get("window", NO_WINDOW), case.buffers["rows"]
    places = np.arange(sequences) if rows is None else rows
    out = np.full((int(places.max()) + 1, *q.shape[1:]), np.nan)
    for b, length in enumerate(shape["lengths"]):
        out[places[b]] = attend(q[b], cache.keys[b], cache.values[b], max(0, length - window), length)
    case.buffers["out"] = nothing(out.shape, build.dtype)
    args = ("part_stats", "part_out", "rows", "out", heads, shape["splits"])
    case.launches.append(Launch("paged_combine", (sequences, heads), (32,), args))
    case.scratch = frozenset({"part_stats", "part_out"})
    case.expected, case.about = {"out": out}, "decode attention over a paged cache"
    return case


def _decode(rng: np.random.Generator, build: Build, shape: Shape) -> tuple[Case, PagedCache, np.ndarray]:
    """A case of paged_split without its expectation, the cache, and the queries in the order of the sequences."""
    lengths, kv, splits, d = shape["lengths"], shape["kv_heads"], shape["splits"], build.head_dim
    sequences, heads = len(lengths), kv * build.group
    cache = PagedCache(rng, build, lengths, kv, shape["block_size"])
    rows = (rng.permutation(sequences) * 2).astype(np.int32) if shape.get("rows") else None
    places = np.arange(sequences) if rows is None else rows
    queries = rng.standard_normal((int(places.max()) + 1, heads, d)) * 2
    q = encode(queries, build.dtype)
    args = ("q", "k_cache", "v_cache", "rows", "lengths", "tables", "part_stats", "part_out", kv, shape["block_size"],
            cache.tables.shape[1], shape.get("window", NO_WINDOW), d**-0.5)  # fmt: skip
    buffers = {
        "q": q, "k_cache": cache.k, "v_cache": cache.v, "rows": rows, "lengths": np.array(lengths, np.int32),
        "tables": cache.tables, "part_stats": nothing((sequences, heads, splits, 2), "float32"),
        "part_out": nothing((sequences, heads, splits, d), "float32"),
    }  # fmt: skip
    launch = Launch("paged_split", (sequences, kv, splits), (128,), args)
    return Case("decode attention, by stretches", build, [launch], buffers), cache, decode(q)[places]


def paged_combine(rng: np.random.Generator, build: Build, shape: Shape) -> Case:
    """Stretches merged: empty ones among them, one sequence with nothing at all, maxima far apart."""
    sequences, splits, d = shape["sequences"], shape["splits"], build.head_dim
    heads = shape["kv_heads"] * build.group
    stats = np.stack(
        [rng.normal(0, 10, (sequences, heads, splits)), rng.uniform(1, 40, (sequences, heads, splits))], -1
    )
    out = rng.standard_normal((sequences, heads, splits, d))
    empty = rng.random((sequences, splits)) < 0.3
    empty[-1] = sequences > 1
    empty[0, 0] = False
    stats[np.broadcast_to(empty[:, None], stats.shape[:3])] = (NEG_BIG, 0.0)
    out[np.broadcast_to(empty[:, None], stats.shape[:3])] = 0.0
    rows = (rng.permutation(sequences) * 3 // 2).astype(np.int32) if shape.get("rows") else None
    stats32, out32 = stats.astype(np.float32), out.astype(np.float32)
    weights = np.exp(stats32[..., 0] - stats32[..., 0].max(-1, keepdims=True).astype(np.float64))
    total = (weights * stats32[..., 1]).sum(-1)[..., None]
    merged = (weights[..., None] * out32).sum(2)
    answer = np.where(total > 0, merged / np.where(total > 0, total, 1), 0.0)
    places = np.arange(sequences) if rows is None else rows
    want = np.full((int(places.max()) + 1, heads, d), np.nan)
    want[places] = answer
    args = ("part_stats", "part_out", "rows", "out", heads, splits)
    launch = Launch("paged_combine", (sequences, heads), (32,), args)
    buffers = {"part_stats": stats32, "part_out": out32, "rows": rows, "out": nothing(want.shape, build.dtype)}
    return Case("stretches put together", build, [launch], buffers, {"out": want})


def flash_prefill(rng: np.random.Generator, build: Build, shape: Shape) -> Case:
    """Every new token over what came before it, in prompts, chunks and behind prefixes."""
    counts, past, kv, d = shape["counts"], shape["past"], shape["kv_heads"], build.head_dim
    lengths = tuple(c + p for c, p in zip(counts, past, strict=True))
    heads, window = kv * build.group, shape.get("window", NO_WINDOW)
    cache = PagedCache(rng, build, lengths, kv, shape["block_size"])
    starts = np.cumsum([1, *counts[:-1]])  # row 0 of the queries belongs to no span
    q = encode(rng.standard_normal((int(starts[-1]) + counts[-1], heads, d)) * 2, build.dtype)
    out = np.full(q.shape, np.nan)
    for i, (start, count) in enumerate(zip(starts, counts, strict=True)):
        for n in range(count):
            position, row = past[i] + n, start + n
            first = max(0, position - window + 1)
            out[row] = attend(decode(q[row]), cache.keys[i], cache.values[i], first, position + 1)
    args = ("q", "k_cache", "v_cache", "starts", "counts", "lengths", "tables", "out", kv, shape["block_size"],
            cache.tables.shape[1], window, d**-0.5)  # fmt: skip
    grid = (-(-max(counts) * build.group // 16), kv, len(counts))
    buffers = {
        "q": q, "k_cache": cache.k, "v_cache": cache.v, "starts": starts.astype(np.int32),
        "counts": np.array(counts, np.int32), "lengths": np.array(lengths, np.int32), "tables": cache.tables,
        "out": nothing(q.shape, build.dtype),
    }  # fmt: skip
    return Case("attention of a prompt", build, [Launch("flash_prefill", grid, (128,), args)], buffers, {"out": out})
