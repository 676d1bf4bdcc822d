"""Add up what the lanes of `.ci/run` left in a folder: a table of lanes, then one line of totals.

A test that several lanes saw counts once: as failed if it failed anywhere, as passed if it ran anywhere, else as
skipped. A lane without a JUnit file (lint, types) counts as one test. The exit status is 1 if anything failed.
"""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

RANK = {"skipped": 0, "passed": 1, "failed": 2}
NO_TESTS_COLLECTED = "5"


def outcomes_of(report: Path) -> dict[str, str]:
    """The tests of one JUnit file: name -> passed, failed or skipped. An empty or missing file holds none."""
    if not report.exists():
        return {}
    found = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


def outcome_of(status: str) -> str:
    """What a lane's exit status means for the lane as a whole."""
    return "passed" if status == "0" else "skipped" if status in ("skipped", NO_TESTS_COLLECTED) else "failed"


def main(folder: Path) -> int:
    """Print the table and the totals of the lanes in `folder`."""
    totals: dict[str, str] = {}
    for line in (folder / "lanes.txt").read_text(encoding="utf-8").splitlines():
        name, status, seconds, *reason = line.split(" ", 3)
        tests = outcomes_of(folder / f"{name}.xml")
        lane = outcome_of(status)
        if not tests or (lane == "failed" and "failed" not in tests.values()):
            tests[f"lane {name}"] = lane
        for test, outcome in tests.items():
            totals[test] = max(outcome, totals.get(test, "skipped"), key=RANK.__getitem__)
        counts = ", ".join(f"{n} {o}" for o in RANK if (n := list(tests.values()).count(o)))
        print(f"{name:<12}{lane:<9}{int(seconds):5} s   {counts} {' '.join(reason)}".rstrip())
    passed, failed, skipped = (list(totals.values()).count(o) for o in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
