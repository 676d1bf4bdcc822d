"""One child process of the grader: what it is given, how it is watched, and what its notes are worth.

This process reads the student's files as text and never runs them (`look`); the child does (`child`).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minifer.apps.labs import child
from minifer.apps.labs.look import complaint
from minifer.apps.labs.tasks import PACKAGE, ROOT, Task, all_tasks, split_points, tests_for

LIMIT_S = 20.0
"""How long all tests of one task may take; the reference needs about one second of it."""

ENDLESS = "ran longer than {:g} s and was stopped: a loop without an end?"
TALKATIVE = f"printed more than {child.OUTPUT_LIMIT >> 20} MB and was stopped: take the print out"
LEFT = "ended the program by itself (os._exit, sys.exit or a crash) before its tests were done"
TAMPERED = "changed the checks themselves: tests that must fail passed after this file was loaded"


@dataclass
class Outcome:
    """One test of a task: its worth, its score, and what it said."""

    name: str
    points: int
    score: int = 0
    text: str = ""


@dataclass
class Graded:
    """A task and how its tests went. `problem` is what kept all of them from counting."""

    task: Task
    outcomes: list[Outcome]
    problem: str = ""
    seconds: float = 0.0

    @property
    def score(self) -> int:
        """Points reached."""
        return sum(outcome.score for outcome in self.outcomes)


def run_all(runs: Sequence["Run"], at_once: int | None = None) -> None:
    """Run children side by side, as many as there are cores, until all have ended."""
    waiting, active = list(runs), list[Run]()
    prepare_forks()
    most = at_once or min(8, os.cpu_count() or 1)
    try:
        while waiting or active:
            while waiting and len(active) < most:
                run = waiting.pop(0)
                if run.start():
                    active.append(run)
            active = [run for run in active if not run.ended()]
            time.sleep(0.005)
    finally:
        for run in active:
            run.stop()


def prepare_forks() -> None:
    """Load here what every child needs, once: a fork inherits it. Nothing of it is a student's."""
    if hasattr(os, "fork"):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        for name in ("numpy", "pytest", "hypothesis", "regex"):
            __import__(name)


def can_fork() -> bool:
    """Whether a fork of this process would load the student's files.

    It would not if this process has loaded the reference's already: a child inherits them, and would grade those.
    """
    return hasattr(os, "fork") and not any(task.module in sys.modules for task in all_tasks())


