"""Grades as a person, a course platform or a spreadsheet wants them: Markdown, Gradescope's JSON, JUnit, CSV."""

import csv
import io
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from minifer.apps.labs.grade import Grades
from minifer.apps.labs.runs import Graded

MESSAGE_LINES = 6
"""How much of a failed test is shown."""

NOT_STOPPED = (
    "Each task ran in a process of its own, with limits. That does not stop code written to cheat or to do harm: "
    "for hostile submissions grade in a container, on a read-only copy."
)


def gradescope(grades: Grades) -> dict[str, Any]:
    """`results.json` in Gradescope's shape: one entry a test."""
    tests = []
    for graded in grades.tasks:
        for outcome in graded.outcomes:
            text = graded.problem or outcome.text or "passed"
            tests.append(
                {
                    "number": graded.task.id,
                    "name": f"{graded.task.id} {graded.task.function}: {outcome.name}",
                    "score": outcome.score,
                    "max_score": outcome.points,
                    "status": "passed" if outcome.score == outcome.points else "failed",
                    "output": text,
                    "visibility": "visible",
                }
            )
    head = f"{grades.score} of {grades.max_score} points; seed {grades.seed}; {files_of(grades)}"
    return {"score": grades.score, "max_score": grades.max_score, "output": head, "tests": tests}


def files_of(grades: Grades) -> str:
    """Whose code ran."""
    mine = ", ".join(f"{name} (sha256 {digest})" for name, digest in grades.hashes.items()) or "no file"
    text = f"yours: {mine}"
    if grades.replaced:
        broken = "; ".join(f"{file} ({' '.join(why.split())})" for file, why in grades.replaced.items())
        text += f"; for other tasks the reference stood in for {broken}"
    return text


def junit(grades: Grades) -> str:
    """JUnit's XML, as most CI systems read it."""
    suite = ElementTree.Element("testsuite", name=f"minifer labs: {grades.student}")
    failures = 0
    for graded in grades.tasks:
        for outcome in graded.outcomes:
            case = ElementTree.SubElement(suite, "testcase", name=outcome.name)
            case.set("classname", f"task {graded.task.id} {graded.task.function}")
            if outcome.score < outcome.points or graded.problem:
                failures += 1
                text = _printable(graded.problem or outcome.text)
                ElementTree.SubElement(case, "failure", message=text.partition("\n")[0]).text = text
    suite.set("tests", str(sum(len(g.outcomes) for g in grades.tasks)))
    suite.set("failures", str(failures))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _printable(text: str) -> str:
    """XML has no place for control characters."""
    return "".join(c for c in text if c in "\n\t" or c.isprintable())


def words(graded: Graded) -> str:
    """What is to be said of a task in one line: the problem, the first failure, or nothing."""
    text = graded.problem or next((f"{o.name}: {_useful(o.text)}" for o in graded.outcomes if o.text), "")
    return " ".join(text.split())[:200]


def _useful(text: str) -> str:
    """A failure without pytest's advice about its own options."""
    return "\n".join(line for line in text.splitlines() if line.strip() and "Use -v" not in line)


def verdict(graded: Graded) -> str:
    """A task in a few lines: how many of its tests passed, and the first that did not."""
    task, failed = graded.task, [o for o in graded.outcomes if o.score < o.points]
    if graded.problem:
        return (
            graded.problem.removeprefix("task ")
            if graded.problem.startswith("task ")
            else (f"{task.id} {task.function}: {graded.problem}")
        )
    total = len(graded.outcomes)
    head = f"{task.id} {task.function}: {total - len(failed)} of {total} tests passed"
    if not failed:
        return head
    lines = [f"{head}. Start with the first:", f"  {failed[0].name}"]
    lines += [f"    {line}" for line in _useful(failed[0].text).splitlines()[:MESSAGE_LINES]]
    if others := ", ".join(o.name for o in failed[1:]):
        lines.append(f"  also failed: {others}")
    return "\n".join(lines)


def markdown(grades: Grades) -> str:
    """A page for the student."""
    lines = [f"# {grades.student}: {grades.score} of {grades.max_score}", "", files_of(grades) + ".", ""]
    lines += ["| task | function | points | what to look at |", "|---|---|---|---|"]
    for graded in grades.tasks:
        task = graded.task
        text = words(graded).replace("|", "\\|")
        lines.append(f"| {task.id} | `{task.function}` | {graded.score}/{task.points} | {text} |")
    return "\n".join([*lines, "", NOT_STOPPED, ""])


def table(all_grades: Sequence[Grades]) -> str:
    """CSV: one row a submission, one column a task."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ids = [graded.task.id for graded in all_grades[0].tasks] if all_grades else []
    writer.writerow(["submission", "score", "max_score", *ids, "seed", "remarks"])
    for grades in all_grades:
        remarks = "; ".join(f"{g.task.id}: {g.problem}" for g in grades.tasks if g.problem)
        points = [graded.score for graded in grades.tasks]
        writer.writerow([_cell(grades.student), grades.score, grades.max_score, *points, grades.seed,
                         _cell(" ".join(remarks.split()))])  # fmt: skip
    return out.getvalue()


def _cell(text: str) -> str:
    """A text that a spreadsheet doesn't take for a formula."""
    return f"'{text}" if text[:1] in "=+-@" else text
