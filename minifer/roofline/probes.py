"""Two ceilings of this machine, measured in half a second: how fast it reads memory, and how fast it multiplies.

Every step of a model has to read its operands and do its arithmetic. The slower of the two is the least time it can
take, so a measured time becomes a *share of a ceiling*: the one figure that can be compared between machines.

Both probes are matrix products of the BLAS library that NumPy brings, since these are what a forward pass consists of:
a matrix times a vector touches each number once and is all reading, a matrix times a matrix is all arithmetic.
The matrix that is read is as large as the model's weights, because a smaller one might fit into a cache and promise a
speed that the model never sees.

What is not here: the third ceiling (overhead), sweeps over sizes, a GPU, plots.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

READ_ROW_BYTES = 1 << 14
"""One row of the matrix that is read: 4,096 floats, long enough that the vector's own traffic is nothing."""

GEMM_SIZE = 1536
"""Rows and columns of the square product: 7.2 GFLOP, past the size from which BLAS libraries run at full speed."""

MAX_SHARE_OF_MEMORY = 4
"""At most a quarter of the memory limit given may go into the matrix that is read."""


@dataclass(frozen=True)
class Ceilings:
    """What was measured: bytes per second while reading `working_set_bytes`, and FLOP per second, both in float32 with
    `threads` BLAS threads."""

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
    """Measure both ceilings, within about `seconds_each` for either, with one BLAS thread per usable core by default
    (whatever number this process computes with otherwise).

    The best repetition counts: a ceiling is what the machine can do, not what it does on average. With a
    `memory_limit_bytes` the working set is cut to a quarter of that; `Ceilings.working_set_bytes` says what it was.
    """
    if memory_limit_bytes is not None:
        working_set_bytes = min(working_set_bytes, memory_limit_bytes // MAX_SHARE_OF_MEMORY)
    threads = threads or usable_cores()
    with threadpool_limits(threads, "blas"):
        num_bytes, reading_s = _probe_reading(working_set_bytes, seconds_each)
        flops, multiplying_s = _probe_arithmetic(seconds_each)
    return Ceilings(num_bytes / reading_s, flops / multiplying_s, num_bytes, threads)


def usable_cores() -> int:
    """How many cores this process may run on: fewer than the machine has, in a container or under `taskset`."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _probe_reading(working_set_bytes: int, limit_s: float) -> tuple[int, float]:
    """Bytes of a matrix of about that size, and the seconds that its product with a vector takes."""
    columns = READ_ROW_BYTES // 4
    rows = max(64, working_set_bytes // READ_ROW_BYTES)
    matrix = np.full((rows, columns), 0.5, dtype=np.float32)  # written, so that every page is really there
    vector, product = np.full(columns, 0.5, dtype=np.float32), np.empty(rows, dtype=np.float32)
    return matrix.nbytes, _best_seconds(lambda: np.dot(matrix, vector, out=product), limit_s)


def _probe_arithmetic(limit_s: float) -> tuple[int, float]:
    """FLOPs of a square product, and the seconds it takes."""
    a = np.full((GEMM_SIZE, GEMM_SIZE), 0.5, dtype=np.float32)
    b, c = a.copy(), np.empty_like(a)
    return 2 * GEMM_SIZE**3, _best_seconds(lambda: np.matmul(a, b, out=c), limit_s)


def _best_seconds(call: Callable[[], object], limit_s: float) -> float:
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