class Run:
    """One task's child process, from its folder to its outcome."""

    def __init__(self, folder: Path, task: Task, seed: int, limit_s: float, work: Path, beside: Path | None = None):
        """Of `folder` only the task's own file is taken; the files in the lab `beside` replace the reference's."""
        tests = tests_for(task)
        points = split_points(task.points, len(tests))
        outcomes = [Outcome(name, worth) for (_, name), worth in zip(tests, points, strict=True)]
        self.result = Graded(task, outcomes)
        self.folder, self.seed, self.limit_s, self.work, self.tests = folder, seed, limit_s, work, tests
        self.beside = beside
        self.pid, self.began, self.stopped = 0, 0.0, ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """Look at the file, and start a child if there is anything to run."""
        task = self.result.task
        source = self.folder / task.file
        self.result.problem = complaint(source, task, [t for t in all_tasks() if t.file == task.file]) or ""
        if self.result.problem:
            return False
        mine = self.work / "lab" / task.file
        if self.beside is not None:
            shutil.copytree(self.beside, self.work / "lab")
        mine.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, mine)
        job = self._job()
        self.began = time.monotonic()
        if job["fork"]:
            sys.stdout.flush()
            sys.stderr.flush()
            self.pid = os.fork()
            if self.pid == 0:
                os.chdir(self.work)
                child.main(job)
        else:
            self._spawn(job)
        return True

    def _job(self) -> dict[str, Any]:
        job: dict[str, Any] = {"tests": self.tests, "seed": self.seed, "fork": can_fork()}
        job |= {"lab": str(self.work / "lab"), "answers": self._answers(), "root": str(ROOT)}
        job |= {"results": str(self.work / "results"), "output": str(self.work / "output")}
        return job | {"canary": str(ROOT / "tests" / "labs_canary.py")}

    def _answers(self) -> list[str]:
        """The reference's files that a student's code must not open."""
        return [str(PACKAGE / self.result.task.file)]

    def _spawn(self, job: dict[str, Any]) -> None:
        path = self.work / "job.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        env = os.environ | {"MINIFER_LAB": "off", "PYTHONPATH": str(ROOT)}
        with open(job["output"], "wb") as output:
            command = [sys.executable, "-m", "minifer.apps.labs.child", str(path)]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                            env=env, cwd=self.work)  # fmt: skip

    def ended(self) -> bool:
        """Whether the child has ended, by itself or because a limit was reached; then the outcome is read."""
        gone = self.process.poll() is not None if self.process else os.waitpid(self.pid, os.WNOHANG)[0] != 0
        if gone:
            self._kill()  # whatever it has started
            self._read()
            return True
        if self._printed() >= child.OUTPUT_LIMIT:
            self.stopped = TALKATIVE
        elif time.monotonic() - self.began > self.limit_s:
            self.stopped = ENDLESS.format(self.limit_s)
        if self.stopped:
            self.stop()
            self._read()
        return bool(self.stopped)

    def stop(self) -> None:
        """End the child and what it started."""
        self._kill()
        if self.process:
            self.process.wait()
        else:
            os.waitpid(self.pid, 0)

    def _kill(self) -> None:
        try:
            if self.process:
                self.process.kill()
            else:
                os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass  # it has ended meanwhile, or has not yet made its own group: then the next look finds it
        if not self.process and self.stopped:
            with_suppressed_kill(self.pid)

    def _printed(self) -> int:
        try:
            return (self.work / "output").stat().st_size
        except OSError:
            return 0

    def _read(self) -> None:
        """From the child's notes to points."""
        self.result.seconds = time.monotonic() - self.began
        notes = list(_lines(self.work / "results"))
        by_name: dict[str, list[dict[str, str]]] = {}
        for note in notes:
            by_name.setdefault(note["name"], []).append(note)
        if any(note["kind"] == "canary passed" for note in notes):
            self.result.problem = TAMPERED
        elif self.stopped or self._printed() >= child.OUTPUT_LIMIT:
            self.result.problem = self.stopped or TALKATIVE
        elif broken := [note["text"] for note in notes if note["kind"] == "import"]:
            self.result.problem = f"{self.result.task.file} cannot be imported: {broken[0]}"
        elif not any(note["kind"] == "end" for note in notes) or not any(
            note["kind"] == "canary failed" for note in notes
        ):
            self.result.problem = LEFT
        if self.result.problem:
            return
        for outcome in self.result.outcomes:
            seen = by_name.get(outcome.name, [])
            if seen and all(note["kind"] == "passed" for note in seen):
                outcome.score = outcome.points
            else:
                failed = [note["text"] for note in seen if note["kind"] != "passed"]
                outcome.text = _in_words(failed[0] if failed else LEFT, self.result.task)


class Shared(Run):
    """All tasks of a phase in one child. What it says counts only if all of it passed."""

    def __init__(self, folder: Path, tasks: Sequence[Task], seed: int, limit_s: float, work: Path, beside: Path):
        """`beside` holds the student's files, those of the tasks included."""
        super().__init__(folder, tasks[0], seed, limit_s, work, beside)
        self.parts = [Graded(t, Run(folder, t, seed, limit_s, work).result.outcomes) for t in tasks]
        self.tests = tuple(dict.fromkeys(test for task in tasks for test in tests_for(task)))
        self.result.outcomes = [outcome for part in self.parts for outcome in part.outcomes]

    def _answers(self) -> list[str]:
        return [str(PACKAGE / file) for file in dict.fromkeys(part.task.file for part in self.parts)]

    def passed(self) -> list[Graded]:
        """Every task, if nothing went wrong; else none of them."""
        fine = not self.result.problem and all(o.score == o.points for o in self.result.outcomes)
        for part in self.parts:
            part.seconds = self.result.seconds
        return self.parts if fine else []


def with_suppressed_kill(pid: int) -> None:
    """Kill one process of ours by its id; that it has ended already is fine."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return


def _in_words(text: str, task: Task) -> str:
    if text.startswith("NotImplementedError"):
        return f"task {task.id} is not written yet"
    if text.startswith("SystemExit"):
        return f"called sys.exit: {LEFT}"
    return text


def _lines(path: Path) -> Iterator[dict[str, str]]:
    """The child's notes; a line that is not one of ours is passed over."""
    try:
        texts = path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return
    for text in texts:
        try:
            note = json.loads(text)
        except ValueError:
            continue
        if isinstance(note, dict) and {"kind", "name", "text"} <= note.keys():
            yield {key: str(value) for key, value in note.items()}
