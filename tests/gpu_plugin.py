"""`pytest --gpu --results FILE.json`: what ran on which GPU, how it ended, and what it measured.

Tests marked `gpu` are skipped where there is none, with the reason. `MINIFER_REQUIRE_GPU=1` forbids that: no GPU is an
error before the first test, and a test that skips itself all the same fails. A test that has something to tell asks for
the fixture `measured`: `measured("decode tok/s", 812.4, model="135M")` asserts nothing and lands in the file.
"""

import os
from pathlib import Path

import pytest

from minifer.device import why_no_gpu

REQUIRED = "MINIFER_REQUIRE_GPU"


class GpuPlugin:
    """The hooks, and what they have seen so far."""

    def __init__(self, asked_for: bool, results: str | None) -> None:
        """`asked_for`: the run has `--gpu`. `results` is the file's name, if one is wanted."""
        self.asked_for, self.results = asked_for, results
        self.reason = why_no_gpu() if asked_for else None
        self.tests: dict[str, dict] = {}
        self.measurements: list[dict] = []

    def pytest_collection_modifyitems(self, items):
        """Without a GPU its tests say why they do not run."""
        for item in items:
            if self.reason and item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=f"no GPU: {self.reason}"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        """A skipped test of the GPU is a failed one where the GPU is required."""
        report = yield
        if report.skipped and item.get_closest_marker("gpu") and self.asked_for and required():
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            report.outcome, report.longrepr = "failed", f"{REQUIRED}=1 forbids skipping: {reason}"
        return report

    def pytest_runtest_logreport(self, report):
        """Remember how each test ended, and why if not well."""
        if report.when == "call" or report.outcome != "passed":
            entry = {"outcome": report.outcome, "seconds": round(report.duration, 4)}
            if report.outcome != "passed":
                entry["why"] = str(report.longrepr)[-2000:]
            self.tests[report.nodeid] = entry

    @pytest.fixture
    def measured(self, request):
        """Record a number beside the test that found it."""

        def record(name, value, **more):
            self.measurements.append({"test": request.node.nodeid, "name": name, "value": value, **more})

        return record

    def pytest_sessionfinish(self):
        """Write the file."""
        if self.results:
            from minifer.apps.testing.gpu_record import (
                environment,
                write_record,
            )  # not above: the core is tested without apps

            record = {"kind": "tests", "environment": environment(), "tests": self.tests}
            write_record(Path(self.results), record | {"measurements": self.measurements})


def required() -> bool:
    """Whether this run must not do without a GPU."""
    return os.environ.get(REQUIRED) == "1"


def register(config: pytest.Config) -> None:
    """Called by `conftest.py`. Raises a usage error where a GPU is required and there is none."""
    plugin = GpuPlugin(config.getoption("--gpu"), config.getoption("--results"))
    if required() and plugin.reason:
        raise pytest.UsageError(f"{REQUIRED}=1, but {plugin.reason}")
    if plugin.results and config.getoption("numprocesses", None):
        raise pytest.UsageError("--results is the record of one process: leave out -n")
    config.pluginmanager.register(plugin, "minifer-gpu")
