"""Lab folders: stubs for a phase, the settings that let `pytest -m phase05` work in them, and a course as a whole."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from minifer.apps.labs.stubs import stub
from minifer.apps.labs.tasks import PACKAGE, ROOT, Task, tasks_of
from minifer.formats.atomic import atomic_file

MARK = ".minifer-lab"
NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.pyc", ".pytest_cache", "golden", "torture", "peers", "browser")

PYTEST_INI = """[pytest]
# `pytest -m phase05` in this folder runs the tests of phase 05 on your files.
addopts = {tests} --rootdir={root} --import-mode=importlib --strict-markers
pythonpath = {root} {root}/tests
filterwarnings =
    error::RuntimeWarning
"""

COURSE_README = """# minifer, phases {phases}

    python -m venv .venv && .venv/bin/pip install -e ".[test]"
    cd lab
    ../.venv/bin/minifer labs list
    ../.venv/bin/minifer labs run {first}

Write the functions in `lab/` that say NotImplementedError; their docstrings are the contract. `minifer labs hint {first}.1`
helps, `minifer labs run {first}.1` tests that task alone, `minifer labs grade {first}` counts. Hand in the folder `lab/`. Whatever you have not written yet is the reference's
(`minifer/`), which you may read when you are done with a task, and not before.
"""  # noqa: E501


def start(phase: int, folder: Path, *, overwrite: bool = False) -> list[tuple[str, str, list[Task]]]:
    """Write the stubs of a phase. A file that is there already is kept, unless `overwrite`.

    Returns `(what was done, file, its tasks)` for each.
    """
    done = []
    tasks = tasks_of([phase])
    for file in dict.fromkeys(task.file for task in tasks):
        mine = [task for task in tasks if task.file == file]
        path = folder / file
        if path.exists() and not overwrite:
            done.append(("kept", file, mine))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as out:
            out.write(stub(file, mine).encode())
        done.append(("wrote", file, mine))
    settle(folder, ROOT)
    return done


def settle(folder: Path, root: Path) -> None:
    """Mark a folder as a lab, and tell pytest where the tests are (relative to it if it lies inside the clone)."""
    where = os.path.relpath(root, folder) if folder.resolve().is_relative_to(root.resolve()) else str(root)
    (folder / MARK).write_text("Files in this folder take the place of minifer's own while you work here.\n", "utf-8")
    settings = PYTEST_INI.format(root=where, tests=f"{where}/tests")
    (folder / "pytest.ini").write_text(settings, encoding="utf-8")


def export(phases: Sequence[int], folder: Path) -> list[Task]:
    """A repository for a course: minifer, the tests of these phases, and a lab with their stubs. Needs no network."""
    tasks = tasks_of(phases)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(PACKAGE, folder / "minifer", ignore=NOT_COPIED, dirs_exist_ok=True)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=_other_tests(phases), dirs_exist_ok=True)
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copyfile(ROOT / name, folder / name)
    readme = COURSE_README.format(phases=", ".join(map(str, phases)), first=phases[0])
    (folder / "README.md").write_text(readme, encoding="utf-8")
    lab = folder / "lab"
    for phase in phases:
        start(phase, lab)
    settle(lab, folder)
    return tasks


def _other_tests(phases: Sequence[int]) -> Callable[[str, list[str]], set[str]]:
    """What of `tests/` is left out of a course: other phases, and the tests of the project itself."""
    wanted = {f"phase{phase:02}" for phase in phases}

    def ignore(folder: str, names: list[str]) -> set[str]:
        left_out = set(NOT_COPIED(folder, names)) - {"golden"}
        left_out |= {n for n in names if n.startswith("phase") and n[:7] not in wanted}
        if Path(folder) == ROOT / "tests":
            left_out |= {n for n in names if n.startswith("test_") or n in ("bugs", "apps")}
        return left_out

    return ignore
