"""Everything this machine can do, measured once and kept: reads by working set, products, the price of a call.

A roofline has a flat roof (arithmetic), a slanted one (reading) and, on small models, a third that the textbooks leave
out: each call of Python and NumPy costs a while before any number is touched. And there is not one slanted roof but
one for each level of the memory: what fits into a cache is read several times faster. So reading is measured over
working sets from the first-level cache to four times the last one, for one thread and for all.

This takes ten to twenty seconds, therefore it is kept in the cache folder, under a key that says which machine, which
NumPy and which kernels it belongs to.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minifer import hub
from minifer.formats.atomic import atomic_path
from minifer.roofline import cuda
from minifer.roofline.probes import (
    GEMM_SIZE,
    MAX_SHARE_OF_MEMORY,
    best_seconds,
    gemm_rate,
    read_rate,
    touched,
    usable_cores,
)

SMALLEST_BYTES = 32 << 10
"""Fits the first-level cache of any core."""

BEYOND_CACHE = 4
"""A working set of this many last-level caches is read from memory."""

ASSUMED_CACHE_BYTES = 64 << 20
"""Where the system does not tell how large its last-level cache is."""

CALLS = 1000

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Machine:
    """The ceilings of one machine in float32.

    `reads` are rows of `threads, bytes, bytes_per_s, way`, `gemms` of `threads, m, n, k, flops_per_s, way`; `call_s`
    is what a call costs that does next to nothing, by kind; `cuda` is what `cuda.measure` found, None without a GPU;
    `conditions` is whatever the caller wants to remember of the circumstances.
    """

    cache_bytes: int
    reads: list[dict[str, Any]]
    gemms: list[dict[str, Any]]
    call_s: dict[str, float]
    cuda: dict[str, Any] | None
    conditions: dict[str, Any]

    def read_bytes_per_s(self, working_set_bytes: float, threads: int) -> float:
        """The reading speed at a working set, on the logarithmic scale between the two nearest that were measured."""
        rows = sorted((r["bytes"], r["bytes_per_s"]) for r in self.reads if r["threads"] == threads)
        sizes, rates = zip(*rows, strict=True)
        return float(np.interp(math.log(max(1.0, working_set_bytes)), np.log(sizes), rates))

    def flops_per_s(self, threads: int) -> float:
        """The speed of the large product."""
        return max(row["flops_per_s"] for row in self.gemms if row["threads"] == threads)


def load_or_measure(
    key: Mapping[str, Any], conditions: Mapping[str, Any], memory_limit_bytes: int, progress: Progress, *, fresh: bool
) -> Machine:
    """The ceilings that were kept under `key`, measured now if there are none or `fresh` is set. `conditions` are kept
    with them, and say when that was.

    A file that cannot be read is measured again, a folder that cannot be written raises MiniferError.
    """
    if not fresh and (found := kept(key)) is not None:
        return found
    machine = measure(memory_limit_bytes, progress, {**key, **conditions})
    with atomic_path(hub.kept_path("ceilings", key)) as temporary:
        temporary.write_text(json.dumps(asdict(machine), indent=1), "utf-8")
    return machine


def kept(key: Mapping[str, Any]) -> Machine | None:
    """The ceilings that were kept under `key`; None if there are none yet, or of another version."""
    try:
        return Machine(**json.loads(hub.kept_path("ceilings", key).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def measure(memory_limit_bytes: int, progress: Progress, conditions: dict[str, Any], limit_s: float = 0.24) -> Machine:
    """Measure all ceilings, about `limit_s` for each; reads take at most a quarter of the memory limit."""
    cache_bytes = last_level_cache_bytes()
    sizes = working_sets(cache_bytes, memory_limit_bytes // MAX_SHARE_OF_MEMORY)
    memory, counts = touched(sizes[-1]), sorted({1, usable_cores()})
    total = len(counts) * (len(sizes) + 1)
    reads: list[dict[str, Any]] = []
    gemms: list[dict[str, Any]] = []
    for threads in counts:
        for size in sizes:
            progress("measuring ceilings", len(reads) + len(gemms), total)
            rate, way = read_rate(memory[: size // 4], threads, limit_s)
            reads.append({"threads": threads, "bytes": size, "bytes_per_s": rate, "way": way})
        rate, way = gemm_rate(GEMM_SIZE, GEMM_SIZE, GEMM_SIZE, threads, 4 * limit_s)
        gemms.append({"threads": threads, "m": GEMM_SIZE, "n": GEMM_SIZE, "k": GEMM_SIZE, "flops_per_s": rate,
                      "way": way})  # fmt: skip
    progress("measuring ceilings", total, total)
    return Machine(cache_bytes, reads, gemms, call_seconds(), cuda.measure(), conditions)


def working_sets(cache_bytes: int, limit_bytes: int) -> list[int]:
    """Sizes by factors of four from the first-level cache up to four last-level caches, or to the limit.

    >>> working_sets(1 << 20, 1 << 40)
    [32768, 131072, 524288, 2097152, 4194304]
    """
    top = max(SMALLEST_BYTES, min(BEYOND_CACHE * cache_bytes, limit_bytes))
    steps = math.ceil(math.log(top / SMALLEST_BYTES, 4))
    return [SMALLEST_BYTES * 4**i for i in range(steps)] + [top]


def call_seconds() -> dict[str, float]:
    """What one call costs when there is nothing to do: a Python function, a NumPy addition, a NumPy product."""
    x, y, w = touched(32), touched(32), touched(256).reshape(8, 8)
    kinds: dict[str, Callable[[], object]] = {
        "python": lambda: None,
        "add": lambda: np.add(x, x, out=y),
        "product": lambda: np.dot(w, x, out=y),
    }
    return {kind: best_seconds(lambda call=call: [call() for _ in range(CALLS)], 0.02) / CALLS  # type: ignore[misc]
            for kind, call in kinds.items()}  # fmt: skip


def last_level_cache_bytes() -> int:
    """The size of the largest cache as Linux tells it, else an assumption of 64 MiB."""
    units = {"K": 1 << 10, "M": 1 << 20}
    texts = [p.read_text().strip() for p in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(t[:-1]) * units[t[-1]] for t in texts if t[-1:] in units), default=ASSUMED_CACHE_BYTES)


def model_shape_rates(
    shapes: Mapping[str, tuple[int, int]], rows: int, working_set_bytes: int, threads: int, limit_s: float = 0.1
) -> dict[str, dict[str, float]]:
    """How fast matrices `[out, in]` of a model's own shapes are multiplied with `rows` tokens (`flops_per_s`) and read
    for a single one (`bytes_per_s`): short rows and narrow products stay below the ceilings."""
    memory = touched(working_set_bytes)
    found = {}
    for name, (n, k) in shapes.items():
        reading, _ = read_rate(memory, threads, limit_s, (max(1, n // threads), k))
        found[name] = {"bytes_per_s": reading, "flops_per_s": gemm_rate(rows, n, k, threads, limit_s)[0]}
    return found
