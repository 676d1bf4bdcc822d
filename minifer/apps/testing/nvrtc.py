"""NVIDIA's run-time compiler without a GPU: does every kernel compile, and how many registers does it take?

NVRTC needs neither GPU nor driver, only two wheels from the package index (`pip install 'minifer[nvrtc]'`, 60 MB): the
library, and CUDA's headers. It is the compiler that CuPy calls, stricter than nvcc and much stricter than g++: there is
no `<math.h>`, hence no `INFINITY`. With `--ptxas-options=-v` it also tells what each kernel takes of a multiprocessor:

* registers: 65,536 are shared by all threads of a multiprocessor, so 64 a thread leave room for 1,024 threads at once;
* spills: what didn't fit into registers and goes to memory instead, in the midst of the inner loop;
* static shared memory, of which a block may have 48 KiB.

Not here: running anything.
"""

import ctypes
import functools
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minifer.errors import DeviceError, UsageError

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
"""A100, H100 and H200, B200."""

_FUNCTION = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Resources:
    """What one kernel takes: registers of each thread, and bytes."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


def why_no_nvrtc() -> str | None:
    """None where NVRTC and the headers are installed; otherwise the reason in one sentence."""
    if _library_path() is None:
        return "NVRTC is not installed (pip install 'minifer[nvrtc]')"
    if _include_path() is None:
        return "NVRTC is installed without CUDA's headers (pip install 'minifer[nvrtc]')"
    return None


def compile_for(
    source: str, architecture: str, *, options: Sequence[str] = (), name: str = "kernels.cu"
) -> dict[str, Resources]:
    """Compile a source for `sm_90` or the like, and say what each kernel takes.

    Raises DeviceError where NVRTC is not installed, UsageError with the compiler's first complaint.
    """
    if reason := why_no_nvrtc():
        raise DeviceError(reason)
    library, program = _library(), ctypes.c_void_p()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None))
    try:
        words = [
            f"--gpu-architecture={architecture}", "-std=c++17", "-ftz=true", "--device-as-default-execution-space",
            f"-I{_include_path()}", "--ptxas-options=-v", *options,
        ]  # fmt: skip
        array = (ctypes.c_char_p * len(words))(*[word.encode() for word in words])
        status = library.nvrtcCompileProgram(program, len(words), array)
        log = _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        if status:
            raise UsageError(f"NVRTC refuses {name} for {architecture}: {_first_complaint(log)}")
        return resources(log)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def resources(log: str) -> dict[str, Resources]:
    """Read what ptxas reports.

    >>> resources('''ptxas info    : Compiling entry function 'f' for 'sm_90'
    ... ptxas         .     8 bytes stack frame, 4 bytes spill stores, 6 bytes spill loads
    ... ptxas info    : Used 40 registers, used 1 barriers, 1056 bytes smem''')
    {'f': Resources(registers=40, spill_bytes=10, stack_bytes=8, shared_bytes=1056)}
    """
    found = {}
    for match in _FUNCTION.finditer(log):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        spills = int(match["stores"]) + int(match["loads"])
        found[match["name"]] = Resources(
            int(match["registers"]), spills, int(match["stack"]), int(shared[1]) if shared else 0
        )
    return found


def _first_complaint(log: str) -> str:
    return next((line for line in log.splitlines() if "error" in line), log.strip()[:300])


def _text(get_size: "ctypes._NamedFuncPointer", get: "ctypes._NamedFuncPointer", program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    _check(get_size(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(max(1, size.value))
    _check(get(program, buffer))
    return buffer.value.decode(errors="replace")


def _check(status: int) -> None:
    if status:
        raise DeviceError(f"NVRTC failed: {_library().nvrtcGetErrorString(status).decode()}")


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_library_path()))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _library_path() -> Path | None:
    return _in_wheels("cu1*/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*")


def _include_path() -> Path | None:
    header = _in_wheels("cu1*/include/cuda_fp16.h", "cuda_runtime/include/cuda_fp16.h")
    return header.parent if header else None


def _in_wheels(*patterns: str) -> Path | None:
    """The first file of NVIDIA's wheels that matches: they share the package `nvidia`, laid out anew with CUDA 13."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for pattern in patterns:
            for path in sorted(Path(root).glob(pattern)):
                return path
    return None
