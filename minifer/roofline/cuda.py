"""The ceilings of an NVIDIA GPU: products by number format, reading, copying, and what starting a kernel costs.

Tensor cores multiply 16-bit numbers an order of magnitude faster than the ordinary units multiply float32, so a GPU has
several flat roofs: float32, tf32 (float32 with ten bits of fraction), float16 and bfloat16, the last two added up in
float32. All of them are `cublasGemmEx`, since CuPy itself has no bfloat16. Times are those of CUDA events.

Source of the constants: `cudaDataType_t` in library_types.h and `cublasComputeType_t` in cublas_api.h, CUDA 12.
"""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from minifer.device import why_no_gpu

SIZE, REPEATS, READ_BYTES, LAUNCHES = 8192, 8, 4 << 30, 2000
REAL_32F, REAL_16F, REAL_16BF = 0, 2, 14
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
FORMATS = {
    "float32": (REAL_32F, COMPUTE_32F),
    "tf32": (REAL_32F, COMPUTE_32F_FAST_TF32),
    "float16": (REAL_16F, COMPUTE_32F),
    "bfloat16": (REAL_16BF, COMPUTE_32F),
}


def measure() -> dict[str, Any] | None:
    """`flops_per_s` by format, `read_bytes_per_s`, `copy_bytes_per_s` (bytes read plus written), `launch_s` and the
    `name` of the current GPU; None where there is none."""
    if why_no_gpu() is not None:
        return None
    cupy = importlib.import_module("cupy")
    free, _ = cupy.cuda.runtime.memGetInfo()
    numbers = min(READ_BYTES, free // 8) // 4
    x = cupy.full(numbers, 0.5, dtype=np.float32)
    y = cupy.empty_like(x)
    one = cupy.zeros(1, dtype=np.float32)
    read_s = _seconds(cupy, lambda: x.max())
    copy_s = _seconds(cupy, lambda: cupy.copyto(y, x))
    launch_s = _seconds(cupy, lambda: [one.fill(0) for _ in range(LAUNCHES)]) / LAUNCHES
    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    rates = {kind: _gemm_rate(cupy, *format_) for kind, format_ in FORMATS.items()}
    return {
        "name": name,
        "flops_per_s": rates,
        "read_bytes_per_s": x.nbytes / read_s,
        "copy_bytes_per_s": 2 * x.nbytes / copy_s,
        "launch_s": launch_s,
        "working_set_bytes": x.nbytes,
    }


def _seconds(cupy: Any, call: Callable[[], object]) -> float:
    """The shortest of several calls between two events; the first one only warms up."""
    call()
    best = float("inf")
    for _ in range(REPEATS):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        best = min(best, cupy.cuda.get_elapsed_time(start, stop) / 1e3)
    return best


def _gemm_rate(cupy: Any, kind: int, compute: int) -> float:
    """FLOP per second of a large square product in one format."""
    cublas, handle = cupy.cuda.cublas, cupy.cuda.get_cublas_handle()
    a = _numbers(cupy, kind)
    b, c = a.copy(), cupy.empty_like(a)
    alpha, beta = np.ones(1, dtype=np.float32), np.zeros(1, dtype=np.float32)
    n = SIZE

    def call() -> None:
        cublas.gemmEx(
            handle, cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, n, n, n, alpha.ctypes.data, a.data.ptr, kind, n,
            b.data.ptr, kind, n, beta.ctypes.data, c.data.ptr, kind, n, compute, -1,
        )  # fmt: skip

    return 2 * n**3 / _seconds(cupy, call)


def _numbers(cupy: Any, kind: int) -> Any:
    """A square of random numbers in a format: with zeros a GPU draws less power, and so runs faster than it could."""
    x = cupy.random.standard_normal(SIZE * SIZE, dtype=np.float32)
    if kind == REAL_16BF:
        return (x.view(np.uint32) >> 16).astype(np.uint16)  # the upper half of a float32 is a bfloat16
    return x.astype(np.float16) if kind == REAL_16F else x
