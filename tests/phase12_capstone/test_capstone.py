"""The capstone as a game: the same for everybody, no field of a plan without its rule, and a score that can tell."""

import json

import pytest

from minifer.apps.simulate import capstone
from minifer.apps.simulate.capstone import BASELINE, Plan, Waiting, main, patience, plan, score, workload
from minifer.errors import UsageError

FEW = 60


def test_a_score_depends_on_plan_and_seed_alone():
    """To the last bit; another seed is other traffic."""
    assert score(BASELINE, "a", FEW) == score(BASELINE, "a", FEW)
    assert score(BASELINE, "a", FEW) != score(BASELINE, "b", FEW)
    assert workload("a", FEW) == workload("a", FEW) != workload("b", FEW)


def test_the_score_tells_plans_apart():
    """On hidden traffic: a known better plan, the baseline, and one that is worse."""
    worse, baseline, better = (score(p, "tell", 120).goodput for p in (Plan(chunk=8192, seats=4), BASELINE, plan()))
    assert 2 * worse < baseline
    assert better > 1.3 * baseline


def test_everybody_is_counted():
    """Kept, late, slow: nobody is lost, and who kept both is in neither list."""
    found = score(BASELINE, "count", FEW)
    assert len(found.finished) == found.requests == FEW
    assert max(found.late_first, found.slow_after) <= FEW - found.kept <= found.late_first + found.slow_after
    assert found.goodput == pytest.approx(found.kept / found.duration)


@pytest.mark.parametrize(
    ("field", "value"),
    [("chunk", 32), ("chunk", 9000), ("chunk", 512.0), ("seats", 0), ("seats", True), ("block_size", 7), ("order", 3)],
)
def test_what_the_rules_forbid_is_named(field, value):
    """With the value."""
    with pytest.raises(UsageError, match=field):
        Plan(**{field: value})


def test_the_order_sees_no_answers():
    """Arrival and prompt, nothing else; and nobody waits for ever behind newer ones."""
    seen = []
    score(Plan(order=lambda waiting: seen.append(waiting) or waiting.arrival), "order", FEW)
    assert {type(w) for w in seen} == {Waiting}
    assert Waiting.__slots__ == ("arrival", "prompt_tokens")
    assert patience(Waiting(5.0, 100)) < patience(Waiting(4.0, 3000)) < patience(Waiting(6.0, 100))


GOOD = "from minifer.apps.simulate.capstone import Plan\ndef plan():\n    return Plan(chunk=512)\n"
BAD = {
    "none.py": "x = 1\n",
    "other.py": "def plan():\n    return 5\n",
    "raises.py": "def plan():\n    return 1 / 0\n",
    "order.py": GOOD.replace("chunk=512", "order=lambda waiting: waiting.answer"),
    "rules.py": GOOD.replace("chunk=512", "seats=999"),
}
WHY = {"none.py": "should define", "other.py": "not int", "raises.py": "ZeroDivisionError", "order.py": "answer"}


def test_the_teachers_command(tmp_path, monkeypatch, capsys):
    """The best first; what is wrong with a file is said beside it, and disturbs no other."""
    monkeypatch.setattr(capstone, "REQUESTS", FEW)
    monkeypatch.setattr(capstone.score, "__defaults__", (FEW,))
    for name, text in {"good.py": GOOD, **BAD}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("MINIFER_CAPSTONE_SEED", "secret")
    assert main(["--json", *map(str, sorted(tmp_path.glob("*.py")))]) == 1
    found = json.loads(capsys.readouterr().out)
    rows = {row["plan"].rpartition("/")[2]: row for row in found["scores"]}
    assert found["seed"] == "secret"
    assert rows["good.py"]["goodput"] > rows["baseline"]["goodput"] > 0 == rows["rules.py"]["goodput"]
    assert [row["goodput"] for row in found["scores"]] == sorted((r["goodput"] for r in rows.values()), reverse=True)
    assert all(words in rows[name]["problem"] for name, words in {**WHY, "rules.py": "seats"}.items())
    assert main([str(tmp_path / "good.py"), "--seed", "secret"]) == 0
    assert "good.py" in capsys.readouterr().out
