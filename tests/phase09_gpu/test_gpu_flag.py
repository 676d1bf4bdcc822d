"""`pytest --gpu --results FILE`: skips say why, a required GPU that is missing is an error, and the record is whole."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import gpu_plugin
import pytest

from minifer.device import why_no_gpu
from tests.house import ROOT

TEST = "tests/phase09_gpu/test_on_gpu.py::test_every_kernel_gives_what_float64_gives[cuda-embed-float16]"


def run(*words, **environment):
    """pytest in a process of its own, on one test that needs a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TEST, *words]
    env = os.environ | environment
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
def test_without_a_gpu_the_record_says_why(tmp_path):
    """The outcome and the reason, the environment, and a file that is there as a whole."""
    path = tmp_path / "r.json"
    assert run("--gpu", "--results", str(path), MINIFER_REQUIRE_GPU="0").returncode == 0
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["kind"] == "tests"
    assert record["environment"]["gpu"] is None
    assert record["environment"]["why_no_gpu"] == why_no_gpu()
    assert record["tests"][TEST]["outcome"] == "skipped"
    assert "no GPU" in record["tests"][TEST]["why"]


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
def test_a_required_gpu_that_is_missing_is_an_error(monkeypatch):
    """Before the first test, in one line."""
    monkeypatch.setenv("MINIFER_REQUIRE_GPU", "1")
    config = SimpleNamespace(getoption={"--gpu": True, "--results": None}.get)
    with pytest.raises(pytest.UsageError) as error:
        gpu_plugin.register(config)
    assert str(error.value) == f"MINIFER_REQUIRE_GPU=1, but {why_no_gpu()}"


@pytest.mark.parametrize(("required", "outcome"), [("1", "failed"), ("0", "skipped")])
def test_a_test_that_skips_itself_fails_where_the_gpu_is_required(monkeypatch, required, outcome):
    """Whatever its reason: a machine that was lent for this must not come back with skips."""
    monkeypatch.setenv("MINIFER_REQUIRE_GPU", required)
    plugin = gpu_plugin.GpuPlugin(True, None)
    item = SimpleNamespace(get_closest_marker=lambda name: name == "gpu")
    report = SimpleNamespace(skipped=True, outcome="skipped", longrepr=("file", 1, "Skipped: no bfloat16"))
    hook = plugin.pytest_runtest_makereport(item)
    next(hook)
    with pytest.raises(StopIteration) as stop:
        hook.send(report)
    assert stop.value.value.outcome == outcome
    assert ("forbids skipping: Skipped: no bfloat16" in str(report.longrepr)) == (required == "1")


def test_what_is_measured_is_kept(measured, request):
    """Beside the test that found it."""
    measured("a number", 3.5, unit="tok/s")
    plugin = request.config.pluginmanager.getplugin("minifer-gpu")
    assert plugin.measurements[-1] == {
        "test": request.node.nodeid, "name": "a number", "value": 3.5, "unit": "tok/s"
    }  # fmt: skip
