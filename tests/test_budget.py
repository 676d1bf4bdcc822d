"""The core stays small: lines of code against the budgets, and the README against both.

A budget is a reason to think again, not to write denser lines. After a change: `python tests/house.py --readme`.
"""

import re

import house
import pytest


@pytest.mark.parametrize("budget", house.BUDGETS, ids=lambda b: b.name)
def test_budget(budget):
    """No part of the core outgrows what a reader was promised."""
    assert house.measure(budget) <= budget.lines


def test_the_short_walk_is_short():
    """Nine files, with their docstrings, in an afternoon."""
    assert house.short_walk_lines() <= house.SHORT_WALK_LINES


def test_readme_quotes_the_current_numbers():
    """What the README says about size is true today."""
    readme = (house.ROOT / "README.md").read_text(encoding="utf-8")
    assert house.budgets_in_words() in readme, "run: python tests/house.py --readme"


def test_readme_names_the_short_walk_in_order():
    """The section on the short walk names the nine files as paths, in the order of reading."""
    section = (house.ROOT / "README.md").read_text(encoding="utf-8").split("## The short walk\n")[1].split("\n## ")[0]
    assert re.findall(r"`minifer/([\w/]+\.py)`", section) == list(house.SHORT_WALK)


def test_counting_leaves_out_words():
    """Docstrings, field docstrings, comments and blank lines are free; every line of a long string is not."""
    source = (
        '"""Doc.\n\nMore.\n"""\n\nclass A:\n    "Doc."\n    x: int = 1\n    """Field."""\n\n# c\ns = """a\nb\n"""\n'
    )
    assert house.code_lines(source) == 5
