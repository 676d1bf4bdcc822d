"""How the code reads, as far as a program can tell: short functions, documented names, no words from elsewhere."""

import ast
import re

import house
import pytest

#: Words that belong to somebody's machine or to the making of the project, not to the project.
FOREIGN = re.compile(
    r"(/work/|/opt/|/root/|/home/\w|\bissue #?\d|pypi\.org|pythonhosted|registry\.npmjs|\bTODO\b|\bFIXME\b|\bXXX\b)"
)
LONGEST_FUNCTION = 50
LONGEST_PHASE_FILE = 300
SELF_EVIDENT_LINES = 2

SOURCES = house.module_files(".", without=("data",))
TEXTS = sorted(
    path
    for pattern in (
        "*.md",
        "*.toml",
        ".ci/*",
        ".github/**/*.yml",
        "minifer/**/*.py",
        "minifer/**/*.cu",
        "tests/**/*.py",
    )
    for path in house.ROOT.glob(pattern)
    if path.is_file() and path.name != "test_style.py"  # which has to name the words
)


def functions(path):
    """All functions and methods of a file, nested ones included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def public_names(tree):
    """Public functions and classes of a module, and the public methods of those classes that are not self-evident."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if isinstance(tree, ast.Module) or node.end_lineno - node.lineno > SELF_EVIDENT_LINES:
                yield node
            if isinstance(node, ast.ClassDef):
                yield from public_names(node)


@pytest.mark.parametrize("path", SOURCES, ids=house.module_name)
def test_functions_fit_on_a_screen(path):
    """No function is longer than a screen, its docstring left out."""
    too_long = []
    for node in functions(path):
        words = ast.get_docstring(node, clean=False)
        lines = (node.end_lineno or node.lineno) - node.lineno + 1 - (words.count("\n") + 1 if words else 0)
        if lines > LONGEST_FUNCTION:
            too_long.append(f"{node.name}: {lines}")
    assert not too_long


@pytest.mark.parametrize("path", SOURCES, ids=house.module_name)
def test_public_names_are_documented(path):
    """Every module says what it is about, and every public name what it does."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "no module docstring"
    assert not [node.name for node in public_names(tree) if not ast.get_docstring(node)]


@pytest.mark.parametrize("path", house.core_files(), ids=house.module_name)
def test_core_does_not_print(path):
    """The core returns values; showing them is the business of the apps."""
    calls = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)]
    assert not [n.lineno for n in calls if isinstance(n.func, ast.Name) and n.func.id == "print"]


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.relative_to(house.ROOT).as_posix())
def test_no_foreign_words(path):
    """No paths of one machine, no registry hosts, no notes to self."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert not [f"{n}: {line.strip()}" for n, line in enumerate(lines, 1) if FOREIGN.search(line)]


@pytest.mark.parametrize(
    "path", sorted(house.ROOT.glob("tests/phase*/test_*.py")), ids=lambda p: p.relative_to(house.ROOT).as_posix()
)
def test_phase_tests_are_reading_matter(path):
    """A file of theorems stays short enough to be read."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_PHASE_FILE
