"""Grading: tests in child processes, on the student's files, and on the reference's where the student's are broken.

First all tasks of a phase share one child, with every file of the student's that is written and can be parsed. Most
submissions pass, and that is all. Otherwise each task of the phase is graded again, in a child of its own: there only
*its* file is the student's and every other one comes from the reference, so that a broken file costs nothing but its
own tasks; the report names the files that were replaced, and why. The tests get a seed that the student has not seen.
Points are whole numbers, split over a task's tests.

How a child is run stands in `runs`. This process never runs a line of the student's.
"""

import hashlib
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minifer.apps.labs.look import complaint
from minifer.apps.labs.runs import LIMIT_S, Graded, Run, Shared, run_all
from minifer.apps.labs.tasks import Task, all_tasks


@dataclass
class Grades:
    """All tasks of one submission, whose code it was, and with which seed it was graded.

    `replaced` says which of the student's files the reference stood in for while *other* tasks were graded, and why.
    """

    student: str
    seed: int
    tasks: list[Graded]
    hashes: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)

    @property
    def score(self) -> int:
        """Points reached."""
        return sum(graded.score for graded in self.tasks)

    @property
    def max_score(self) -> int:
        """Points there were."""
        return sum(graded.task.points for graded in self.tasks)


def grade(folder: Path, tasks: Sequence[Task], *, seed: int | None = None, limit_s: float = LIMIT_S) -> Grades:
    """Grade the files in `folder` on `tasks`. `seed` None draws a new one, which the report then names."""
    seed = secrets.randbelow(2**31) if seed is None else seed
    texts = _complaints(folder)
    with tempfile.TemporaryDirectory(prefix="minifer-grade-") as work:
        together = _in_one_child(folder, tasks, texts, seed, limit_s, Path(work))
        done = {graded.task.id: graded for shared in together for graded in shared.passed()}
        alone = [Run(folder, task, seed, limit_s, Path(work) / task.id) for task in tasks if task.id not in done]
        run_all(alone)
    graded = [*done.values(), *(run.result for run in alone)]
    graded.sort(key=lambda one: tasks.index(one.task))
    files = sorted({task.file for task in tasks})
    hashes = {f: hashlib.sha256((folder / f).read_bytes()).hexdigest()[:12] for f in files if (folder / f).is_file()}
    return Grades(folder.resolve().name, seed, graded, hashes, _replaced(graded, texts, folder))


def _complaints(folder: Path) -> dict[str, str]:
    """Files of tasks that cannot be run, from their texts alone, and why."""
    found: dict[str, str] = {}
    for task in all_tasks():
        mine = [t for t in all_tasks() if t.file == task.file]
        if task.file not in found and (said := complaint(folder / task.file, task, mine)):
            found[task.file] = said
    return found


def _in_one_child(
    folder: Path, tasks: Sequence[Task], texts: Mapping[str, str], seed: int, limit_s: float, work: Path
) -> list["Shared"]:
    """Run each phase that has several tasks and no complaint in one child."""
    beside = work / "student"
    for file in {task.file for task in all_tasks()} - texts.keys():
        (beside / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / file, beside / file)
    found = []
    for phase in dict.fromkeys(task.phase for task in tasks):
        mine = [task for task in tasks if task.phase == phase]
        if len(mine) > 1 and not any(task.file in texts or task.file.endswith(".cu") for task in mine):
            found.append(Shared(folder, mine, seed, limit_s, work / f"phase{phase}", beside))
    run_all(found)
    return found


def _replaced(graded: Sequence[Graded], texts: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The student's files that were not used for other tasks, and why."""
    here = {file: why for file, why in texts.items() if (folder / file).is_file()}
    found = {
        file: why for file, why in here.items() if not why.endswith("is not written yet")
    }  # that goes without saying
    for one in graded:
        if one.score < one.task.points:
            found.setdefault(one.task.file, f"task {one.task.id} fails")
    return found
