"""Run every kernel under the address and undefined-behaviour sanitizers; started by `test_kernels_sanitized.py`.

The sanitizers' library has to be in the process before Python is, so this is a script with LD_PRELOAD set. It prints a
line for each build; what a sanitizer finds it prints itself, with the kernel's file and line, and ends the process.
"""

import sys

from minifer.apps.testing.kernel_cpu import compile_kernels
from minifer.apps.testing.kernel_mutants import mutants
from minifer.apps.testing.kernel_run import run_on_cpu
from minifer.apps.testing.kernel_sources import Build, assemble, file_of, kernel_files
from minifer.apps.testing.kernel_specs import SPECS, make_case

HEADS = {"float16": ((64, 3), (80, 1)), "float32": ((64, 3),)}
"""bfloat16 lies in memory as float16 does."""
LIBRARIES = {}


def library(file, build, files):
    """The kernels of one file, sanitized, compiled once."""
    key = (file, build, files[file])
    if key not in LIBRARIES:
        LIBRARIES[key] = compile_kernels(assemble(file, files), name=file, options=build.options, sanitize=True)
    return LIBRARIES[key]


def run(name, build, files):
    """All shapes of a spec in two orders of threads."""
    for shape in SPECS[name].shapes:
        for seed in (0, 1):
            case = make_case(name, build, shape)
            kernels = {x.kernel: library(file_of(x.kernel, files), build, files) for x in case.launches}
            run_on_cpu(case, seed=seed, kernels=kernels, guards=False)


def main(words):
    """`DTYPE` runs everything in it; `mutant NAME` runs what has to notice a planted fault."""
    files = kernel_files()
    if words[0] == "mutant":
        mutant = mutants()[words[1]]
        for task in mutant.tasks:
            run(task, Build(), mutant.apply(files))
        return
    for head in HEADS[words[0]]:
        build = Build(words[0], *head)
        for name, spec in SPECS.items():
            if spec.by_head or head == (64, 3):
                run(name, build, files)
        sys.stdout.write(f"{build}: fine\n")


if __name__ == "__main__":
    main(sys.argv[1:])
