"""Two ceilings of this machine: how fast it reads memory, and how fast it multiplies.

Every step of a model has to read its operands and do its arithmetic. The slower of the two is the least time it can
take, so a measured time becomes a *share of a ceiling*: the one figure that can be compared between machines.

Both probes are matrix products of the BLAS library that NumPy brings, since these are what a forward pass consists of:
a matrix times a vector touches each number once and is all reading, a matrix times a matrix is all arithmetic.
What is read must be as large as the model's weights, because less might fit into a cache and promise a speed that the
model never sees.

There are two ways to use several cores: the BLAS library's own threads, or one piece for each core with one BLAS thread
each, as the CPU room works. A ceiling is what the machine can do, so the faster way and the best repetition count.

What is not here: sweeps over sizes and the third ceiling, overhead (`ceilings.py`), a GPU (`cuda.py`), plots.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

READ_COLUMNS = 1 << 12
"""Floats in a row of the matrix that is read: so many that the vector's own traffic is nothing."""

GEMM_SIZE = 1536
"""Rows and columns of the square product: 7.2 GFLOP, past the size from which BLAS libraries run at full speed."""

MAX_SHARE_OF_MEMORY = 4
"""At most a quarter of the memory limit given may go into the matrix that is read."""

LEAST_BYTES = 200_000_000
"""A timed call reads at least so much, a small working set over and over: starting it must not count."""

Call = Callable[[], object]
Split = Callable[[int], Sequence[Call]]
"""Cuts one piece of work into n calls that can run at once."""


@dataclass(frozen=True)
class Ceilings:
    """What was measured: bytes per second while reading `working_set_bytes`, and FLOP per second, both in float32 with
    `threads` threads."""

    read_bytes_per_s: float
    flops_per_s: float
    working_set_bytes: int
    threads: int = 1

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which both ceilings take equally long; work of more is limited by arithmetic."""
        return self.flops_per_s / self.read_bytes_per_s

    def least_seconds(self, flops: float, num_bytes: float) -> float:
        """The shortest time in which this machine could do the work, if reading and arithmetic overlap fully.

        >>> Ceilings(read_bytes_per_s=10e9, flops_per_s=100e9, working_set_bytes=0).least_seconds(1e9, 1e9)
        0.1
        """
        return max(flops / self.flops_per_s, num_bytes / self.read_bytes_per_s)

    def limiter(self, flops: float, num_bytes: float) -> str:
        """`arithmetic` or `reading`: which of the two takes longer for this work.

        >>> Ceilings(read_bytes_per_s=10e9, flops_per_s=100e9, working_set_bytes=0).limiter(1e9, 1e9)
        'reading'
        """
        return "arithmetic" if flops / self.flops_per_s > num_bytes / self.read_bytes_per_s else "reading"

    def drift(self, later: "Ceilings") -> float:
        """The larger relative change of the two ceilings between this measurement and a later one."""
        changes = (
            later.read_bytes_per_s / self.read_bytes_per_s - 1,
            later.flops_per_s / self.flops_per_s - 1,
        )
        return max(changes, key=abs)


def measure_ceilings(
    working_set_bytes: int,
    *,
    memory_limit_bytes: int | None = None,
    threads: int | None = None,
    seconds_each: float = 0.3,
) -> Ceilings:
    """Measure both ceilings, within about `seconds_each` for either, with one thread per usable core by default
    (whatever number this process computes with otherwise).

    With a `memory_limit_bytes` the working set is cut to a quarter of that; `Ceilings.working_set_bytes` says what it
    was.
    """
    if memory_limit_bytes is not None:
        working_set_bytes = min(working_set_bytes, memory_limit_bytes // MAX_SHARE_OF_MEMORY)
    threads = threads or usable_cores()
    memory = touched(working_set_bytes)
    reading, _ = read_rate(memory, threads, seconds_each)
    arithmetic, _ = gemm_rate(GEMM_SIZE, GEMM_SIZE, GEMM_SIZE, threads, seconds_each)
    return Ceilings(reading, arithmetic, memory.nbytes, threads)


def usable_cores() -> int:
    """How many cores this process may run on: fewer than the machine has, in a container or under `taskset`."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def touched(num_bytes: int) -> np.ndarray:
    """Float32 memory of about this size that has been written, so that every page is really there."""
    return np.full(max(1, num_bytes // 4), 0.5, dtype=np.float32)


def read_rate(
    memory: np.ndarray, threads: int, limit_s: float, shape: tuple[int, int] | None = None
) -> tuple[float, str]:
    """Bytes per second while all of `memory` is read as matrices times a vector, and which way was the fastest.

    With a `shape` (rows, columns) it is read as many matrices of that shape, the way a model reads its weights.
    """

    columns = shape[1] if shape else min(READ_COLUMNS, max(1, memory.size // (8 * threads)))
    rows = shape[0] if shape else memory.size // threads // columns
    memory = memory[: memory.size // (rows * columns * threads) * rows * columns * threads]
    repeats = max(1, LEAST_BYTES // max(1, memory.nbytes))

    def split(n: int) -> list[Call]:
        return [_read_call(part.reshape(-1, rows, columns), repeats) for part in np.array_split(memory, n)]

    seconds, way = fastest(split, threads, limit_s)
    return memory.nbytes * repeats / seconds, way


def gemm_rate(m: int, n: int, k: int, threads: int, limit_s: float) -> tuple[float, str]:
    """FLOP per second of `x [m, k] @ w[n, k].T`, and which way was the fastest; the rows of w are what is split."""
    x, w = touched(4 * m * k).reshape(m, k), touched(4 * n * k).reshape(n, k)

    def split(parts: int) -> list[Call]:
        return [_gemm_call(x, part) for part in np.array_split(w, parts)]

    seconds, way = fastest(split, threads, limit_s)
    return 2 * m * n * k / seconds, way


def fastest(split: Split, threads: int, limit_s: float) -> tuple[float, str]:
    """The shortest time for the work that `split` cuts, within `limit_s`, and the way: `BLAS threads`, or `one BLAS
    thread per core` with a piece for each."""
    (whole,) = split(1)
    with threadpool_limits(threads, "blas"):
        best = best_seconds(whole, limit_s / 2), "BLAS threads"
    if threads > 1:
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
            parts = split(threads)
            at_once = best_seconds(lambda: list(pool.map(lambda part: part(), parts)), limit_s / 2)
        best = min(best, (at_once, "one BLAS thread per core"))
    return best


def best_seconds(call: Call, limit_s: float) -> float:
    """The shortest of at least two calls, and of as many as fit into the limit; the first only warms up."""
    call()
    best, stop = float("inf"), time.perf_counter() + limit_s
    repetitions = 0
    while repetitions < 2 or time.perf_counter() < stop:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        repetitions += 1
    return best


def _read_call(matrices: np.ndarray, repeats: int) -> Call:
    """One NumPy call that reads `[count, rows, columns]` `repeats` times, as a stack of the same memory, so that even
    the smallest working set is read without the interpreter in between."""
    count, rows, columns = matrices.shape
    stack = np.broadcast_to(matrices, (repeats, count, rows, columns))
    vector, product = touched(4 * columns), np.empty((repeats, count, rows), dtype=np.float32)
    return lambda: np.matmul(stack, vector, out=product)


def _gemm_call(x: np.ndarray, w: np.ndarray) -> Call:
    y = np.empty((len(x), len(w)), dtype=np.float32)
    return lambda: np.matmul(x, w.T, out=y)
