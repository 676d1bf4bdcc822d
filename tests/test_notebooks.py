"""The notebooks: what is committed is what the sources say, it can be read by everybody, and `check` can fail.

Executing them takes a minute each and needs Jupyter: `pytest --notebooks tests/test_notebooks.py` runs a third of them,
another one each day; MINIFER_NOTEBOOK_THIRD chooses it (0, 1, 2) or takes `all`. They run on the bundled `tiny` unless
MINIFER_NOTEBOOK_MODEL names another model (`random:smollm2-135m`, `smollm2-135m`).
"""

import json
import os
import re
import shutil
import signal
import time
from datetime import date

import house
import numpy as np
import pytest
from test_style import FOREIGN

from minifer.apps import notebook, notebook_check
from minifer.apps.notebook_check import TASKS, grade, time_limit
from minifer.errors import RequestError, UsageError
from minifer.generate import generate, greedy
from notebooks import build

FOLDER = house.ROOT / "notebooks"
SOURCES = build.sources([])
LONGEST_CELL = 25
MOST_MEMORY_BYTES = 1.5e9
ORDER = [
    "See",
    "Predict",
    "Run",
    "Explain",
    "Build",
    "Break",
    "Compare",
    "Five questions",
    "Three numbers to write down",
]

RUNS_ONLY = {"00": ("Build", "Break")}
"""Notebook 00 is for running and looking."""

each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def load(source):
    """The committed notebook of a source, as its JSON says."""
    return json.loads(build.target_of(source).read_text(encoding="utf-8"))


def outputs(source):
    """Every output of a notebook, in order."""
    return [output for cell in load(source)["cells"] for output in cell.get("outputs", [])]


# --- the source ------------------------------------------------------------------------------------------------------


@each_source
def test_cells_fit_on_a_screen(source):
    """One idea each: at most 25 lines, code and text alike."""
    cells = build.read_source(source)
    assert not [n for n, cell in enumerate(cells) if len(cell.text.splitlines()) > LONGEST_CELL]


@each_source
def test_parts_come_in_their_order(source):
    """Question, see, predict, run, explain, build, break, compare, questions, numbers."""
    text = "\n".join(cell.text for cell in build.read_source(source) if cell.kind == "markdown")
    order = [part for part in ORDER if part not in RUNS_ONLY.get(source.stem[:2], ())]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == order
    assert text.count("<details>") >= 5


@each_source
def test_randomness_has_a_seed(source):
    """The same inputs for everybody."""
    text = source.read_text(encoding="utf-8")
    assert "default_rng(0)" in text
    assert "np.random." not in text.replace("np.random.default_rng(0)", "")


@each_source
def test_our_reader_agrees_with_jupytext(source):
    """Two readers of the percent format see the same cells."""
    jupytext = pytest.importorskip("jupytext")
    theirs = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    assert build.read_source(source) == [build.Cell(c.cell_type, c.source) for c in theirs.cells]


# --- the notebook ----------------------------------------------------------------------------------------------------


@each_source
def test_the_notebook_holds_what_its_source_says(source):
    """Else: python notebooks/build.py, on a quiet machine."""
    assert build.drift(source) == ""


def test_drift_is_found(tmp_path, monkeypatch):
    """The check itself: a changed cell, a missing one, no notebook at all."""
    source = shutil.copy(SOURCES[0], tmp_path / SOURCES[0].name)
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert "not been built" in build.drift(source)
    cells = [{"cell_type": cell.kind, "source": [cell.text]} for cell in build.read_source(source)]
    target = build.target_of(source)
    target.write_text(json.dumps({"cells": cells}))
    assert build.drift(source) == ""
    target.write_text(json.dumps({"cells": cells[:-1]}))
    assert "cells" in build.drift(source)
    cells[3]["source"] = ["print('edited by hand')"]
    target.write_text(json.dumps({"cells": cells}))
    assert "cell 3" in build.drift(source)


