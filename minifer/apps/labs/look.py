"""What can be said about a student's file without running it, in the student's words.

A syntax error, a function that is gone, another signature, an engine that is imported: each is found in the text
(`ast`), named with its line, and costs the tasks it touches; the others are graded.
"""

import ast
import warnings
from pathlib import Path

from minifer.apps.labs.child import FORBIDDEN
from minifer.apps.labs.tasks import Task, find, parameters, reference

MOST_BYTES = 1_000_000


def parse(path: Path, file: str) -> ast.Module | str:
    """The parsed file, or why it cannot be parsed."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return f"{file} is larger than {MOST_BYTES:,} bytes: hand in source code only"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes())
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        text = f": {error.text.strip()}" if error.text else ""
        return f"{file}{line}: syntax error, {error.msg}{text}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{file} is no Python source: {type(error).__name__}, {error}"
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}"


def complaint(path: Path, task: Task, tasks: list[Task]) -> str | None:
    """Why the tests of `task` need not be run on the file at `path`, or None. `tasks` are all tasks of that file."""
    if not path.is_file():
        return f"{task.file} is missing: `minifer labs start {task.phase}` makes its stub"
    if task.file.endswith(".cu"):
        return None
    tree = parse(path, task.file)
    if isinstance(tree, str):
        return tree
    mine = find(tree, task.function)
    if mine is None:
        return f"`{task.function}` is missing from {task.file}: keep its `def` line as the stub has it"
    want = find(ast.parse(reference(task.file)), task.function)
    if want is not None and parameters(mine) != parameters(want):
        has, asks = ", ".join(parameters(mine)), ", ".join(parameters(want))
        return f"`{task.function}` takes ({has}), line {mine.lineno}; the task asks for ({asks})"
    if ast.unparse(mine.body[-1]) == f"raise NotImplementedError('task {task.id}')":
        return f"task {task.id} is not written yet"
    return _foreign(tree, task, mine, tasks)


def _foreign(tree: ast.Module, task: Task, mine: ast.AST, tasks: list[Task]) -> str | None:
    """An import of another engine in this task's function, or where it touches all of the file."""
    others = [n for t in tasks if t is not task and (n := find(tree, t.function)) is not None]
    elsewhere = {id(inner) for other in others if other is not mine for inner in ast.walk(other)}
    for node in ast.walk(tree):
        if id(node) in elsewhere:
            continue
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if (package := name.split(".")[0]) in FORBIDDEN:
                return f"{task.file} imports {package}: a lab is written with Python and NumPy alone"
    return None
