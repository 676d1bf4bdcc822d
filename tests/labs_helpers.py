"""What the tests of the labs share: many gradings in one go, and the bug bank."""

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from minifer.apps.labs.runs import Graded, Run, run_all
from minifer.apps.labs.tasks import PACKAGE, ROOT, Task, all_tasks, find, task_of

BUGS = sorted(p for p in (ROOT / "tests" / "bugs").glob("phase*/*.py") if p.parent.name != "phase09")


def bug(path: Path) -> Mapping[str, object]:
    """The constants of a bug."""
    body = ast.parse(path.read_text("utf-8")).body
    return {n.targets[0].id: ast.literal_eval(n.value) for n in body if isinstance(n, ast.Assign)}


def mutant(path: Path, folder: Path) -> Task:
    """Write the mutated file into a lab; the task it belongs to."""
    facts = bug(path)
    (number,) = facts["TASKS"]
    task = task_of(number)
    text = (PACKAGE / task.file).read_text("utf-8")
    assert facts["FILE"] == f"minifer/{task.file}"
    assert facts["HINT"]
    assert text.count(facts["OLD"]) == 1, f"{path.name}: OLD stands {text.count(facts['OLD'])} times in {task.file}"
    target = folder / task.file
    target.parent.mkdir(parents=True)
    target.write_text(text.replace(facts["OLD"], facts["NEW"]), "utf-8")
    return task


def grade_each(labs: Iterable[tuple[str, Path, Task, Path | None]], work: Path, seed: int = 1) -> dict[str, Graded]:
    """Grade `(name, folder, task, beside)`, side by side."""
    runs = {name: Run(folder, task, seed, 60.0, work / name, beside) for name, folder, task, beside in labs}
    run_all(list(runs.values()), at_once=2)
    return {name: run.result for name, run in runs.items()}


def with_first_lines(file: str, first: Mapping[str, str]) -> str:
    """The reference's text of a file with a statement put first into functions: `first[function]`."""
    text = (PACKAGE / file).read_text("utf-8")
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    places = []
    for name, line in first.items():
        node = find(tree, name)
        assert node is not None
        start = (node.body[1:] if ast.get_docstring(node) is not None else node.body)[0]
        places.append((start.lineno - 1, " " * start.col_offset + line + "\n"))
    for place, line in sorted(places, reverse=True):
        lines.insert(place, line)
    return "".join(lines)


PYTHON_TASKS = [task for task in all_tasks() if task.file.endswith(".py")]
