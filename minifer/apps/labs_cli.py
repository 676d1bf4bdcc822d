"""`minifer labs`: rebuild minifer a phase at a time. Stubs, tests, hints, grades, and what a teacher needs.

This command runs no line that a student wrote: files are read as text, tests run in child processes.
"""

import argparse
import difflib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minifer.apps.labs import folders, kit, report
from minifer.apps.labs.grade import Grades, grade
from minifer.apps.labs.runs import LIMIT_S
from minifer.apps.labs.stubs import stub
from minifer.apps.labs.tasks import ROOT, all_tasks, folder_of_tests, phases_in, reference, task_of, tasks_of
from minifer.errors import UsageError
from minifer.formats.atomic import atomic_file

OK, FAILED = 0, 1
WHICH = {"grade": "5, or 1-6, or 1,3,7", "run": "5, or one task of it: 5.2"}


def add_parser(subparsers: Any) -> None:
    """`minifer labs` and its own commands."""
    parser = subparsers.add_parser("labs", help="rebuild minifer yourself, a phase at a time")
    kinds = parser.add_subparsers(dest="lab_command", required=True, metavar="COMMAND")

    def kind(name: str, text: str, function: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = kinds.add_parser(name, help=text)
        made.set_defaults(run_lab=function)
        return made

    one = kind("list", "all tasks", _list)
    one.add_argument("--json", action="store_true", help="as JSON")
    for name, text, function in (
        ("start", "write the stubs of a phase", _start),
        ("run", "run a phase's tests on your files", _run),
        ("diff", "your files beside the reference: the answer", _diff),
        ("grade", "count points, each task in a process of its own", _grade),
    ):
        one = kind(name, text, function)
        one.add_argument("phase", metavar="PHASE", help=WHICH.get(name, "5"))
        one.add_argument("--dir", type=Path, metavar="D", help="the lab folder (default: here, or ./lab)")
        if name == "start":
            one.add_argument("--overwrite", action="store_true", help="also replace files that are there already")
        if name == "run":
            one.usage = "minifer labs run [-h] [--dir D] PHASE [-- PYTEST ...]"
            one.add_argument("rest", nargs="*", metavar="PYTEST", help="instead, pytest with these options, behind --")
    for option in ("json", "junitxml", "md"):  # of `grade`, the last of the four
        one.add_argument(f"--{option}", type=Path, metavar="FILE", help=f"write the grades as {option}")
    _grading_options(one)
    one = kind("hint", "a hint for a task, and with --level 2 or 3 more of it", _hint)
    one.add_argument("task", metavar="TASK", help="5.2")
    one.add_argument("--level", type=int, default=1, choices=(1, 2, 3), help="1 is a nudge, 3 nearly the answer")
    one = kind("report", "grade a folder of submissions", _report)
    one.add_argument("submissions", type=Path, metavar="SUBMISSIONS", help="a folder with one folder a student")
    one.add_argument("--phases", default="1-8", metavar="P", help="which phases (default 1-8)")
    one.add_argument("--csv", type=Path, metavar="FILE", help="write the table (default: print it)")
    _grading_options(one)
    one = kind("export", "a repository for a course", _export)
    one.add_argument("--phases", default="1-8", metavar="P", help="which phases (default 1-8)")
    one.add_argument("--dir", type=Path, required=True, metavar="D", help="the folder to make")
    one = kind("kit", "wheels, model, notebooks for a room without network", _kit)
    one.add_argument("--offline", type=Path, required=True, metavar="DIR", help="the folder to make")


def _grading_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, metavar="S", help="of the tests' random numbers (default: a new one)")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="S", help=f"seconds a task (default {LIMIT_S:g})"
    )


def run(args: argparse.Namespace) -> int:
    """One of the lab commands."""
    if not getattr(args, "limit", LIMIT_S) > 0:
        raise UsageError(f"--limit must be above 0 seconds, not {args.limit:g}")
    status: int = args.run_lab(args)
    return status


def _phase(words: str) -> int:
    (phase, *more) = phases_in(words)
    if more:
        raise UsageError(f"one phase at a time, not {words!r}")
    tasks_of([phase])
    return phase


def _folder(args: argparse.Namespace) -> Path:
    """The lab folder: the one that was named, the current one if it is a lab, or ./lab."""
    given: Path | None = args.dir
    folder = given or (Path(".") if Path(folders.MARK).is_file() else Path("lab"))
    if not folder.is_dir():
        raise UsageError(
            f"there is no folder {folder}: `minifer labs start {args.phase.partition('.')[0]} --dir {folder}` makes it"
        )
    return folder


def _list(args: argparse.Namespace) -> int:
    if args.json:
        rows = [{"id": t.id, "file": t.file, "function": t.function, "points": t.points, "minutes": t.minutes}
                for t in all_tasks()]  # fmt: skip
        print(json.dumps(rows, indent=1))
        return OK
    print(f"{'task':<6}{'points':>6}{'minutes':>9}  function")
    for task in all_tasks():
        print(f"{task.id:<6}{task.points:>6}{task.minutes:>9}  {task.function}  ({task.file})")
    total, minutes = sum(t.points for t in all_tasks()), sum(t.minutes for t in all_tasks())
    print(f"{len(all_tasks())} tasks, {total} points, about {minutes / 60:.0f} hours beside the notebooks")
    return OK


