"""How notebooks are built: the badge for Colab, the table of costs, and the bugs that are planted in them."""

import inspect
import json
import re

import house
import pytest

from minifer import incremental
from minifer.apps import notebook_bugs
from minifer.apps.notebook_check import TASKS, grade
from minifer.errors import UsageError
from notebooks import build

SOURCES = build.sources([])
ADDRESS = "https://github.com/somebody/minifer"

# --- the badge -------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with one notebook; `project(urls)` writes the end of its pyproject.toml."""
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "HERE", tmp_path / "notebooks")
    source = tmp_path / "01_one.py"
    source.write_text('# %% [markdown]\n# # 01. One\n\n# %%\nSOURCE = ".."\n\n# %%\nprint(1)\n')

    def with_urls(urls):
        (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "minifer"\n{urls}\n')
        return source

    return with_urls


def test_without_an_address_there_is_no_badge(project):
    """A badge that leads nowhere is worse than none."""
    source = project("")
    assert build.cells_of(source) == build.read_source(source)


@pytest.mark.parametrize("address", [ADDRESS, ADDRESS + "/", ADDRESS + ".git"])
def test_with_an_address_every_notebook_has_its_badge(project, address):
    """It leads to this notebook, and the first cell fetches this repository."""
    source = project(f'[project.urls]\nRepository = "{address}"')
    first, install, last = build.cells_of(source)
    link = "https://colab.research.google.com/github/somebody/minifer/blob/main/notebooks/01_one.ipynb"
    assert first.text.splitlines()[0] == build.BADGE.format(address=link)
    assert first.text.endswith("\n\n# 01. One")
    assert f'"{ADDRESS}"' in install.text
    compile(install.text, "first cell", "exec")
    assert last.text == "print(1)"


def test_an_address_that_colab_cannot_open_gets_no_badge(project):
    """Colab opens what lies on GitHub."""
    source = project('[project.urls]\nRepository = "https://example.org/minifer"')
    assert build.cells_of(source) == build.read_source(source)


def test_a_new_address_is_drift(project):
    """Notebooks that were built before the address was known are found."""
    source = project("")
    cells = [{"cell_type": cell.kind, "source": [cell.text]} for cell in build.cells_of(source)]
    build.target_of(source).write_text(json.dumps({"cells": cells}))
    assert build.drift(source) == ""
    project(f'[project.urls]\nRepository = "{ADDRESS}"')
    assert "cell 0" in build.drift(source)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_first_code_cell_is_the_guarded_install(source):
    """It is the one that is exchanged for Colab's; without it a real cell would be lost."""
    first = next(cell for cell in build.read_source(source) if cell.kind == "code")
    assert 'if importlib.util.find_spec("minifer") is None:' in first.text
    assert len(first.text.splitlines()) <= len(build.FIRST_CELL.splitlines())


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_every_notebook():
    """Else `build.py --table` would have nowhere to write."""
    page = build.TABLE.read_text(encoding="utf-8")
    for source in SOURCES:
        changed = build.with_measured(page, source.name[:2], 12.3, 678_000_000)
        assert len(re.findall(r"\| 12 s \| 0\.7 GB \|", changed)) == 1


def test_what_is_measured_goes_into_two_columns_of_one_row():
    """Everything else of the page stays."""
    page = "# T\n| 01 One | 45 | 60 s | 1.5 GB | no | 1.1 |\n| 02 Two | 60 | 60 s | 1.5 GB | no | 2.1 |\n"
    changed = build.with_measured(page, "02", 21.6, 1_234_000_000)
    assert changed == page.replace("02 Two | 60 | 60 s | 1.5 GB", "02 Two | 60 | 22 s | 1.2 GB")
    with pytest.raises(SystemExit, match="no row for notebook 03"):
        build.with_measured(page, "03", 1, 1)


# --- planted bugs ----------------------------------------------------------------------------------------------------


PLANTED = [
    (task, name)
    for source in SOURCES
    for task, name in re.findall(r'planted\("([\d.]+)", "(\w+)"\)', source.read_text(encoding="utf-8"))
]


@pytest.mark.labs_meta
@pytest.mark.parametrize(("task", "name"), PLANTED)
def test_a_planted_bug_is_caught_by_its_task(task, name):
    """`check` tells the reader of the notebook that it is wrong."""
    verdict = grade(task, notebook_bugs.planted(task, name))
    assert not verdict.ok
    assert verdict.failures
    assert grade(task, getattr(TASKS[task].owner(), TASKS[task].short)).ok


def test_a_planted_bug_can_be_read_and_touches_nothing():
    """Its source is that of the copy, with the change; the reference stays as it is."""
    before = incremental.Incremental.step
    bug = notebook_bugs.planted("5.3", "6008")
    assert "if len(tokens) == 1 else 0" in inspect.getsource(bug)
    assert "if len(tokens) == 1" not in inspect.getsource(incremental)
    assert incremental.Incremental.step is before is not bug


def test_keys_are_unique_within_a_phase():
    """Four digits suffice."""
    folders = [folder for folder in notebook_bugs.bank().iterdir() if folder.is_dir()]
    assert len(folders) >= 8
    for folder in folders:
        names = [notebook_bugs.key(path) for path in folder.glob("*.py")]
        assert len(names) == len(set(names))


def test_a_wrong_call_is_named(monkeypatch):
    """No such task; no such bug; one of another task; no clone."""
    with pytest.raises(UsageError, match=r"no task '9\.99'"):
        notebook_bugs.planted("9.99", "6008")
    with pytest.raises(UsageError, match="no bug 'abcd'"):
        notebook_bugs.planted("5.3", "abcd")
    with pytest.raises(UsageError, match=r"no bug '6008' for task 5\.1"):
        notebook_bugs.planted("5.1", "6008")
    monkeypatch.setattr(notebook_bugs.minifer, "__file__", "/nowhere/site-packages/minifer/__init__.py")
    with pytest.raises(UsageError, match="run this notebook in a clone"):
        notebook_bugs.planted("5.3", "6008")


def test_the_bank_is_where_the_labs_have_it():
    """One bank for both."""
    assert notebook_bugs.bank() == house.ROOT / "tests" / "bugs"


def test_a_notebook_is_chosen_by_its_number_or_its_name():
    """And what is neither is refused; a name once chose nothing, without a word."""
    stem = SOURCES[3].stem
    assert build.sources([stem]) == build.sources([stem[:2]]) == [SOURCES[3]]
    with pytest.raises(SystemExit, match="no source for 0"):
        build.sources(["0"])
