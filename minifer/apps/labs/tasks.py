"""What there is to do: the tasks of `labs.toml`, and where each function stands in a source text.

A task is one whole function of the reference. Files are looked at as text (`ast`), never imported: neither this module
nor any other of the `labs` command runs a line that a student wrote.
"""

import ast
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from minifer.errors import UsageError

PACKAGE = Path(__file__).resolve().parents[2]
ROOT = PACKAGE.parent

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Task:
    """A function to write: its file below `minifer/`, its name in it, its worth, three hints, and an example for the
    stub where the reference's docstring has none."""

    id: str
    file: str
    function: str
    points: int
    minutes: int
    hints: tuple[str, ...]
    example: str = ""

    @property
    def phase(self) -> int:
        """The 5 of task 5.2."""
        return int(self.id.partition(".")[0])

    @property
    def module(self) -> str:
        """The name by which its file is imported; of a kernel, nothing that could be."""
        return "minifer." + self.file.removesuffix(".py").replace("/", ".")


@cache
def all_tasks() -> tuple[Task, ...]:
    """Every task, in order."""
    rows = tomllib.loads(Path(__file__).with_name("labs.toml").read_text("utf-8"))["task"]
    return tuple(Task(**(row | {"hints": tuple(row["hints"])})) for row in rows)


def task_of(number: str) -> Task:
    """The task with this number. Raises UsageError if there is none."""
    found = [task for task in all_tasks() if task.id == number]
    if not found:
        raise UsageError(f"there is no task {number!r}: `minifer labs list` shows all")
    return found[0]


def tasks_of(phases: Iterable[int]) -> list[Task]:
    """The tasks of some phases. Raises UsageError for a phase without tasks."""
    wanted = list(phases)
    known = sorted({task.phase for task in all_tasks()})
    if unknown := [phase for phase in wanted if phase not in known]:
        raise UsageError(f"phase {unknown[0]} has no tasks: there are {', '.join(map(str, known))}")
    return [task for task in all_tasks() if task.phase in wanted]


def phases_in(words: str) -> list[int]:
    """Phases as people write them.

    >>> phases_in("1-3,7")
    [1, 2, 3, 7]
    """
    found: list[int] = []
    for part in words.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or not int(first) <= int(last or first) < 100:
            raise UsageError(f"{words!r} names no phases: write 5, or 1-6, or 1,3,7")
        found += range(int(first), int(last or first) + 1)
    return found


def reference(file: str) -> str:
    """The reference's text of a file."""
    return (PACKAGE / file).read_text("utf-8")


def find(tree: ast.Module, name: str) -> Function | None:
    """The definition of `function` or `Class.method` in a parsed file, or None."""
    *classes, last = name.split(".")
    body: list[ast.stmt] = tree.body
    for wanted in classes:
        body = next((n.body for n in body if isinstance(n, ast.ClassDef) and n.name == wanted), [])
    return next((n for n in reversed(body) if isinstance(n, Function) and n.name == last), None)


def parameters(function: Function) -> list[str]:
    """The parameters as they bind: `*`, `**`, names, and `=` behind those that may be left out."""
    a = function.args
    plain = [*a.posonlyargs, *a.args]
    optional = len(plain) - len(a.defaults)
    words = [arg.arg + ("=" if i >= optional else "") for i, arg in enumerate(plain)]
    words += [f"*{a.vararg.arg}"] if a.vararg else ["*"] if a.kwonlyargs else []
    words += [k.arg + ("=" if d else "") for k, d in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    return words + ([f"**{a.kwarg.arg}"] if a.kwarg else [])


def folder_of_tests(phase: int, tests: Path | None = None) -> Path:
    """The folder of a phase's tests. Raises UsageError where they are not: they come with a clone, not with a wheel."""
    found = sorted((tests or ROOT / "tests").glob(f"phase{phase:02}_*"))
    if not found:
        raise UsageError("the tests are not here: work in a clone of minifer, or in a folder made by `labs export`")
    return found[0]


@cache
def tests_for(task: Task) -> tuple[tuple[str, str], ...]:
    """The tests of a task, as `(file, test function)`: those whose marker names it."""
    found = []
    for path in sorted(folder_of_tests(task.phase).glob("test_*.py")):
        text = path.read_text("utf-8")
        if f'mark.task("{task.id}")' in text:
            found += [
                (str(path), node.name)
                for node in ast.parse(text).body
                if isinstance(node, Function) and any(_names(d, task.id) for d in node.decorator_list)
            ]
    return tuple(found)


def _names(decorator: ast.expr, number: str) -> bool:
    return re.fullmatch(r"pytest\.mark\.task\('(.*)'\)", ast.unparse(decorator)) is not None and (
        ast.literal_eval(decorator.args[0]) == number if isinstance(decorator, ast.Call) else False
    )


def split_points(points: int, tests: int) -> list[int]:
    """Whole points for each test; the earlier ones get what is left over.

    >>> split_points(5, 3)
    [2, 2, 1]
    """
    each, more = divmod(points, tests)
    return [each + (i < more) for i in range(tests)]
