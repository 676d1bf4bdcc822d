"""CUDA C on a CPU: a kernel's source goes through g++ with a header that turns threads into fibers, and is launched.

    kernels = compile_kernels(source)
    report = kernels.launch("rms_norm", (3,), (256,), (x, gain, y, 576, 1e-5), seed=3)

The source stays as it is, line for line; `cuda_on_cpu.h` defines what CUDA C has and C++ lacks. Three things that no
macro can do are rewritten in the text: `#include` lines of CUDA's own headers go, `extern __shared__ T name[];` becomes
a pointer, and every other `__shared__` declaration is followed by a line that poisons the array.

Libraries are kept in the cache folder under a hash of all that went into them, so a kernel is compiled once.

Not here: which kernels there are and what they compute (`kernel_specs.py`), a GPU.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minifer import hub
from minifer.errors import DeviceError, UsageError
from minifer.formats.atomic import atomic_path

HEADER = Path(__file__).with_name("cuda_on_cpu.h")

FLAGS = (
    "-std=c++17", "-shared", "-fPIC", "-w", "-march=native", "-ffp-contract=fast",
    "-fno-strict-aliasing",  # kernels read 16 bytes at once through another type, as nvcc allows
    "-fno-gnu-unique",       # or the shared arrays of two libraries in one process would be the same
    "-U_FORTIFY_SOURCE",     # it takes a jump to another stack for an attack
)  # fmt: skip
FAST = ("-O1",)
SANITIZE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined")

MOST_LIBRARIES = 200
"""That the cache folder keeps."""

GRID_LIMITS = (2**31 - 1, 65535, 65535)
SHARED_LIMIT_BYTES = 227 * 1024
"""Shared memory of a block on compute capability 9.0, opted into; 48 KiB without asking."""

KERNEL = re.compile(
    r"\b__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)\s*\{"
)
DYNAMIC_SHARED = re.compile(r"\bextern\s+__shared__\s+([\w\s()]+?)\s*\b(\w+)\s*\[\s*\]\s*;")
STATIC_SHARED = re.compile(r"(?<!\w)__shared__\s+([^;=(]*?(?:__align__\s*\(\s*\d+\s*\)[^;=(]*)?);")
SCALARS = {"f4": np.float32, "f8": np.float64, "i1": np.int8, "i2": np.int16, "i4": np.int32, "i8": np.int64,
           "u1": np.uint8, "u2": np.uint16, "u4": np.uint32, "u8": np.uint64}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel. `code` is a letter and bytes: f4, h2 (float16), b2 (bfloat16), i4, u8 ..."""

    name: str
    code: str
    is_pointer: bool
    is_output: bool
    """A pointer to what is not const: the kernel may write there."""


@dataclass(frozen=True)
class BarrierSite:
    """A place with a `__syncthreads()` that a launch came by, and how many threads passed it, in all blocks."""

    file: str
    line: int
    threads: int


@dataclass(frozen=True)
class LaunchReport:
    """What a launch did: blocks, threads of a block, its barriers in the order of the source, shuffles and the like."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    seed: int
    shared_bytes: int
    warp_operations: int
    barriers: tuple[BarrierSite, ...]


class KernelFault(DeviceError):
    """A kernel did what it must not: a barrier that some threads never reach, a block that is too large."""


def why_no_compiler() -> str | None:
    """None where kernels can be compiled for the CPU; otherwise the reason in one sentence."""
    if platform.system() != "Linux":
        return f"running kernels on the CPU needs Linux (on Windows: WSL), and this is {platform.system()}"
    if shutil.which(compiler()) is None:
        return f"running kernels on the CPU needs a C++ compiler, and there is no {compiler()!r} (install g++)"
    return None


def compiler() -> str:
    """The C++ compiler's name: the environment variable CXX, or g++."""
    return os.environ.get("CXX") or "g++"


def compile_kernels(
    source: str, *, name: str = "kernels.cu", options: Sequence[str] = (), sanitize: bool = False
) -> "CpuKernels":
    """The kernels of a CUDA C source, ready to be launched on the CPU. The second time they come from the cache.

    `name` is the file that compile errors and barrier reports speak of; a `#line` in the source overrides it. Of
    `options` (CuPy's and NVRTC's) only `-D...` and `-U...` count. Kernels have C linkage: `extern "C" __global__ void`.
    With `sanitize` the address and undefined behaviour sanitizers watch; their library must be loaded first
    (`tests/phase09_gpu/sanitized.py`).
    Raises DeviceError where there is no compiler, UsageError with the compiler's first complaint for a faulty source.

    >>> source = 'extern "C" __global__ void twice(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2.0f; }'
    >>> x = np.arange(3, dtype=np.float32)
    >>> kernels = compile_kernels(source)
    >>> kernels.launch("twice", (1,), (32,), (x, 3)).block
    (32, 1, 1)
    >>> x.tolist()
    [0.0, 2.0, 4.0]
    """
    if reason := why_no_compiler():
        raise DeviceError(reason)
    names = kernel_names(source)
    if not names:
        raise UsageError(f'{name} has no kernel: none of the form extern "C" __global__ void name(...) {{')
    defines = [option for option in options if option.startswith(("-D", "-U"))]
    flags = (*FLAGS, *(SANITIZE if sanitize else FAST), *defines)
    text = _translated(source, name, names)
    return CpuKernels(_library(text, flags), source, names)


