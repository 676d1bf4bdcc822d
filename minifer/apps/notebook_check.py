"""`check("1.2", my_generate)`: the tests of a phase, run on a function that was written in a notebook.

What runs is not a copy: in a clone of minifer these are the very functions of `tests/phase01_generate`, found by
pytest, with the student's function put in the place of the reference for the moment. The tests of a task are those that
carry its marker, `task("5.1")`, or else those whose code names its function. Where there is no clone (a notebook on its
own, in the cloud), the examples in the reference's docstring are run instead, and the verdict says that it rests on
them alone.

A function that never ends is stopped after `LIMIT_S` seconds. What this does not do: grade. It runs in the same process
as the student's code and stops nobody who wants to cheat.
"""

import _thread
import contextlib
import doctest
import importlib
import importlib.util
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import minifer
from minifer.apps.labs.tasks import all_tasks
from minifer.errors import UsageError

INSIST_S = 0.02
"""How often a test that does not end is told to, until it does."""

LIMIT_S = 1.0
"""How long one test may take; those of the phases take milliseconds. A loop without end also eats memory meanwhile.
A test file that needs longer says so with a constant `CHECK_LIMIT_S` of its own."""

MESSAGE_LINES = 6
"""How much of a failed comparison is shown."""

MOST_NAMES = 3
"""How many failed tests are named beside the first."""


@dataclass(frozen=True)
class Task:
    """A function of the reference that a student writes: its name (`KVStore.write` for a method), its module, and the
    first letters of the folder of its tests."""

    name: str
    module: str
    phase: str

    @property
    def short(self) -> str:
        """The name without its class."""
        return self.name.rpartition(".")[2]

    def owner(self) -> Any:
        """The module, or the class in it, that holds the function."""
        found: Any = importlib.import_module(self.module)
        for name in self.name.split(".")[:-1]:
            found = getattr(found, name)
        return found


TASKS = {
    task.id: Task(task.function, task.module, f"phase{task.phase:02}")
    for task in all_tasks()
    if task.file.endswith(".py")
}
"""Those of `labs.toml` that are written in Python: one list of tasks for the labs and the notebooks."""


@dataclass
class Verdict:
    """How the tests of a task went. `failures` holds for each failed one its name, its meaning and what was seen."""

    task: str
    name: str
    source: str
    passed: int = 0
    failures: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether at least one test ran and all that ran passed."""
        return self.passed > 0 and not self.failures

    def __str__(self) -> str:
        """The verdict for a person: a count, then the first failure in full and the names of the others."""
        total = self.passed + len(self.failures)
        head = f"check {self.task}, {self.name}: {self.passed} of {total} {self.source} passed"
        if self.ok:
            return f"{head}. Done."
        if total == 0:
            return f"{head}: there was nothing to run, so nothing is proved."
        if all("NotImplementedError" in seen for _, _, seen in self.failures):
            return f"{head}: not written yet."
        title, meaning, seen = self.failures[0]
        lines = [f"{head}. Start with the first:", f"  {title}", *(f"    {line}" for line in meaning.splitlines())]
        useful = [line for line in seen.splitlines() if line.strip() and "Use -v" not in line]
        lines += [f"    {line}" for line in useful[:MESSAGE_LINES]]
        if others := list(dict.fromkeys(name.partition("[")[0] for name, _, _ in self.failures[1:])):
            more = f" and {len(others) - MOST_NAMES} more" if len(others) > MOST_NAMES else ""
            lines.append(f"  also failed: {', '.join(others[:MOST_NAMES])}{more}")
        return "\n".join(lines)


def check(task: str, function: Callable[..., Any]) -> None:
    """Run the tests of `task` on `function` and print how they went."""
    print(grade(task, function))


def grade(task: str, function: Callable[..., Any]) -> Verdict:
    """Run the tests of `task` on `function`. Raises UsageError for a task that does not exist."""
    if task not in TASKS:
        raise UsageError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
    if not callable(function):
        raise UsageError(f"task {task} needs a function, not {function!r}")
    wanted = TASKS[task]
    folder = tests_folder(wanted)
    if folder is None:
        return _run_examples(task, wanted, function)
    verdict = Verdict(task, wanted.name, f"tests in tests/{folder.name}")
    _run_pytest(folder, _Swap(wanted, function, verdict))
    return verdict


def tests_folder(task: Task) -> Path | None:
    """Where this task's tests are, in a clone with pytest and hypothesis installed (the extra `test`); else None."""
    folders = sorted((Path(minifer.__file__).resolve().parent.parent / "tests").glob(f"{task.phase}_*"))
    can_run = all(importlib.util.find_spec(package) for package in ("pytest", "hypothesis"))
    return folders[0] if folders and can_run else None


