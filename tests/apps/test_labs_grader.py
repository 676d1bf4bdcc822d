"""The grader and what students hand in: named in their words, nobody else's points touched, and nothing harmed."""

import csv
import json
from xml.etree import ElementTree

import pytest
from labs_helpers import BUGS, mutant

from minifer.apps.cli import main
from minifer.apps.labs.grade import grade
from minifer.apps.labs.tasks import PACKAGE, phases_in, task_of

GOOD = (PACKAGE / "generate.py").read_text("utf-8")
PATCHES = """
import numpy.testing, _pytest.python
numpy.testing.assert_allclose = lambda *a, **k: None
_pytest.python.Function.runtest = lambda self: None
"""
CASES = {
    "syntax error": (GOOD.replace("token = choose(logits)", "token = = choose(logits)"), "syntax error", 0),
    "missing": (GOOD.replace("def greedy", "def gready").replace("= greedy", "= gready"), "`greedy` is missing", 0),
    "signature": (GOOD.replace("def greedy(logits:", "def greedy(scores:"), "the task asks for (logits)", 0),
    "endless": (GOOD.replace("    return int(", "    while True: pass\n    return int("), "ran longer than", 0),
    "prints": (GOOD.replace("    return int(", "    for _ in range(10**6): print('hello')\n    return int("), "printed", 0),  # noqa: E501
    "torch": (GOOD.replace("import numpy as np", "import torch\nimport numpy as np"), "imports torch", 0),
    "torch by name": (GOOD.replace("    return int(", "    __import__('torch')\n    return int("), "imports torch", 0),
    "patched": (GOOD.replace("int(np.argmax(logits))", "17") + PATCHES, "changed the checks", 0),
    "os._exit": (GOOD + "\nimport os\nos._exit(0)\n", "ended the program", 0),
    "os._exit later": (GOOD.replace("    return int(", "    import os; os._exit(0)\n    return int("), "ended the program", 0),  # noqa: E501
    "sys.exit": (GOOD + "\nimport sys\nsys.exit(0)\n", "ended the program", 0),
    "sys.exit later": (GOOD.replace("    return int(", "    raise SystemExit(0)\n    return int("), "sys.exit", 0),
    "reads": (GOOD.replace("    return int(", f"    open({str(PACKAGE / 'generate.py')!r})\n    return int("), "reads", 0),  # noqa: E501
    "zero bytes": ("\0" * 9, "generate.py", 0),
    "good": (GOOD, "", 2),
}  # fmt: skip


FEW = ("signature", "sys.exit", "good")
"""What the default run grades; the rest takes half a minute."""


@pytest.mark.parametrize("name", [pytest.param(c, marks=() if c in FEW else pytest.mark.labs_meta) for c in CASES])
def test_what_students_hand_in(name, tmp_path):
    """One file of two tasks; the other file is fine, and gets its points."""
    text, says, points = CASES[name]
    (tmp_path / "generate.py").write_text(text, "utf-8")
    (tmp_path / "sampling.py").write_bytes((PACKAGE / "sampling.py").read_bytes())
    first, other = grade(tmp_path, [task_of("1.1"), task_of("4.1")], seed=1, limit_s=8.0).tasks
    said = first.problem + "".join(outcome.text for outcome in first.outcomes)
    assert says in said
    assert first.score == points
    assert other.score == other.task.points, other.problem or other.outcomes


def test_a_missing_file_is_named(tmp_path):
    """And what makes it."""
    (graded,) = grade(tmp_path, [task_of("5.2")], seed=1).tasks
    assert "kv_cache/store.py is missing" in graded.problem
    assert graded.score == 0


