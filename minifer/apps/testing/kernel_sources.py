"""The kernels' files, put together for one compiler run: one number type, one shape of head, one file to look at.

The GPU gets all kernels as one text (`ops/cuda_launch.py`). Here one file at a time is compiled, with what it includes,
which is quicker, and lets a changed file take the place of ours: a reader's own, a student's, or a mutant.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minifer.apps.testing.kernel_cpu import CpuKernels, compile_kernels, kernel_names
from minifer.errors import UsageError
from minifer.ops import cuda_launch
from minifer.ops.cuda_launch import DTYPES


@dataclass(frozen=True)
class Build:
    """What is fixed when kernels are compiled: number type, numbers in a head, query heads per kv head."""

    dtype: str = "float16"
    head_dim: int = 64
    group: int = 3

    @property
    def options(self) -> tuple[str, ...]:
        """As compiler options.

        >>> Build().options
        ('-DACT_FLOAT16', '-DHEAD_DIM=64', '-DGROUP=3')
        """
        return (f"-D{DTYPES[self.dtype]}", f"-DHEAD_DIM={self.head_dim}", f"-DGROUP={self.group}")

    def __str__(self) -> str:
        return f"{self.dtype}, heads of {self.head_dim} in groups of {self.group}"


def kernel_files() -> dict[str, str]:
    """Name and text of every file of the kernels, headers included; in a lab the student's where there is one."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(cuda_launch.kernel_files())}


def with_source(path: Path, files: Mapping[str, str]) -> dict[str, str]:
    """The files with the one at `path` in place of ours of the same name (or, failing that, of the same kernels).

    Raises UsageError if none of the kernels in it is known here.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if path.name in files:
        return {**files, path.name: text}
    for name in kernel_names(text):
        if known := file_of(name, files):
            return {**files, known: text}
    raise UsageError(f"{path} has none of the kernels that are known here: {', '.join(kernel_to_file(files))}")


def kernel_to_file(files: Mapping[str, str]) -> dict[str, str]:
    """Which file each kernel stands in."""
    return {kernel: name for name, text in files.items() for kernel in kernel_names(text)}


def file_of(kernel: str, files: Mapping[str, str]) -> str | None:
    """The file that a kernel stands in, or None."""
    return kernel_to_file(files).get(kernel)


def assemble(name: str, files: Mapping[str, str]) -> str:
    """One file with the headers that it includes in their place; `#line` marks keep the reader's line numbers.

    >>> print(assemble("a.cu", {"a.cu": '#include "b.cuh"\\nint a;', "b.cuh": "#pragma once\\nint b;"}))
    #line 1 "a.cu"
    #line 1 "b.cuh"
    <BLANKLINE>
    int b;
    #line 2 "a.cu"
    int a;
    """
    return _expanded(name, files, set())


def _expanded(name: str, files: Mapping[str, str], seen: set[str]) -> str:
    seen.add(name)
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate(files[name].splitlines(), 1):
        include = re.match(r'\s*#\s*include\s+"([\w.]+)"', line)
        if include is None:
            lines.append("" if re.match(r"\s*#\s*pragma\s+once", line) else line)
            continue
        if include[1] not in files:
            raise UsageError(f"{name}, line {number}: there is no {include[1]} to include")
        if include[1] not in seen:
            lines.append(_expanded(include[1], files, seen))
        lines.append(f'#line {number + 1} "{name}"')
    return "\n".join(lines)


def compile_file(name: str, build: Build, files: Mapping[str, str], *, sanitize: bool = False) -> CpuKernels:
    """The kernels of one file, for the CPU. Raises what `compile_kernels` raises."""
    return compile_kernels(assemble(name, files), name=name, options=build.options, sanitize=sanitize)
