"""What all tests share: phases from folder names, opt-in flags, and the models they run on.

* A test under `tests/phase05_kv_cache/` carries the marker `phase05`; `pytest -m phase05` runs that phase and no more.
* What is slow, or needs something a laptop may lack, carries one of the markers in `FLAGS` and is skipped, with the
  reason, unless its flag is given. Everything under `tests/torture/` is slow.
* The default run is offline and uses the bundled `tiny` model.
"""

import hashlib
import os
import re
from collections import Counter
from pathlib import Path

# Before NumPy is loaded: on matrices as small as the tests' a second BLAS thread only costs waiting (97 s against 65).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gpu_plugin
import hypothesis
import numpy as np
import pytest

import minifer  # noqa: F401 (in a lab folder it is here that the student's files take their place)

ROOT = Path(__file__).resolve().parent.parent

#: flag (and marker, with _ for -) -> what it asks for
FLAGS = {
    "slow": "fuzzing, soaks and long comparisons",
    "model": "the SmolLM2-135M weights (98 MB, fetched once)",
    "peers": "other engines installed beside minifer",
    "gpu": "an NVIDIA GPU with CuPy",
    "browser": "a headless Chromium",
    "ray": "Ray",
    "notebooks": "Jupyter, and minutes of time",
    "labs-meta": "the checks of the lab graders themselves",
}

# Hypothesis looks for new counterexamples on a developer's machine and repeats itself exactly in CI.
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add one flag per opt-in kind of test."""
    group = parser.getgroup("minifer")
    for flag, needs in FLAGS.items():
        group.addoption(f"--{flag}", action="store_true", default=False, help=f"also run tests that need {needs}")
    group.addoption("--results", metavar="FILE", help="write what ran, on which GPU, and what it measured, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, so that a misspelt one is an error."""
    for flag, needs in FLAGS.items():
        config.addinivalue_line("markers", f"{_marker(flag)}: needs {needs}; run with --{flag}")
    for number in range(13):
        config.addinivalue_line("markers", f"phase{number:02}: tests of phase {number:02}, by folder")
    config.addinivalue_line("markers", "task(number): the lab task that this test checks")
    gpu_plugin.register(config)


def pytest_report_header() -> list[str]:
    """Whose code runs: the reference's, or a student's, file by file."""
    lab = os.environ.get("MINIFER_LAB", "off")
    if lab == "off":
        return ["minifer: the reference"]
    files = sorted(
        p
        for p in Path(lab).rglob("*")
        if p.suffix in (".py", ".cu") and (ROOT / "minifer" / p.relative_to(lab)).is_file()
    )
    lines = [f"  {p.relative_to(lab)}  sha256 {hashlib.sha256(p.read_bytes()).hexdigest()[:12]}" for p in files]
    return [f"minifer: YOUR code from {lab}, the reference for every other file", *lines]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m phase05` and no more: what lies elsewhere cannot have that marker, so it is not even loaded."""
    if not re.fullmatch(r"phase\d\d", config.option.markexpr or ""):
        return None
    folders = [*(ROOT / "tests").glob(f"{config.option.markexpr}_*")]
    near = any(f.is_relative_to(collection_path) or collection_path.is_relative_to(f) for f in folders)
    return None if near else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their folder, and skip what was not asked for."""
    for item in items:
        _mark_by_folder(item)
        for flag in FLAGS:
            if item.get_closest_marker(_marker(flag)) and not config.getoption(_option(flag)):
                item.add_marker(pytest.mark.skip(reason=f"needs --{flag}"))
                break


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped and why, as counts; a student at a task of the labs has no use for that."""
    if os.environ.get("MINIFER_LAB", "off") != "off":
        return
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[text.removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section("not run", sep="-")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5} {reason}")


def _marker(flag: str) -> str:
    return flag.replace("-", "_")


def _option(flag: str) -> str:
    return f"--{flag}"


def _mark_by_folder(item: pytest.Item) -> None:
    parts = item.path.relative_to(ROOT).parts if item.path.is_relative_to(ROOT) else ()
    for part in parts:
        if phase := re.match(r"phase\d\d(?=_)", part):
            item.add_marker(phase.group())
    if parts[:2] == ("tests", "torture"):
        item.add_marker("slow")


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers for the tests of a lab task: a grader sets another seed than the student has seen."""
    return np.random.default_rng(int(os.environ.get("MINIFER_LAB_SEED", "0")))


@pytest.fixture(scope="session")
def tiny_path() -> Path:
    """The folder of the bundled model: 4 layers, heads 6/2, in Hugging Face's layout."""
    return ROOT / "minifer" / "data" / "tiny"


@pytest.fixture(scope="session")
def golden_path() -> Path:
    """The folder of reference values that other implementations computed once (`tests/make/`)."""
    return ROOT / "tests" / "golden"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2-135M GGUF file, fetched on first use. Only for tests marked `model`."""
    from minifer import hub
    from minifer.errors import DownloadError

    try:
        return hub.locate("smollm2-135m").path
    except DownloadError as error:
        pytest.skip(f"the model cannot be had here: {error}")


@pytest.fixture(scope="session")
def test_data() -> Path:
    """A folder of public files too large for the repository (rank files, other tokenizers): MINIFER_TEST_DATA."""
    folder = os.environ.get("MINIFER_TEST_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("MINIFER_TEST_DATA names no folder")
    return Path(folder)