def kernel_names(source: str) -> list[str]:
    """The kernels that a source defines, in order.

    >>> kernel_names('extern "C" __global__ void __launch_bounds__(128) f(int n) { } // __global__ void g() {')
    ['f']
    """
    return [match["name"] for match in KERNEL.finditer(without_comments(source))]


def without_comments(source: str) -> str:
    """The source with blanks in place of its comments, so that every character keeps its place.

    >>> without_comments("a /* b */ c // d")
    'a           c     '
    """
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), source, flags=re.DOTALL)


class CpuKernels:
    """A compiled source. One launch at a time: the fibers are the library's own."""

    def __init__(self, path: Path, source: str, names: Sequence[str]) -> None:
        """Load the library at `path` and ask it for the types of its kernels' parameters."""
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.emu_report.restype = ctypes.c_char_p
        self._lock = threading.Lock()
        words = {m["name"]: m["parameters"] for m in KERNEL.finditer(without_comments(source))}
        self.signatures = {name: self._signature(name, words[name]) for name in names}

    def _signature(self, name: str, words: str) -> tuple[Parameter, ...]:
        describe = getattr(self._library, f"emu_describe_{name}")
        describe.restype = ctypes.c_char_p
        codes = describe().decode().split()
        names = [re.findall(r"\w+", word)[-1] for word in words.split(",") if word.strip()]
        return tuple(
            Parameter(n, code.lstrip("*&"), is_pointer=code[0] in "*&", is_output=code[0] == "*")
            for n, code in zip(names, codes, strict=True)
        )

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        *,
        shared_bytes: int = 0,
        seed: int = 0,
        drop: BarrierSite | None = None,
    ) -> LaunchReport:
        """Run a kernel over a grid of blocks and wait for it; arrays are changed in place.

        `args` are C-contiguous NumPy arrays of the exact type (uint16 is taken for bfloat16), None for a null pointer,
        and numbers. `seed` 0 runs threads in their natural order, any other shuffles them after every barrier.
        `drop` names a barrier, out of an earlier launch's report, that nobody waits at this time.
        Raises UsageError for arguments that do not fit, KernelFault for what the kernel did wrong.
        """
        sizes = (*_three(name, "grid", grid, GRID_LIMITS), *_three(name, "block", block, (1024, 1024, 64)))
        if not 0 <= shared_bytes <= SHARED_LIMIT_BYTES:
            raise UsageError(f"{name}: {shared_bytes:,} bytes of shared memory; a block has {SHARED_LIMIT_BYTES:,}")
        kept = self._arguments(name, args)
        pointers = (ctypes.c_void_p * len(kept))(*[ctypes.addressof(one) for one in kept])
        function = getattr(self._library, f"emu_launch_{name}")
        function.restype = ctypes.c_char_p
        grid_c, block_c = (ctypes.c_uint * 3)(*sizes[:3]), (ctypes.c_uint * 3)(*sizes[3:])
        with self._lock:
            self._library.emu_drop_barrier(drop.file.encode() if drop else b"", drop.line if drop else 0)
            complaint = function(grid_c, block_c, ctypes.c_size_t(shared_bytes), ctypes.c_uint(seed), pointers)
            if complaint:
                raise KernelFault(f"{name}: {complaint.decode()}")
            return _report(self._library.emu_report().decode(), sizes, seed, shared_bytes)

    def _arguments(self, name: str, args: Sequence[Any]) -> list[Any]:
        if name not in self.signatures:
            raise UsageError(f"there is no kernel {name!r} here: {', '.join(self.signatures)}")
        signature = self.signatures[name]
        if len(args) != len(signature):
            raise UsageError(f"{name} takes {len(signature)} arguments, not {len(args)}")
        return [_argument(name, p, value) for p, value in zip(signature, args, strict=True)]


def _argument(kernel: str, parameter: Parameter, value: Any) -> Any:
    """A ctypes object whose address `launch` passes on. Raises UsageError for a value of another kind."""
    what = f"{kernel}: {parameter.name}"
    if not parameter.is_pointer:
        if parameter.code not in SCALARS or not np.isscalar(value):
            raise UsageError(f"{what} is a number ({parameter.code}), not {type(value).__name__}")
        return (ctypes.c_char * 8).from_buffer_copy(np.array(value, SCALARS[parameter.code]).tobytes().ljust(8, b"\0"))
    if value is None:
        return ctypes.c_void_p(0)
    if not isinstance(value, np.ndarray):
        raise UsageError(f"{what} is an array, not {type(value).__name__}")
    if not value.flags.c_contiguous:
        raise UsageError(f"{what} is a view with gaps {value.strides}; a kernel sees only where it begins")
    if not _same_type(parameter.code, value.dtype):
        raise UsageError(f"{what} has type {value.dtype}, and the kernel reads {parameter.code}")
    if parameter.is_output and not value.flags.writeable:
        raise UsageError(f"{what} may be written to by the kernel, and the array is read-only")
    return ctypes.c_void_p(value.ctypes.data)


