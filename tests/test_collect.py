"""Which tests a command line reaches: `pytest -m phase04` is one phase, and loads no more than that."""

import subprocess
import sys

import house


def test_a_phase_is_loaded_alone():
    """All of its tests, and nothing that would have to be left out again."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "phase04",
        "tests",
    ]
    done = subprocess.run(command, cwd=house.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    names = [line for line in done.stdout.splitlines() if "::" in line]
    files = {line.partition("::")[0] for line in names}
    assert files == {
        path.relative_to(house.ROOT).as_posix() for path in (house.ROOT / "tests").glob("phase04_*/test_*.py")
    }
    assert "deselected" not in done.stdout
