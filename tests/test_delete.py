"""The delete test: the core works without its rooms.

A copy of the tree loses `apps/` and the two tuned rooms of `ops/`; phases 01 to 05, 07 and 08 must still pass there.
So nothing below them leans on them, whatever the imports look like.
"""

import os
import re
import shutil
import subprocess
import sys

import house
import pytest

ROOMS = ("cpu", "ranks", "cuda", "cuda_decode", "cuda_launch", "cuda_memory")
DELETED = ("minifer/apps", "minifer/ops/kernels", *(f"minifer/ops/{room}.py" for room in ROOMS))
PHASES = ("01", "02", "03", "04", "05", "07", "08")


@pytest.mark.slow
def test_the_core_stands_without_its_rooms(tmp_path):
    """Phases 01-05, 07 and 08, in a process of their own, in a copy without the rooms."""
    folders = ("minifer", "tests")
    for folder in folders:
        shutil.copytree(house.ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(house.ROOT / "pyproject.toml", tmp_path)
    for name in DELETED:
        path = tmp_path / name
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
    assert not (tmp_path / "minifer" / "apps").exists()
    phases = [str(path) for number in PHASES for path in (tmp_path / "tests").glob(f"phase{number}_*")]
    command = [sys.executable, "-m", "pytest", "-q", *phases]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None, "the phases ran no test"
    assert int(passed[1]) > 0
