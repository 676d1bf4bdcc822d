"""What a class needs: a folder for a room without network, and whether a machine can run the course.

The kit holds wheels of minifer and of all it needs to be read, tested and run as notebooks, the default model, the
notebooks, and the two commands that install it. It is made where there is a network, for one platform and one version
of Python: those of the machine that makes it.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from minifer.apps.labs.tasks import ROOT, all_tasks
from minifer.errors import UsageError

INSTALL = """# minifer without a network

Made for {platform}, Python {version}. Copy this folder to the machine, then:

    python -m venv .venv
    .venv/bin/pip install --no-index --find-links wheels "minifer[test,notebooks]"
    export MINIFER_HOME=$PWD/home          # the model lies there already
    cd course && ../.venv/bin/python -m minifer doctor --class
    ../.venv/bin/python -m minifer labs start 1 --dir ../lab
"""


def make(folder: Path) -> list[str]:
    """Fill `folder`. Returns what went in, and what could not be had and why. Raises UsageError without the wheels."""
    folder.mkdir(parents=True, exist_ok=True)
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(wheels), f"{ROOT}[test,notebooks]"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise UsageError(f"the wheels could not be fetched: {last}")
    said = [f"{len(list(wheels.glob('*.whl')))} wheels"]
    ignore = shutil.ignore_patterns("__pycache__", ".git", ".venv", "*.pyc", ".pytest_cache", ".*_cache")
    for name in ("minifer", "tests", "notebooks"):
        shutil.copytree(ROOT / name, folder / "course" / name, ignore=ignore, dirs_exist_ok=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, folder / "course" / name)
    said += ["minifer's source, tests and notebooks", _model(folder)]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "README.md").write_text(INSTALL.format(platform=sys.platform, version=version), encoding="utf-8")
    return said


def _model(folder: Path) -> str:
    from minifer import hub
    from minifer.errors import MiniferError

    try:
        path = hub.locate("smollm2-135m").path
    except MiniferError as error:
        return f"no model: {error}"
    target = folder / "home" / path.relative_to(hub.cache_home())
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copyfile(path, target)
    return f"smollm2-135m, {path.stat().st_size / 1e6:.0f} MB"


Row = tuple[str, bool, str]


def readiness() -> list[Row]:
    """`(what, runs here, why not or how)` for the labs of each phase and for the notebooks."""
    import psutil

    rows: list[Row] = []
    tools = [name for name in ("pytest", "hypothesis") if importlib.util.find_spec(name) is None]
    tests = (ROOT / "tests").is_dir()
    for phase in sorted({task.phase for task in all_tasks()}):
        why = "" if tests else "the tests are not here: work in a clone or in a folder made by `labs export`"
        if tools:
            why = f"needs {' and '.join(tools)}: pip install 'minifer[test]'"
        if phase == 9 and not why and not (shutil.which("g++") or shutil.which("clang++")):
            why = "needs a C++ compiler (g++ or clang++) to run a kernel without a GPU"
        if phase == 10 and not why and importlib.util.find_spec("starlette") is None:
            why = "needs starlette: pip install 'minifer[serve]'"
        rows.append((f"labs, phase {phase:02}", not why, why))
    memory = psutil.virtual_memory().available / 1e9
    jupyter = [name for name in ("ipykernel", "jupyterlab") if importlib.util.find_spec(name) is None]
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        why = f"needs {' and '.join(jupyter)}: pip install 'minifer[notebooks]'" if jupyter else ""
        if memory < 1.5:
            why = f"needs 1.5 GB of free memory, and {memory:.1f} GB are free"
        rows.append((f"notebook {path.stem}", not why, why))
    return rows


def model_row() -> Row:
    """Whether the default model is here, so that a class need not fetch it all at once."""
    from minifer import hub

    here = hub.is_whole(hub.KNOWN["smollm2-135m"])
    return "model smollm2-135m", here, "" if here else "not fetched yet: `minifer models pull smollm2-135m` (98 MB)"