@each_source
def test_the_notebook_was_executed_from_top_to_bottom(source):
    """Every code cell ran once, in order, and none failed."""
    code = [cell for cell in load(source)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert "error" not in {output["output_type"] for output in outputs(source)}


@each_source
def test_the_notebook_is_small_and_static(source):
    """It opens anywhere: 400 KB, no widgets, no Mermaid, nothing but text and PNG."""
    path = build.target_of(source)
    assert path.stat().st_size <= build.MOST_BYTES
    assert "mermaid" not in path.read_text(encoding="utf-8")
    kinds = {kind for output in outputs(source) for kind in output.get("data", {})}
    assert kinds <= {"text/plain", "text/markdown", "image/png"}
    assert load(source)["metadata"] == build.METADATA


@each_source
def test_every_figure_has_a_caption_and_a_description(source):
    """A visible sentence under it, numbered, and alt text for who cannot see it."""
    found, number = outputs(source), 0
    for index, output in enumerate(found):
        if "image/png" not in output.get("data", {}):
            continue
        number += 1
        assert len(output["metadata"]["image/png"]["alt"]) >= 60
        caption = "".join(found[index + 1]["data"]["text/markdown"])
        assert re.fullmatch(rf"\*Figure {number}\. [^.]+(\.\d[^.]*)*\.\*", caption), caption
    assert number >= 1


@each_source
def test_the_notebook_shows_the_default_model(source):
    """Readers on the web see real numbers, not those of a rehearsal."""
    text = json.dumps(load(source))
    assert "smollm2-135m" in text
    assert not [output for output in outputs(source) if "`tiny` writes" in "".join(output.get("text", ""))]


@pytest.mark.parametrize(
    "path",
    [p for kind in ("*.md", "*.ipynb", "src/*.py", "*.py") for p in sorted(FOLDER.glob(kind))],
    ids=lambda p: p.name,
)
def test_no_foreign_words(path):
    """No paths of one machine in what was written or printed."""
    text = re.sub(r'"image/png": "[^"]*"', "", path.read_text(encoding="utf-8"))
    assert not FOREIGN.search(text)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.md")), ids=lambda p: p.name)
def test_links_and_files_exist(path):
    """Relative links lead somewhere, and each file of ours that is named is there."""
    text = path.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    files = re.findall(r"`(minifer/[\w/.]+|tests/[\w/.]+|notebooks/[\w/.]+)`", text)
    missing = [link for link in links if not (FOLDER / link).exists()]
    assert not missing + [file for file in files if not (house.ROOT / file).exists()]


@each_source
def test_links_in_a_notebook_exist(source):
    """As in the pages: what a reader can click on is there, and so is each file of ours that is named."""
    text = "\n".join(cell.text for cell in build.read_source(source) if cell.kind == "markdown")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if link.endswith((".md", ".ipynb", ".py", ".png"))]
    files = re.findall(r"[`>](minifer/[\w/.]+|tests/[\w/.]+|notebooks/[\w/.]+)[`<]", text)
    missing = [link for link in links if "://" not in link and not (FOLDER / link).exists()]
    assert not missing + [file for file in files if not (house.ROOT / file).exists()]


# --- what a notebook stands on ---------------------------------------------------------------------------------------


def test_models_are_chosen_by_the_environment(monkeypatch):
    """`tiny` is measured as it is; random weights are measured while `tiny` writes."""
    monkeypatch.setenv("MINIFER_NOTEBOOK_MODEL", "tiny")
    assert (notebook.choose_models().text, notebook.choose_models().speed) == ("tiny", "tiny")
    monkeypatch.setenv("MINIFER_NOTEBOOK_MODEL", "random:smollm2-135m")
    assert (notebook.choose_models().text, notebook.choose_models().speed) == ("tiny", "random:smollm2-135m")


def test_without_a_network_the_shape_stays(monkeypatch, tmp_path):
    """Offline and with an empty cache: random weights of the default model's shape, and a note that says so."""
    monkeypatch.setenv("MINIFER_HOME", str(tmp_path))
    monkeypatch.setenv("MINIFER_OFFLINE", "1")
    monkeypatch.delenv("MINIFER_NOTEBOOK_MODEL", raising=False)
    models = notebook.choose_models()
    assert (models.text, models.speed) == ("tiny", "random:smollm2-135m")
    assert "smollm2-135m" in models.note


def test_summary_names_the_machine(capsys):
    """Short enough that it is read."""
    notebook.summary()
    printed = capsys.readouterr().out
    assert "NumPy" in printed
    assert len(printed.splitlines()) <= 6


def test_a_figure_is_shown_with_its_words(monkeypatch):
    """The alternative text goes with the image, the caption below it."""
    ipython = pytest.importorskip("IPython.display")
    shown = []
    monkeypatch.setattr(ipython, "display", lambda data, **options: shown.append((data, options)))
    notebook.show(notebook.flow([("a", "b"), ("c()", "d")], back="again"), "Figure 1. A loop.", "Two boxes.")
    (image, options), (caption, _) = shown
    assert image["image/png"].startswith(b"\x89PNG")
    assert options["metadata"] == {"image/png": {"alt": "Two boxes."}}
    assert caption.data == "*Figure 1. A loop.*"


# --- check can fail --------------------------------------------------------------------------------------------------


def not_appending(model, prompt_ids, *, max_tokens, eos_ids=(), choose=greedy):
    if not prompt_ids or max_tokens < 0:
        raise RequestError(f"empty prompt, or max_tokens={max_tokens}")
    for _ in range(max_tokens):
        token = choose(model(list(prompt_ids)))
        yield token
        if token in eos_ids:
            return


def endless(model, prompt_ids, **_):
    last = list(prompt_ids[-1:])  # never the whole text: the table model keeps what it is called with, and that grows
    while True:
        last = [greedy(model(last))]
        yield last[0]


def all_at_once(model, prompt_ids, **options):
    return list(generate(model, prompt_ids, **options))


def unwritten(*_, **__):
    raise NotImplementedError("task")


