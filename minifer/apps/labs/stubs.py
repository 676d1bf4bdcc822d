"""Stubs: the reference with the bodies of the tasks taken out. Signature, docstring and everything else stay."""

import ast
import re

from minifer.apps.labs.tasks import Function, Task, find, reference


def stub(file: str, tasks: list[Task]) -> str:
    """The text of `file` (below `minifer/`) in which the functions of `tasks` have still to be written."""
    text = reference(file)
    return stub_kernel(text, tasks) if file.endswith(".cu") else stub_python(text, tasks)


def stub_python(text: str, tasks: list[Task]) -> str:
    """Each task's body becomes one line that raises NotImplementedError with the task's number."""
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    found = [(node, task) for task in tasks if (node := find(tree, task.function)) is not None]
    for node, task in sorted(found, key=lambda pair: -pair[0].lineno):
        rest = node.body[1:] if ast.get_docstring(node) is not None else node.body
        first, indent = rest[0], " " * rest[0].col_offset
        start = _with_comments(lines, first.lineno - 1, node)
        lines[start : node.end_lineno] = [
            f"{indent}# Write this function (task {task.id}); `minifer labs hint {task.id}` helps.\n",
            f'{indent}raise NotImplementedError("task {task.id}")\n',
        ]
        if task.example:
            _show(lines, node, task.example)
    return "".join(lines)


def _show(lines: list[str], node: Function, example: str) -> None:
    """Put an example at the end of a docstring."""
    docstring = node.body[0]
    last, indent = (docstring.end_lineno or docstring.lineno) - 1, " " * docstring.col_offset
    text = lines[last].rstrip().removesuffix('"""')
    shown = [f"{indent}{line}\n" for line in example.strip().splitlines()]
    lines[last : last + 1] = [*([f"{text.rstrip()}\n"] if text.strip() else []), "\n", *shown, f'{indent}"""\n']


def _with_comments(lines: list[str], start: int, node: Function) -> int:
    """Where a body begins, the comments over its first statement included: they would give it away."""
    while start > node.lineno and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return start


def stub_kernel(text: str, tasks: list[Task]) -> str:
    """A kernel whose body is empty: it compiles, and writes nothing."""
    for task in tasks:
        head = re.search(rf"__global__ void {task.function}\([^)]*\) \{{\n", text)
        if head is not None:
            end = text.index("\n}", head.end())
            body = f"    // Write this kernel (task {task.id}); `minifer labs hint {task.id}` helps.\n"
            body += f"    // The stub fails by doing nothing: NotImplementedError, task {task.id}."
            text = text[: head.end()] + body + text[end:]
    return text
