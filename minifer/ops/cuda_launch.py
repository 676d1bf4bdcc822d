"""Kernels from their source files to a checked call.

CuPy's RawKernel checks nothing. A Python float arrives as a double where the kernel reads a float, a view passes the
address of its first element and its strides are forgotten, an array too short is read past its end; all of it runs, and
the answer is wrong. So every launch here goes through a wrapper that has parsed the kernel's own signature: the number
of arguments, the type of each, that arrays are contiguous, on the device and not empty where an address is needed.

`kernel_source` puts the files of `kernels/` together for one number type and one shape of head, as the one text that is
compiled: by NVRTC through CuPy, or by g++ for a look without a GPU.

What this file does not do: check that an array is long enough. The kernel's sizes are plain integers whose meaning only
the caller knows; `cuda.py` allocates every buffer for the sizes it passes.
"""

import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minifer.errors import DeviceError, InvariantError, UnsupportedError, UsageError

KERNELS = Path(__file__).parent / "kernels"

LARGEST_HEAD, LARGEST_GROUP = 128, 16
"""What the kernels' shared memory and registers hold."""

NO_HEADERS = "CUDA's headers are missing: install the CUDA toolkit, or pip install nvidia-cuda-runtime"
"""CuPy's wheels come without them; it looks in both places."""

DTYPES = {"float16": "ACT_FLOAT16", "bfloat16": "ACT_BFLOAT16", "float32": "ACT_FLOAT32"}
"""The kernels' number types, and the constant that selects each."""


def act_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a number type. Raises UsageError for an unknown name, DeviceError without ml_dtypes.

    >>> act_dtype("float16")
    dtype('float16')
    """
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name!r}: use one of {', '.join(DTYPES)}")
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise DeviceError("bfloat16 needs the package ml_dtypes: install it, or use --dtype float16") from error
    return np.dtype(ml_dtypes.bfloat16)


@cache
def kernel_source(dtype: str, head_dim: int, group: int) -> str:
    """One CUDA C text with all kernels: constants, the two headers, then every .cu file in order of name.

    `group` is the number of query heads per kv head. `#line` marks let a compiler name the file a reader knows. Raises
    UsageError for an unknown dtype and UnsupportedError for a head that does not fit.

    >>> kernel_source("float16", 64, 3).splitlines()[:3]
    ['#define ACT_FLOAT16', '#define HEAD_DIM 64', '#define GROUP 3']
    """
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}: use one of {', '.join(DTYPES)}")
    if head_dim > LARGEST_HEAD or group > LARGEST_GROUP:
        raise UnsupportedError(
            f"the GPU kernels have room for heads of {LARGEST_HEAD} numbers and groups of {LARGEST_GROUP} query heads: "
            f"this model has heads of {head_dim} in groups of {group}; use --device cpu"
        )
    parts = [f"#define {DTYPES[dtype]}", f"#define HEAD_DIM {head_dim}", f"#define GROUP {group}"]
    for path in kernel_files():
        text = re.sub(r'#include "[\w.]+"|#pragma once', "", path.read_text(encoding="utf-8"))
        parts += [f'#line 1 "{path.name}"', text]
    return "\n".join(parts)


def kernel_files() -> list[Path]:
    """The headers, in the order in which they need each other, then the kernels; in a lab the student's come first."""
    ours = [KERNELS / "common.cuh", KERNELS / "next_token.cuh", *sorted(KERNELS.glob("*.cu"))]
    lab = Path(os.environ.get("MINIFER_LAB", "off")) / "ops" / "kernels"
    return [lab / path.name if (lab / path.name).is_file() else path for path in ours]


class Parameter(NamedTuple):
    """One parameter of a kernel: `type` as in C without `const` and `*`; whether it is an address, and read only."""

    name: str
    type: str
    is_pointer: bool
    is_const: bool


_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)', re.S)
_PARAMETER = re.compile(r"(const\s+)?([\w\s]+?)\s*(\*)?\s*(\w+)")


def signatures(source: str) -> dict[str, tuple[Parameter, ...]]:
    """The parameters of every kernel in a source.

    >>> signatures('extern "C" __global__ void twice(const float* x, float* y, int n) {')["twice"][1:]
    (Parameter(name='y', type='float', is_pointer=True, is_const=False),
     Parameter(name='n', type='int', is_pointer=False, is_const=False))
    """
    found = {}
    for name, inside in _KERNEL.findall(source):
        matches = [_PARAMETER.fullmatch(" ".join(text.split())) for text in inside.split(",")]
        found[name] = tuple(Parameter(m[4], m[2].strip(), bool(m[3]), bool(m[1])) for m in matches if m)
    return found


_TYPES = {"float": "float32", "double": "float64", "int": "int32", "unsigned long long": "uint64"}


class Kernels:
    """The compiled kernels of one model, and the only way in which the room launches them.

    `launches` counts them, so that a test can hold the number against what a step is allowed.
    """

    def __init__(self, xp: Any, dtype: str, head_dim: int, group: int) -> None:
        """Compile everything at once: a kernel that does not compile is an error now and not in the middle of a step.

        Raises DeviceError with the compiler's first complaint.
        """
        source = kernel_source(dtype, head_dim, group)
        module = xp.RawModule(code=source, options=("-std=c++17",))
        try:
            module.compile()
        except Exception as error:  # CuPy's CompileException, which cannot be named without CuPy
            if isinstance(error, DeviceError):
                raise
            raise DeviceError(f"the GPU kernels do not compile for {dtype}: {_first_complaint(error)}") from error
        types: dict[str, Any] = {**_TYPES, "act_t": act_dtype(dtype)}
        self._array = xp.ndarray
        self._kernels = {
            name: (module.get_function(name), tuple(_checker(name, p, np.dtype(types[p.type])) for p in parameters))
            for name, parameters in signatures(source).items()
        }
        self.launches = 0

    def __call__(self, name: str, grid: tuple[int, ...], threads: int, *args: Any) -> None:
        """Launch `name` over a grid of blocks of `threads` threads on the current stream.

        `args` are device arrays, None for a null pointer, and Python numbers. Raises InvariantError for what does not
        fit the kernel's signature: a bug of the caller.
        """
        function, checkers = self._kernels[name]
        if len(args) != len(checkers):
            raise InvariantError(f"{name} takes {len(checkers)} arguments, not {len(args)}")
        checked = tuple([check(value, self._array) for check, value in zip(checkers, args, strict=True)])
        self.launches += 1
        function(grid, (threads,), checked)


def _checker(kernel: str, parameter: Parameter, dtype: np.dtype) -> Callable[[Any, Any], Any]:
    """What turns one Python value into what the kernel may be given, or raises."""
    what = f"{kernel}: {parameter.name}"

    def number(value: Any, array: Any) -> Any:
        if isinstance(value, array) or not np.isscalar(value):
            raise InvariantError(f"{what} is a number, not {type(value).__name__}")
        return dtype.type(value)

    def address(value: Any, array: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, array):
            raise InvariantError(f"{what} is an array on the device, not {type(value).__name__}")
        if value.dtype != dtype or not value.flags.c_contiguous or not value.size:
            raise InvariantError(
                f"{what} is a contiguous {dtype} array, not {value.dtype}, shape {value.shape}, strides {value.strides}"
            )
        return value

    return address if parameter.is_pointer else number


def _first_complaint(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = next((line for line in lines if "error" in line), lines[0] if lines else type(error).__name__)
    return f"{found}; {NO_HEADERS}" if "cuda_fp16.h" in found or "cuda_bf16.h" in found else found
