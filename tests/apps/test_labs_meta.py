"""The graders themselves: a stub scores 0, the reference all, a bug fails its task, and the student's code is run."""

import ast
import doctest
import importlib
import subprocess
import sys

import httpx
import pytest
from labs_helpers import BUGS, PYTHON_TASKS, bug, grade_each, mutant, with_first_lines

from minifer.apps.labs import folders
from minifer.apps.labs import tasks as lab_tasks
from minifer.apps.labs.runs import can_fork
from minifer.apps.labs.stubs import stub
from minifer.apps.labs.tasks import PACKAGE, ROOT, all_tasks, find
from minifer.apps.testing.kernel_cpu import why_no_compiler

ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1"}
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
    """A function that raises as soon as it is called: every test of its task hears of it, and nothing is scored."""
    labs = []
    for task in PYTHON_TASKS:
        path = tmp_path / task.id / task.file
        path.parent.mkdir(parents=True)
        path.write_text(with_first_lines(task.file, {task.function: f'raise KeyError("sentinel {task.id}")'}), "utf-8")
        labs.append((task.id, tmp_path / task.id, task, None))
    for name, graded in grade_each(labs, tmp_path / "work").items():
        assert not graded.problem
        assert [o.name for o in graded.outcomes if f"sentinel {name}" not in o.text] == [], f"task {name} is not called"
        assert graded.score == 0


KERNEL_BUGS = sorted((ROOT / "tests" / "bugs" / "phase09").glob("swiglu_*.py"))
needs_compiler = pytest.mark.skipif(why_no_compiler() is not None, reason=str(why_no_compiler()))


def kernel_lab(folder, text):
    """A lab with nothing but this kernel."""
    path = folder / "ops" / "kernels" / "swiglu.cu"
    path.parent.mkdir(parents=True)
    path.write_text(text, "utf-8")
    return folder


@needs_compiler
@pytest.mark.labs_meta
def test_the_kernel_of_a_lab_is_compiled_and_graded(tmp_path):
    """The stub compiles and scores nothing; each planted fault loses points, by a number that is wrong."""
    task, file = lab_tasks.task_of("9.1"), PACKAGE / "ops" / "kernels" / "swiglu.cu"
    texts = {"stub": stub(task.file, [task])}
    for path in KERNEL_BUGS:
        facts = bug(path)
        texts[path.stem] = file.read_text("utf-8").replace(facts["OLD"], facts["NEW"])
    labs = [(name, kernel_lab(tmp_path / name, text), task, None) for name, text in texts.items()]
    graded = grade_each(labs, tmp_path / "work")
    assert not any(one.problem for one in graded.values())
    assert [name for name, one in graded.items() if one.score == task.points] == []
    assert graded["stub"].score == 0
    assert len(KERNEL_BUGS) >= 2


KERNEL_ENGINE = """
from minifer import LLM
with LLM("tiny", device="strict", num_blocks=4, block_size=4, max_num_seqs=1, max_num_batched_tokens=8) as llm:
    llm.generate(["a"])
"""


@needs_compiler
def test_the_engine_on_a_device_compiles_the_students_kernel(tmp_path):
    """One that says so when it is compiled."""
    lab = kernel_lab(tmp_path / "lab", "#error this is the kernel of the lab\n")
    env = ENVIRONMENT | {"MINIFER_LAB": str(lab)}
    result = subprocess.run(
        [sys.executable, "-c", KERNEL_ENGINE], env=env, capture_output=True, text=True, cwd=tmp_path
    )
    assert result.returncode != 0
    assert "this is the kernel of the lab" in result.stderr, result.stderr[-2000:]


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

CALLED = {
    *("2.2", "2.4", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "4.1", "4.2", "4.3", "4.4", "5.1", "5.2"),
    *("7.1", "7.3", "7.4", "8.1", "8.2", "8.3", "8.4", "8.5"),
}
"""What the engine calls on its way from a prompt to an answer."""


@pytest.fixture
def noting(tmp_path):
    """A lab in which every task's function writes its number and its process into a file; and that file."""
    lab, log = tmp_path / "lab", tmp_path / "log"
    for file in {task.file for task in PYTHON_TASKS}:
        mine = [task for task in PYTHON_TASKS if task.file == file]
        path = lab / file
        path.parent.mkdir(parents=True, exist_ok=True)
        note = 'open({!r}, "a").write("{} " + str(__import__("os").getpid()) + "\\n")'
        path.write_text(with_first_lines(file, {t.function: note.format(str(log), t.id) for t in mine}), "utf-8")
    return lab, log


def test_the_engine_and_a_child_process_run_the_students_files(tmp_path, noting):
    """The engine runs two processes away."""
    lab, log = noting
    script, env = tmp_path / "engine.py", ENVIRONMENT | {"MINIFER_LAB": str(lab)}
    script.write_text(ENGINE, "utf-8")
    result = subprocess.run([sys.executable, script, "parent"], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    assert CALLED - set(log.read_text().split()) == set()


SERVED = CALLED - {"7.1", "8.2"} | {"10.1", "10.2"}
"""What a server calls for a stream of one answer: no report is made of it, and no block is shared."""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_server_and_its_replicas_run_the_students_files(tmp_path, noting):
    """Router and events in the server's process, the engine in that of a replica."""
    lab, log = noting
    command = [sys.executable, "-m", "minifer", "serve", "tiny", "--device", "cpu", "--port", "0", "--num-blocks", "64"]
    env = ENVIRONMENT | {"MINIFER_LAB": str(lab)}
    process = subprocess.Popen(command, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        while "is served at" not in (line := process.stderr.readline()):
            assert line, "it did not start"
        url = next(word for word in line.split() if word.startswith("http"))
        body = {"model": "tiny", "prompt": "Once upon a time there was a little cat " * 3, "stream": True}
        body |= {"max_tokens": 6, "temperature": 1.0, "top_k": 20, "top_p": 0.9, "stop": ["zzz"]}
        reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60, trust_env=False)
        assert reply.status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=30)
    notes = [line.split() for line in log.read_text().splitlines()]
    assert SERVED - {number for number, _ in notes} == set()
    own = str(process.pid)
    assert {pid == own for number, pid in notes if number == "10.2"} == {True}
    assert {pid == own for number, pid in notes if number == "3.6"} == {False}


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
    module = importlib.import_module(task.module)
    examples = doctest.DocTestParser().get_doctest(contract, dict(vars(module)), task.id, None, 0)
    assert examples.examples, f"task {task.id} shows no example"
    assert len(contract.partition(">>>")[0]) > 40
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.DocTestRunner(optionflags=flags).run(examples).failed == 0


def test_a_process_that_knows_the_reference_does_not_fork(tmp_path, monkeypatch):
    """Its children would have the reference's modules already, and grade those: then a bug would get full points."""
    monkeypatch.setitem(sys.modules, "minifer.generate", sys)
    assert not can_fork()
    path = next(p for p in BUGS if p.stem == "generate_swallows_the_end")
    task = mutant(path, tmp_path / "lab")
    (tmp_path / "work" / "it").mkdir(parents=True)
    graded = grade_each([("it", tmp_path / "lab", task, None)], tmp_path / "work")["it"]
    assert not graded.problem
    assert graded.score < task.points
