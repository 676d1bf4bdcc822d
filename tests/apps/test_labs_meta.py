"""The graders themselves: a stub scores 0, the reference all, a bug fails its task, and the student's code is run."""

import ast
import doctest
import importlib
import subprocess
import sys

import pytest
from labs_helpers import BUGS, PYTHON_TASKS, bug, grade_each, mutant, with_first_lines

from minifer.apps.labs import folders
from minifer.apps.labs import tasks as lab_tasks
from minifer.apps.labs.stubs import stub
from minifer.apps.labs.tasks import PACKAGE, ROOT, all_tasks, find

PHASES = sorted({task.phase for task in all_tasks()})


@pytest.fixture(scope="module")
def mutants(tmp_path_factory):
    """All bugs of the bank, each graded on its own task alone."""
    root = tmp_path_factory.mktemp("mutants")
    labs = [(path.stem, root / "lab" / path.stem, mutant(path, root / "lab" / path.stem), None) for path in BUGS]
    return grade_each(labs, root / "work")


@pytest.mark.labs_meta
@pytest.mark.parametrize("path", BUGS, ids=lambda p: p.stem)
def test_a_known_bug_fails_its_task(path, mutants):
    """By a test that failed, not by a file that could not be read."""
    graded = mutants[path.stem]
    assert not graded.problem
    assert graded.score < graded.task.points


def test_every_task_has_two_bugs():
    """Those of kernels are caught elsewhere too (`phase09_gpu`), and are named by kernel."""
    counts = {task.id: 0 for task in PYTHON_TASKS}
    for path in BUGS:
        counts[bug(path)["TASKS"][0]] += 1
    assert min(counts.values()) >= 2


def test_every_task_has_tests_points_and_three_hints():
    """At least as many points as tests, so that none is worth nothing; a docstring is the contract."""
    for task in all_tasks():
        assert 2 <= len(lab_tasks.tests_for(task)) <= task.points, task.id
        assert len(task.hints) == 3
    assert len(all_tasks()) >= 32


@pytest.mark.labs_meta
def test_the_reference_scores_full(tmp_path):
    """Every task, kernels included where there is a compiler."""
    graded = grade_each([(t.id, PACKAGE, t, None) for t in all_tasks()], tmp_path)
    assert {i: g.problem or [o.text for o in g.outcomes if o.text] for i, g in graded.items()
            if g.score != g.task.points} == {}  # fmt: skip


@pytest.mark.parametrize("phase", PHASES)
def test_a_fresh_stub_scores_nothing(phase, tmp_path):
    """And says that it is not written yet."""
    folders.start(phase, tmp_path / "lab")
    tasks = [task for task in all_tasks() if task.phase == phase and task.file.endswith(".py")]
    graded = grade_each([(t.id, tmp_path / "lab", t, None) for t in tasks], tmp_path / "work")
    assert {g.score for g in graded.values()} <= {0}
    assert all("not written yet" in g.problem for g in graded.values())


@pytest.mark.labs_meta
@pytest.mark.parametrize("phase", [p for p in PHASES if p != 9])
def test_a_phase_needs_nothing_later(phase, tmp_path):
    """With the stubs of all later phases in place, the reference still scores full."""
    later = tmp_path / "later"
    later.mkdir()
    for number in PHASES:
        if number > phase:
            folders.start(number, later)
    tasks = [task for task in PYTHON_TASKS if task.phase == phase]
    graded = grade_each([(t.id, PACKAGE, t, later) for t in tasks], tmp_path / "work")
    assert {i: g.problem or [o.text for o in g.outcomes] for i, g in graded.items() if g.score != g.task.points} == {}


@pytest.mark.labs_meta
def test_it_is_the_students_function_that_is_called(tmp_path):
    """A function that raises as soon as it is called: each test of its task hears of it."""
    labs = []
    for task in PYTHON_TASKS:
        path = tmp_path / task.id / task.file
        path.parent.mkdir(parents=True)
        path.write_text(with_first_lines(task.file, {task.function: f'raise KeyError("sentinel {task.id}")'}), "utf-8")
        labs.append((task.id, tmp_path / task.id, task, None))
    for name, graded in grade_each(labs, tmp_path / "work").items():
        assert any(f"sentinel {name}" in outcome.text for outcome in graded.outcomes), name


ENGINE = """
import subprocess, sys
if sys.argv[1] == "parent":
    sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode)
from minifer import LLM, SamplingParams
with LLM("tiny", num_blocks=24, block_size=4, max_num_seqs=4, max_num_batched_tokens=16) as llm:
    params = SamplingParams(temperature=1.0, top_k=20, top_p=0.9, max_tokens=12, stop=["zzz"], seed=3, n=2)
    llm.generate(["once upon a time there was a"] * 4, params)
    llm.generate(["once upon a time there was a"], params)
"""

CALLED = {"2.2", "2.4", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "4.1", "4.2", "4.3", "4.4", "5.1", "5.2", "7.1", "7.3",  # noqa: E501
          "7.4", "8.1", "8.2", "8.3", "8.4", "8.5"}  # fmt: skip
"""What the engine calls on its way from a prompt to an answer."""


def test_the_engine_and_a_child_process_run_the_students_files(tmp_path):
    """Every function writes its task's number into a file; the engine runs two processes away."""
    lab, log, script = tmp_path / "lab", tmp_path / "log", tmp_path / "engine.py"
    for file in {task.file for task in PYTHON_TASKS}:
        mine = [task for task in PYTHON_TASKS if task.file == file]
        path = lab / file
        path.parent.mkdir(parents=True, exist_ok=True)
        notes = {t.function: f'open({str(log)!r}, "a").write("{t.id}\\n")' for t in mine}
        path.write_text(with_first_lines(file, notes), "utf-8")
    script.write_text(ENGINE, "utf-8")
    env = {"MINIFER_LAB": str(lab), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, script, "parent"], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    assert CALLED - set(log.read_text().split()) == set()


def test_stubs_keep_signature_and_docstring():
    """Nothing but bodies differs from the reference, and the example that some stubs show in addition."""
    for task in PYTHON_TASKS:
        text = stub(task.file, [task])
        assert f'raise NotImplementedError("task {task.id}")' in text
        known = (PACKAGE / task.file).read_text("utf-8") + task.example
        assert all(line.strip() in known for line in text.splitlines() if "task " + task.id not in line)


@pytest.mark.parametrize("task", PYTHON_TASKS, ids=lambda task: task.id)
def test_a_stub_says_what_is_wanted_and_shows_it(task):
    """Its docstring has a contract and an example, and the example is true of the reference."""
    node = find(ast.parse(stub(task.file, [task])), task.function)
    contract = ast.get_docstring(node)
    module = importlib.import_module("minifer." + task.file.removesuffix(".py").replace("/", "."))
    examples = doctest.DocTestParser().get_doctest(contract, dict(vars(module)), task.id, None, 0)
    assert examples.examples, f"task {task.id} shows no example"
    assert len(contract.partition(">>>")[0]) > 40
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.DocTestRunner(optionflags=flags).run(examples).failed == 0