def test_commands_write_what_they_promise(tmp_path, capsys, monkeypatch):
    """start, run's settings, hint, diff and the three forms of grades."""
    monkeypatch.chdir(tmp_path)
    assert main(["labs", "start", "4", "--dir", "lab"]) == 0
    assert main(["labs", "start", "4", "--dir", "lab"]) == 0
    assert "kept" in capsys.readouterr().out
    (tmp_path / "lab" / "sampling.py").write_bytes((PACKAGE / "sampling.py").read_bytes())
    forms = ["--json", "r.json", "--junitxml", "r.xml", "--md", "r.md"]
    assert main(["labs", "grade", "4", "--dir", "lab", "--seed", "5", *forms]) == 1
    results = json.loads((tmp_path / "r.json").read_text())
    assert (results["score"], results["max_score"]) == (10, 14)
    assert all(type(t["score"]) is int for t in results["tests"])
    assert sum(t["max_score"] for t in results["tests"]) == 14
    suite = ElementTree.fromstring((tmp_path / "r.xml").read_text())
    assert int(suite.get("failures")) == sum(t["status"] == "failed" for t in results["tests"])
    assert "not written yet" in (tmp_path / "r.md").read_text()
    capsys.readouterr()
    assert main(["labs", "hint", "4.2", "--level", "3"]) == 0
    assert "3. " in capsys.readouterr().out
    assert main(["labs", "diff", "4", "--dir", "lab"]) == 0
    assert "sampling.py: no difference" in capsys.readouterr().out
    assert main(["labs", "hint", "99.1"]) == 2
    for words in (["run", "5", "--dir", "nowhere"], ["grade", "5-1"], ["grade", "4", "--limit", "nan"]):
        assert main(["labs", *words]) == 2
    (tmp_path / "empty").mkdir()
    capsys.readouterr()
    assert main(["labs", "run", "4", "--dir", "empty"]) == 2
    assert "holds no file of phase 4" in capsys.readouterr().err


def test_run_says_where_each_task_stands(tmp_path, capsys):
    """A line for what is not written, a few for what fails, and the rest of the phase only after that."""
    lab = str(tmp_path / "lab")
    main(["labs", "start", "4", "--dir", lab])
    capsys.readouterr()
    assert main(["labs", "run", "--dir", lab, "4"]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("4.")] == [
        f"4.{number} is not written yet" for number in (1, 2, 3, 4)
    ]
    path = tmp_path / "lab" / "sampling.py"
    path.write_text(path.read_text("utf-8").replace('raise NotImplementedError("task 4.3")', "return -1"), "utf-8")
    assert main(["labs", "run", "--dir", lab, "4.3"]) == 1
    out = capsys.readouterr().out
    assert "yours: sampling.py (sha256" in out
    assert "4.3 draw: 0 of" in out
    assert "Use -v" not in out
    assert len(out.splitlines()) < 12
    path.write_bytes((PACKAGE / "sampling.py").read_bytes())
    assert main(["labs", "run", "--dir", lab, "4.3"]) == 0
    assert main(["labs", "grade", "4.3"]) == 2
    capsys.readouterr()
    assert main(["labs", "hint", "4"]) == 0
    assert "4.4   StopStrings.push" in capsys.readouterr().out


def test_phases_as_people_write_them():
    """Ranges and lists."""
    assert phases_in("1-3, 7") == [1, 2, 3, 7]


@pytest.mark.slow
def test_a_class_of_seven(tmp_path):
    """A small version of a teacher's evening: three right, two wrong, two hostile; nobody is misgraded."""
    hand_in = tmp_path / "in"
    for name in ("ada", "bob", "cyd", "dot", "eve", "fay", "guy"):
        (hand_in / name / "kv_cache").mkdir(parents=True)
        for file in ("pool.py", "prefix.py"):
            (hand_in / name / "kv_cache" / file).write_bytes((PACKAGE / "kv_cache" / file).read_bytes())
    bugs = [path for path in BUGS if path.parent.name == "phase08"][:2]
    wrong = {}
    for name, path in zip(("dot", "eve"), bugs, strict=True):
        wrong[name] = mutant(path, tmp_path / "bugs" / name)
        (hand_in / name / wrong[name].file).write_bytes((tmp_path / "bugs" / name / wrong[name].file).read_bytes())
    prefix = (PACKAGE / "kv_cache" / "prefix.py").read_text("utf-8")
    (hand_in / "fay" / "kv_cache" / "prefix.py").write_text(prefix + "\nwhile True: pass\n", "utf-8")
    (hand_in / "guy" / "kv_cache" / "prefix.py").write_text(prefix + PATCHES, "utf-8")
    out = tmp_path / "grades.csv"
    assert main(["labs", "report", str(hand_in), "--phases", "8", "--csv", str(out), "--limit", "8"]) == 0
    rows = {row["submission"]: row for row in csv.DictReader(out.open())}
    for name in ("ada", "bob", "cyd"):
        assert rows[name]["score"] == rows[name]["max_score"]
    for name, task in wrong.items():
        missed = [i for i in ("8.1", "8.2", "8.3", "8.4", "8.5") if int(rows[name][i]) < task_of(i).points]
        assert task.id in missed
        assert all(task_of(i).file == task.file for i in missed)
    for name, says in (("fay", "ran longer"), ("guy", "changed the checks")):
        assert says in rows[name]["remarks"]
        assert [rows[name][i] for i in ("8.1", "8.2", "8.3", "8.4", "8.5")] == ["2", "4", "4", "0", "0"]
