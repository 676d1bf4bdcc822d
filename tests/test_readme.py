"""The README keeps its promises: two commands that do everything, a first screen, and no dead links."""

import re

import house
import pytest

README = (house.ROOT / "README.md").read_text(encoding="utf-8")
LINES = README.splitlines()
FIRST_SCREEN = "\n".join(LINES[:45])
BASH_BLOCKS = re.findall(r"^```bash\n(.*?)^```$", FIRST_SCREEN, flags=re.M | re.S)


def test_it_is_short():
    """A README that nobody finishes helps nobody."""
    assert len(LINES) <= 150


def test_two_commands_of_one_line():
    """The first screen has exactly two bash blocks, each of one command line that fits."""
    assert len(BASH_BLOCKS) == 2
    for block in BASH_BLOCKS:
        assert block.count("\n") == 1
        assert len(block.strip()) <= 150


def test_the_commands_do_the_job():
    """The first ends in the demo, the second in the tests, and both set themselves up."""
    assert "minifer demo" in BASH_BLOCKS[0].split("&&")[-1]
    assert "pytest" in BASH_BLOCKS[1].split("&&")[-1]
    assert all("venv" in block and "install -e" in block for block in BASH_BLOCKS)


def test_the_transcript_fits():
    """The demo's transcript is at most 20 lines."""
    transcript = re.findall(r"^```text\n(.*?)^```$", FIRST_SCREEN, flags=re.M | re.S)
    assert len(transcript) == 1
    assert transcript[0].count("\n") <= 20


def test_four_doors():
    """Read, Build, Teach and Compare are on the first screen."""
    assert [d for d in ("Read", "Build", "Teach", "Compare") if f"**{d}**" not in FIRST_SCREEN] == []


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_links_lead_somewhere(target):
    """Relative links point to files of the repository."""
    assert (house.ROOT / target).exists()