@pytest.mark.parametrize(("task", "function"), [("1.1", greedy), ("1.2", generate)])
def test_the_reference_passes(task, function):
    """With all tests of its task, and some there must be."""
    verdict = grade(task, function)
    assert verdict.ok
    assert verdict.passed >= 2
    assert "Done" in str(verdict)


@pytest.mark.labs_meta
@pytest.mark.parametrize("task", [task for task in TASKS if "02" <= TASKS[task].phase[-2:] <= "06"])
def test_the_reference_passes_every_task_of_the_notebooks(task):
    """The checks of notebooks 02 to 06 find tests, and what is right passes them."""
    wanted = TASKS[task]
    verdict = grade(task, getattr(wanted.owner(), wanted.short))
    assert verdict.ok, str(verdict)


@pytest.mark.labs_meta
@pytest.mark.parametrize("task", [task for task in TASKS if "02" <= TASKS[task].phase[-2:] <= "06"])
def test_a_stub_passes_no_task_of_the_notebooks(task):
    """And what is not written passes none; afterwards the reference stands in its place again."""
    wanted = TASKS[task]
    reference = getattr(wanted.owner(), wanted.short)
    assert not grade(task, unwritten).ok
    assert getattr(wanted.owner(), wanted.short) is reference


def test_an_interruption_that_is_swallowed_is_repeated():
    """As the garbage collector does with what its callbacks raise."""
    swallowed = []

    def swallow_two():
        while True:
            try:
                time.sleep(0.01)
            except KeyboardInterrupt:
                swallowed.append(1)
                if len(swallowed) == 3:
                    raise

    with pytest.raises(TimeoutError, match="does the loop ever end"), time_limit(0.05):
        swallow_two()


def test_an_endless_loop_is_stopped_even_where_ctrl_c_is_ignored():
    """As in a process that a shell started in the background: there SIGINT is ignored from the start."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert "does the loop ever end?" in str(grade("1.2", endless))
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("task", "function", "told"),
    [
        ("1.1", lambda logits: 1, "test_greedy_takes_the_largest"),
        ("1.1", np.argmax, "int64"),
        ("1.1", lambda logits: int(np.argmin(-logits[::-1])), "test_greedy"),
        ("1.1", unwritten, "not written yet"),
        ("1.2", unwritten, "not written yet"),
        ("1.2", not_appending, "test_each_call_sees"),
        ("1.2", endless, "does the loop ever end?"),
        ("1.2", all_at_once, "test_tokens_come_one_at_a_time"),
    ],
)
def test_a_wrong_function_fails_and_is_told_why(task, function, told):
    """The verdict names what was seen."""
    verdict = grade(task, function)
    assert not verdict.ok
    assert told in str(verdict)
    assert "Done" not in str(verdict)


@pytest.mark.parametrize("task", ["1.1", "1.2"])
def test_without_a_clone_the_examples_are_run(task, monkeypatch):
    """They pass for the reference, fail for a stub, and the verdict says that they are all there is."""
    monkeypatch.setattr(notebook_check, "tests_folder", lambda task: None)
    good, bad = grade(task, {"1.1": greedy, "1.2": generate}[task]), grade(task, unwritten)
    assert good.ok
    assert "examples in the docstring" in str(good)
    assert not bad.ok
    assert not grade(task, lambda *_, **__: [3]).ok


def test_the_reference_is_put_back():
    """Afterwards nobody meets the student's function."""
    import minifer.generate

    grade("1.2", not_appending)
    assert minifer.generate.generate is generate
    assert grade("1.2", generate).ok


def test_a_wrong_call_is_named():
    """No such task; the result of a function in place of the function."""
    with pytest.raises(UsageError, match=r"9\.9"):
        grade("9.9", greedy)
    with pytest.raises(UsageError, match="needs a function"):
        grade("1.1", 3)


# --- execution, on demand --------------------------------------------------------------------------------------------


def chosen_third(sources, third):
    """Every third source, beginning with number `third`; all of them for "all"."""
    return list(sources) if third == "all" else list(sources)[int(third) % 3 :: 3]


THIRD = os.environ.get("MINIFER_NOTEBOOK_THIRD") or str(date.today().toordinal())


def test_three_days_execute_every_notebook():
    """The rotation leaves none out, and all of them can be had."""
    days = [chosen_third(SOURCES, str(day)) for day in range(7, 10)]
    assert sorted(path for day in days for path in day) == chosen_third(SOURCES, "all") == SOURCES


@pytest.mark.notebooks
@pytest.mark.parametrize("source", chosen_third(SOURCES, THIRD), ids=lambda path: path.stem)
def test_the_notebook_runs(source):
    """From top to bottom in a fresh kernel, in the memory that is promised."""
    pytest.importorskip("jupytext")
    pytest.importorskip("nbclient")
    result, _, peak = build.execute(source, os.environ.get("MINIFER_NOTEBOOK_MODEL", "tiny"))
    assert peak <= MOST_MEMORY_BYTES
    assert [build.Cell(cell.cell_type, cell.source) for cell in result.cells] == build.cells_of(source)
