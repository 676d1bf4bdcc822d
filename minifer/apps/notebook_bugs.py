"""The planted bugs of the notebooks: `planted("5.3", "6008")` is the reference's function with one mistake in it.

The mistakes are those of the bug bank, `tests/bugs/phase05/*.py`: each says which text of which file is replaced by
which. So what a reader hunts in a notebook is what the tests of the labs are tested with, and every one of them is
known to be caught by the tests of its task. A bug is called by the first digits of the SHA-256 of its file's name,
since that name would give it away; `where` tells it afterwards.

The bank lies in the repository, not in the installed package: without a clone there is nothing to plant.
"""

import ast
import hashlib
import importlib
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import minifer
from minifer.apps.notebook_check import TASKS
from minifer.errors import UsageError

DIGITS = 4
"""How many digits of the hash name a bug."""


def key(path: Path) -> str:
    """What a bug is called while it is being looked for.

    >>> key(Path("tests/bugs/phase05/step_counts_before.py"))
    '4ffc'
    """
    return hashlib.sha256(path.stem.encode()).hexdigest()[:DIGITS]


def bank() -> Path:
    """The folder of the bugs, in a clone of minifer. Raises UsageError where there is none."""
    folder = Path(minifer.__file__).resolve().parent.parent / "tests" / "bugs"
    if not folder.is_dir():
        raise UsageError("the planted bugs lie in the repository, under tests/bugs: run this notebook in a clone")
    return folder


def where(task: str, name: str) -> Path:
    """The file of the bug that `planted(task, name)` plants. Raises UsageError if there is no such task or bug."""
    if task not in TASKS:
        raise UsageError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
    found = [path for path in sorted((bank() / TASKS[task].phase).glob("*.py")) if key(path) == name]
    if len(found) != 1 or task not in _facts(found[0])["TASKS"]:
        raise UsageError(f"there is no bug {name!r} for task {task}")
    return found[0]


def planted(task: str, name: str) -> Callable[..., Any]:
    """The function of a task as it is in the reference, but for the one change of a bug; `inspect.getsource` shows it.

    It lives in a copy of its module, so nothing else in this process meets it.
    """
    facts = _facts(where(task, name))
    wanted = TASKS[task]
    original = importlib.import_module(wanted.module)
    text = Path(str(original.__file__)).read_text(encoding="utf-8").replace(facts["OLD"], facts["NEW"])
    copy = ModuleType(f"{wanted.module}_with_bug_{name}")
    copy.__package__ = original.__package__
    copy.__file__ = f"<bug {name}>"
    linecache.cache[copy.__file__] = (len(text), None, text.splitlines(keepends=True), copy.__file__)
    sys.modules[copy.__name__] = copy  # dataclasses look their module up
    exec(compile(text, copy.__file__, "exec"), vars(copy))
    found: Any = copy
    for part in wanted.name.split("."):
        found = getattr(found, part)
    return found


def _facts(path: Path) -> dict[str, Any]:
    """The constants of a bug's file, which is read and not run."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    pairs = [(node.targets[0], node.value) for node in body if isinstance(node, ast.Assign)]
    return {target.id: ast.literal_eval(value) for target, value in pairs if isinstance(target, ast.Name)}