def _same_type(code: str, dtype: np.dtype[Any]) -> bool:
    if code[0] == "r":  # a struct, like float4: the bytes are the kernel's business
        return True
    if code == "b2":
        return dtype.name == "bfloat16" or dtype == np.uint16
    if code == "u1" and dtype == np.bool_:
        return True
    return dtype == np.dtype(np.float16 if code == "h2" else SCALARS[code])


def _three(kernel: str, what: str, sizes: Sequence[int], limits: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*(int(size) for size in sizes), 1, 1, 1)[:3]
    if not 1 <= len(sizes) <= 3 or any(not 1 <= n <= most for n, most in zip((x, y, z), limits, strict=True)):
        raise UsageError(f"{kernel}: a {what} of {tuple(sizes)}; each size is between 1 and {tuple(limits)}")
    return x, y, z


def _report(text: str, sizes: tuple[int, ...], seed: int, shared_bytes: int) -> LaunchReport:
    first, *lines = text.splitlines()
    words = [line.split(" ", 2) for line in lines]
    sites = tuple(BarrierSite(file, int(line), int(threads)) for line, threads, file in words)
    x, y, z = sizes[3:]
    return LaunchReport((sizes[0], sizes[1], sizes[2]), (x, y, z), seed, shared_bytes, int(first), sites)


# --- from a source to a library ---------------------------------------------------------------------------------------


def _translated(source: str, name: str, names: Sequence[str]) -> str:
    """The source as C++, every line where it was."""
    text = re.sub(r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:cuda|cooperative)\w*\.h[>\"]", "", source, flags=re.MULTILINE)
    text = DYNAMIC_SHARED.sub(r"\1* \2 = reinterpret_cast<\1*>(emu::dynamic_shared.data());", text)
    text = STATIC_SHARED.sub(_poisoned, text)
    exports = "".join(f"\nEMU_EXPORT({kernel})" for kernel in names)
    return f'#include "{HEADER.name}"\n#line 1 "{name}"\n{text}\n#line 1 "exports"{exports}\n'


def _poisoned(match: re.Match[str]) -> str:
    """`__shared__ float a[2], b;` and, on the same line, a poison for `a` and one for `b`."""
    declared = re.sub(r"__align__\s*\(\s*\d+\s*\)", " ", match[1])
    names = [re.findall(r"\w+", re.sub(r"\[.*", "", one, flags=re.DOTALL))[-1] for one in _split(declared)]
    return f"__shared__ {match[1]};" + "".join(f" EMU_POISON({n})" for n in names)


def _split(text: str) -> list[str]:
    """Parts between the commas that stand in no bracket."""
    return [part for part in re.split(r",(?![^\[<(]*[\]>)])", text) if part.strip()]


def _library(text: str, flags: Sequence[str]) -> Path:
    """The compiled text, from the cache or made now."""
    key = hashlib.sha256("\0".join((text, HEADER.read_text(encoding="utf-8"), *flags, *_machine())).encode())
    path = hub.cache_home() / "kernels" / f"{key.hexdigest()[:24]}.so"
    if not path.exists():
        with atomic_path(path) as temporary:
            command = [compiler(), *flags, f"-I{HEADER.parent}", "-x", "c++", "-", "-o", str(temporary)]
            done = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode:
                raise UsageError(f"the C++ compiler refuses the kernel: {_first_complaint(done.stderr)}")
        with contextlib.suppress(OSError):  # another process may be at it as well
            _prune(path.parent)
    return path


def _first_complaint(text: str) -> str:
    errors = [line for line in text.splitlines() if "error:" in line]
    return errors[0] if errors else " ".join(text.split())[:300] or "no reason given"


@functools.cache
def _machine() -> tuple[str, ...]:
    """What the compiled code depends on beside its source: compiler and processor (`-march=native`)."""
    version = subprocess.run([compiler(), "-dumpfullversion", "-dumpmachine"], capture_output=True, check=False).stdout
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(errors="replace").splitlines() if cpu.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return compiler(), version.decode(errors="replace"), platform.machine(), features


def _prune(folder: Path) -> None:
    """Remove the oldest libraries: every version of a kernel that somebody is working on leaves one behind."""
    by_age = sorted(folder.glob("*.so"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in by_age[MOST_LIBRARIES:]:
        path.unlink(missing_ok=True)