def _start(args: argparse.Namespace) -> int:
    phase = _phase(args.phase)
    folder = args.dir or (Path(".") if Path(folders.MARK).is_file() else Path("lab"))
    for done, file, tasks in folders.start(phase, folder, overwrite=args.overwrite):
        print(f"{done} {folder / file}: {', '.join(f'{t.id} {t.function}' for t in tasks)}")
    where = "" if args.dir is None else f" --dir {folder}"
    print(f"now write the functions that raise NotImplementedError; `minifer labs run{where} {phase}` runs the tests")
    return OK


def _run(args: argparse.Namespace) -> int:
    """The tasks' own tests in a few lines each; once they pass, whatever else the phase has, in pytest's words."""
    folder, one_task = _folder(args).resolve(), "." in args.phase
    tasks = [task_of(args.phase)] if one_task else tasks_of([_phase(args.phase)])
    phase = tasks[0].phase
    if not any((folder / task.file).exists() for task in tasks):  # else the reference would pass, unseen
        raise UsageError(f"{folder} holds no file of phase {phase}: `minifer labs start {phase}` writes the stubs")
    if args.rest:
        return _pytest(folder, phase, args.rest)
    grades = grade(folder, tasks, seed=0)
    print(report.files_of(grades).partition("; ")[0])
    for graded in grades.tasks:
        print(report.verdict(graded))
    if grades.score < grades.max_score:
        return FAILED
    return OK if one_task else _pytest(folder, phase, ["--maxfail=3"])


def _pytest(folder: Path, phase: int, options: Sequence[str]) -> int:
    """All tests of a phase in a child process, on the student's files."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", f"phase{phase:02}", "--tb=short", *options]
    command += [
        str(folder_of_tests(phase)),
        f"--rootdir={ROOT}",
        "-o",
        "addopts=--import-mode=importlib --strict-markers",
    ]
    if (folder / "pytest.ini").is_file():
        command += ["-c", str(folder / "pytest.ini")]
    env = os.environ | {"MINIFER_LAB": str(folder), "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    return subprocess.run(command, cwd=folder, env=env).returncode


def _hint(args: argparse.Namespace) -> int:
    if "." not in args.task:
        for task in tasks_of([_phase(args.task)]):
            print(f"{task.id:<6}{task.function}  ({task.file}), about {task.minutes} minutes")
        return OK
    task = task_of(args.task)
    print(f"task {task.id}, {task.function} in {task.file}, about {task.minutes} minutes")
    for level, hint in enumerate(task.hints[: args.level], 1):
        print(f"  {level}. {hint}")
    if args.level < len(task.hints):
        print(f"more: minifer labs hint {task.id} --level {args.level + 1}")
    return OK


def _diff(args: argparse.Namespace) -> int:
    folder = _folder(args)
    for file in dict.fromkeys(task.file for task in tasks_of([_phase(args.phase)])):
        path = folder / file
        mine = path.read_text("utf-8", errors="replace") if path.is_file() else stub(file, [])
        lines = difflib.unified_diff(reference(file).splitlines(), mine.splitlines(), f"reference/{file}", str(path),
                                     lineterm="")  # fmt: skip
        print("\n".join(lines) or f"{file}: no difference")
    return OK


def _grade(args: argparse.Namespace) -> int:
    grades = grade(_folder(args), tasks_of(phases_in(args.phase)), seed=args.seed, limit_s=args.limit)
    as_json = json.dumps(report.gradescope(grades), indent=1)
    for path, text in ((args.json, as_json), (args.junitxml, report.junit(grades)), (args.md, report.markdown(grades))):
        if path is not None:
            _save(path, text)
    print(report.files_of(grades))
    for graded in grades.tasks:
        task = graded.task
        print(f"  {task.id:<5}{graded.score:>3}/{task.points}  {task.function:<28} {report.words(graded)}".rstrip())
    print(f"{grades.score} of {grades.max_score} points (seed {grades.seed})")
    print(report.NOT_STOPPED)
    return OK if grades.score == grades.max_score else FAILED


def _report(args: argparse.Namespace) -> int:
    if not args.submissions.is_dir():
        raise UsageError(f"{args.submissions} is no folder of submissions")
    people = sorted(p for p in args.submissions.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not people:
        raise UsageError(f"{args.submissions} holds no folders: it should have one for each student")
    tasks, done = tasks_of(phases_in(args.phases)), list[Grades]()
    for number, person in enumerate(people, 1):
        lab = person / "lab" if (person / "lab").is_dir() else person
        grades = grade(lab, tasks, seed=args.seed, limit_s=args.limit)
        grades.student = person.name
        done.append(grades)
        print(f"[{number}/{len(people)}] {person.name}: {grades.score}/{grades.max_score}", file=sys.stderr)
    if args.csv is None:
        print(report.table(done), end="")
    else:
        _save(args.csv, report.table(done))
    print(report.NOT_STOPPED, file=sys.stderr)
    return OK


def _export(args: argparse.Namespace) -> int:
    tasks = folders.export(_wanted(args.phases), args.dir)
    print(f"wrote {args.dir}: {len(tasks)} tasks, {sum(t.points for t in tasks)} points; see its README.md")
    return OK


def _wanted(words: str) -> Sequence[int]:
    phases = phases_in(words)
    tasks_of(phases)
    return phases


def _kit(args: argparse.Namespace) -> int:
    print("fetching wheels (a few minutes) ...", file=sys.stderr)
    for line in kit.make(args.offline):
        print(f"  {line}")
    print(f"wrote {args.offline}; its README.md says how to install it")
    return OK


def _save(path: Path, text: str) -> None:
    with atomic_file(path) as out:
        out.write(text.encode())