def _run_pytest(folder: Path, plugin: "_Swap") -> None:
    import pytest

    options = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=sys", "--color=no", "-o", "addopts="]
    options += ["--import-mode=importlib"]  # every phase has a file `test_tasks.py`
    outside = os.environ.pop("PYTEST_ADDOPTS", None)  # meant for the tests of the project, not for these
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            pytest.main([str(folder), *options], plugins=[plugin])
    finally:
        plugin.restore()
        if outside is not None:
            os.environ["PYTEST_ADDOPTS"] = outside


class _Swap:
    """A pytest plugin: keeps the tests of one task, and lets them meet the student's function."""

    def __init__(self, task: Task, function: Callable[..., Any], verdict: Verdict) -> None:
        self.task, self.function, self.verdict = task, function, verdict
        self.reference = getattr(task.owner(), task.short)
        self.meanings: dict[str, str] = {}
        self._undo: list[tuple[Any, str, Any]] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out the tests of other tasks, then put the student's function in the place of the reference."""
        marked = [item for item in items if self._marked(item)]
        named = [item for item in items if self.task.short in _names(item.function.__code__)]
        items[:] = marked or named
        self.meanings = {item.nodeid: (item.function.__doc__ or "").strip() for item in items}
        ours = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "minifer"]
        for place in dict.fromkeys([self.task.owner(), *ours, *(item.module for item in items)]):
            for name in [n for n, value in list(vars(place).items()) if value is self.reference]:
                self._undo.append((place, name, self.reference))
                setattr(place, name, self.function)

    def _marked(self, item: Any) -> bool:
        """Whether a test says itself that it is about this task."""
        return any(self.verdict.task in marker.args for marker in item.iter_markers("task"))

    def restore(self) -> None:
        """Put the reference back where it was."""
        for module, name, value in self._undo:
            setattr(module, name, value)

    def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool:
        """Call a test, and make of one that does not end a failure like any other."""
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        try:
            with time_limit(getattr(pyfuncitem.module, "CHECK_LIMIT_S", LIMIT_S)):
                pyfuncitem.obj(**arguments)
        except TimeoutError:
            pyfuncitem.session.shouldfail = "a loop without end: the other tests would only wait for it too"
            raise
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count it."""
        if report.when == "call" and report.passed:
            self.verdict.passed += 1
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            name = report.nodeid.rpartition("::")[2]
            self.verdict.failures.append((name, self.meanings[report.nodeid], crash.message if crash else ""))


def _names(code: CodeType) -> set[str]:
    """Every global name that a function uses, in its inner functions too."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread if the block takes longer, by the way that Ctrl-C takes on every system.

    subtle: an exception that happens to be raised inside a callback of the garbage collector is swallowed, so it is
    raised again until it takes. And a process that a shell started in the background ignores SIGINT, so that
    `interrupt_main` would do nothing: a handler of our own stands in while the block runs.
    """
    done, expired = threading.Event(), threading.Event()

    def interrupt(*_: object) -> None:
        if not done.is_set():
            raise KeyboardInterrupt

    def watch() -> None:
        if not done.wait(seconds):
            expired.set()
            while not done.wait(INSIST_S):
                _thread.interrupt_main()

    before = signal.signal(signal.SIGINT, interrupt)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except KeyboardInterrupt:
        if not expired.is_set():
            raise
        raise TimeoutError(f"still running after {seconds:g} s: does the loop ever end? (No more tests run.)") from None
    finally:
        done.set()
        watcher.join()
        signal.signal(signal.SIGINT, before)


def _run_examples(task: str, wanted: Task, function: Callable[..., Any]) -> Verdict:
    """The examples in the docstring of the reference, one after the other, run on the student's function.

    Only those that call the function count: the others merely prepare.
    """
    module = importlib.import_module(wanted.module)
    verdict = Verdict(task, wanted.name, "examples in the docstring (all there is without a clone of minifer)")
    owner = wanted.owner()
    reference = getattr(owner, wanted.short)
    docstring = reference.__doc__ or ""
    if owner is not module:  # a method: the examples build an object of its class
        docstring += owner.__doc__ or ""
    scope = dict(vars(module)) | {wanted.name: function}
    if owner is not module:
        setattr(owner, wanted.short, function)
    try:
        for example in doctest.DocTestParser().get_examples(docstring):
            seen = _run_example(example, scope)
            if seen:
                verdict.failures.append((example.source.strip(), "", seen))
            else:
                verdict.passed += f"{wanted.short}(" in example.source
    finally:
        setattr(owner, wanted.short, reference)
    return verdict


def _run_example(example: doctest.Example, scope: dict[str, Any]) -> str:
    """What was wrong with one example; empty if nothing was. Names that it defines stay in `scope`."""
    test = doctest.DocTest([example], {}, "example", None, 0, None)
    test.globs = scope
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    try:
        with time_limit(LIMIT_S):
            failed = runner.run(test, out=output.append, clear_globs=False).failed
    except TimeoutError as error:
        return f"TimeoutError: {error}"
    shown = "".join(output).rstrip().splitlines()
    return "\n".join(line.strip() for line in shown[-4:]) if failed else ""
