"""Planted faults: a kernel with one thing wrong, and whether the checks find it.

A check that never fails proves nothing. So there is a bank of mistakes that people make in kernels
(`tests/bugs/phase09/`): each is one change of the text, with a hint for whoever looks for it. Each has to be found, by
wrong numbers, by a fault, or by two orders of threads that disagree.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minifer.apps.testing.kernel_cpu import KernelFault
from minifer.apps.testing.kernel_run import changed_kernels, run_on_cpu
from minifer.apps.testing.kernel_sources import Build
from minifer.apps.testing.kernel_specs import SPECS, make_case
from minifer.errors import InvariantError, UsageError

BANK = Path(__file__).resolve().parents[3] / "tests" / "bugs" / "phase09"
SEEDS = (0, 1, 2, 3)


@dataclass(frozen=True)
class Mutant:
    """One planted fault: in `file`, `old` becomes `new`; the specs in `tasks` have to notice."""

    name: str
    file: str
    old: str
    new: str
    tasks: tuple[str, ...]
    hint: str

    def apply(self, files: Mapping[str, str]) -> dict[str, str]:
        """The files with the fault in them. Raises UsageError if the text isn't there exactly once."""
        count = files.get(self.file, "").count(self.old)
        if count != 1:
            raise UsageError(f"the fault {self.name} does not fit: its text stands in {self.file} {count} times")
        return {**files, self.file: files[self.file].replace(self.old, self.new)}


def mutants(folder: Path = BANK) -> dict[str, Mutant]:
    """The bank, by name. Raises UsageError where there is none, as in an installed package."""
    paths = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
    if not paths:
        raise UsageError(f"there is no bank of faults at {folder}: it is part of the repository, not of the package")
    return {path.stem: read_mutant(path) for path in paths}


def read_mutant(path: Path) -> Mutant:
    """One file of the bank: plain assignments, read without running them."""
    values = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = ast.literal_eval(node.value)
    file = values["FILE"].rpartition("/")[2]
    return Mutant(path.stem, file, values["OLD"], values["NEW"], tuple(values["TASKS"]), values["HINT"])


def complaints(
    name: str, build: Build, files: Mapping[str, str], *, seeds: Sequence[int] = SEEDS, quick: bool = False
) -> Iterator[str]:
    """What is wrong with the kernel of a spec in these files: nothing, or a line for each shape and order of threads.

    With `quick` only the first shape is tried.
    """
    shapes = SPECS[name].shapes[: 1 if quick else None]
    kernels = changed_kernels(make_case(name, build), files)
    for shape in shapes:
        for seed in seeds:
            where = f"{name} {dict(shape)}, order {seed}"
            try:
                outcomes, _ = run_on_cpu(make_case(name, build, shape), seed=seed, kernels=kernels)
            except (KernelFault, InvariantError) as error:
                yield f"{where}: {error}"
                continue
            yield from (f"{where}: {outcome}" for outcome in outcomes if not outcome.fine)


def caught(mutant: Mutant, files: Mapping[str, str], build: Build | None = None) -> str | None:
    """The first complaint about a mutant, or None if nobody noticed. The compiler's word counts too."""
    changed = mutant.apply(files)
    for task in mutant.tasks:
        for complaint in complaints(task, build or Build(), changed):
            return complaint
    return None
