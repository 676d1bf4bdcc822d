"""The sum that `.ci/run` closes with: every test once, and nothing that failed may get lost."""

import subprocess
import sys

import house
import pytest

CASES = "<testsuites><testsuite>{}</testsuite></testsuites>"
PASSED = '<testcase classname="a" name="{}"/>'
SKIPPED = '<testcase classname="a" name="{}"><skipped/></testcase>'
FAILED = '<testcase classname="a" name="{}"><failure/></testcase>'


@pytest.fixture
def totals(tmp_path):
    """Run `totals.py` on lanes given as `name=(status, cases)`; returns the exit status and the last line."""

    def run(**lanes):
        lines = []
        for name, (status, cases) in lanes.items():
            lines.append(f"{name} {status} 1")
            if cases is not None:
                (tmp_path / f"{name}.xml").write_text(CASES.format("".join(cases)), encoding="utf-8")
        (tmp_path / "lanes.txt").write_text("\n".join(lines), encoding="utf-8")
        script = [sys.executable, str(house.ROOT / ".ci" / "totals.py"), str(tmp_path)]
        result = subprocess.run(script, capture_output=True, text=True)
        return result.returncode, result.stdout.splitlines()[-1]

    return run


def test_a_test_counts_once(totals):
    """Skipped in one lane and run in another: it ran."""
    first = [PASSED.format("x"), SKIPPED.format("y"), SKIPPED.format("z")]
    second = [PASSED.format("y"), PASSED.format("x")]
    assert totals(readme=(0, first), model=(0, second)) == (0, "2 passed, 0 failed, 1 skipped")


def test_a_failure_anywhere_is_a_failure(totals):
    """It may have passed elsewhere, before or after."""
    lanes = {"one": (1, [FAILED.format("x")]), "two": (0, [PASSED.format("x")])}
    assert totals(**lanes) == (1, "0 passed, 1 failed, 0 skipped")
    assert totals(**dict(reversed(lanes.items()))) == (1, "0 passed, 1 failed, 0 skipped")


def test_lanes_without_tests_count_as_one(totals):
    """Lint and types have no JUnit file."""
    assert totals(lint=(0, None), types=(1, None)) == (1, "1 passed, 1 failed, 0 skipped")


def test_a_lane_that_died_is_a_failure(totals):
    """pytest ended with an error of its own although every test it reported had passed."""
    assert totals(readme=(3, [PASSED.format("x")])) == (1, "1 passed, 1 failed, 0 skipped")


def test_no_tests_is_not_success(totals):
    """A lane that collected nothing is skipped, and a run that ran nothing has failed."""
    assert totals(notebooks=(5, [])) == (1, "0 passed, 0 failed, 1 skipped")
    assert totals(model=("skipped", None)) == (1, "0 passed, 0 failed, 1 skipped")
