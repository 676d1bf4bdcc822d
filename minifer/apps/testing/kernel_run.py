"""Run a case: on the CPU with threads in a chosen order, or on a device through CuPy or its strict stand-in."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minifer.apps.testing import kernel_case
from minifer.apps.testing.kernel_case import Case, Launch, Outcome, guarded, unharmed
from minifer.apps.testing.kernel_cpu import BarrierSite, CpuKernels, LaunchReport, compile_kernels
from minifer.apps.testing.kernel_sources import Build, assemble, compile_file, file_of
from minifer.ops.cuda_launch import kernel_source


@functools.lru_cache(maxsize=32)
def all_kernels(build: Build, *, sanitize: bool = False) -> CpuKernels:
    """Every kernel of a build in one library: the text that the GPU gets."""
    source = kernel_source(build.dtype, build.head_dim, build.group)
    return compile_kernels(source, sanitize=sanitize)


def changed_kernels(case: Case, files: Mapping[str, str]) -> dict[str, CpuKernels]:
    """For each kernel of the case the library of its own file, out of files that need not be ours."""
    names = {launch.kernel: file_of(launch.kernel, files) for launch in case.launches}
    return {kernel: compile_file(name or f"{kernel}.cu", case.build, files) for kernel, name in names.items()}


def run_on_cpu(
    case: Case,
    *,
    seed: int = 0,
    kernels: Mapping[str, CpuKernels] | None = None,
    drop: BarrierSite | None = None,
    guards: bool = True,
) -> tuple[list[Outcome], list[LaunchReport]]:
    """Run all launches of a case with one order of threads. `drop` leaves a barrier out; without `guards` arrays end
    where their memory ends, which is what a sanitizer wants to see."""

    def launcher(launch: Launch, args: Sequence[Any]) -> LaunchReport:
        library = kernels[launch.kernel] if kernels else all_kernels(case.build)
        return library.launch(launch.kernel, launch.grid, launch.block, args, seed=seed, drop=drop)

    place, fetch = (guarded, unharmed) if guards else (np.array, np.asarray)
    outcomes, reports = kernel_case.run(case, launcher, place, fetch)
    return outcomes, reports


def run_on_device(case: Case, xp: Any, files: Mapping[str, str] | None = None) -> list[Outcome]:
    """Run a case through `xp`, which is CuPy or behaves like it. Without `files`, all kernels are one module."""
    modules = {launch.kernel: _module(launch.kernel, case.build, xp, files) for launch in case.launches}

    def launcher(launch: Launch, args: Sequence[Any]) -> None:
        function = modules[launch.kernel].get_function(launch.kernel)
        function(launch.grid, launch.block, tuple(_as_argument(a) for a in args))

    outcomes, _ = kernel_case.run(case, launcher, xp.asarray, lambda array: array.get())
    return outcomes


def _module(kernel: str, build: Build, xp: Any, files: Mapping[str, str] | None) -> Any:
    if files is None:
        code = kernel_source(build.dtype, build.head_dim, build.group)
        return xp.RawModule(code=code, options=("-std=c++17",))
    code = assemble(file_of(kernel, files) or f"{kernel}.cu", files)
    return xp.RawModule(code=code, options=("-std=c++17", *build.options))


def _as_argument(value: Any) -> Any:
    """CuPy passes a Python float as a double and an int as 64 bits: say what the kernels take."""
    if isinstance(value, float):
        return np.float32(value)
    return np.int32(value) if isinstance(value, int) else value
