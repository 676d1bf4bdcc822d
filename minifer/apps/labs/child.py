"""The child process that runs one task's tests on a student's file, under limits. This is where student code runs.

The parent forks (or starts `python -m minifer.apps.labs.child JOB`), so nothing a student writes happens in the process
that counts the points. The child gets a time limit and a limit on what it prints, notes each test's outcome as it
ends, and closes with *canaries*, tests that must fail: if one of them passes, something has changed the checks.

What this does not stop: code written to cheat that knows this file could write its own outcomes, since it runs in the
process that notes them. It does not keep such code from your files or your network either. For hostile code, grade
in a container, on a read-only copy.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

FORBIDDEN = ("torch", "tensorflow", "jax", "transformers", "vllm", "llama_cpp", "tokenizers", "tiktoken", "keras",
             "sentencepiece", "onnxruntime", "mlx", "sglang")  # fmt: skip
"""Packages that do what a lab asks for."""

OUTPUT_LIMIT = 1 << 20
"""Bytes that a task may print."""

MEMORY_LIMIT = 8 << 30
"""Bytes of address space, so that an endless list ends before the machine does."""

MESSAGE = 600
"""Letters of a failure that are passed on."""


class Notes:
    """The pytest plugin of a graded task: selects its tests, and notes each outcome in a file as it happens."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.wanted = {(os.path.realpath(path), name) for path, name in job["tests"]}
        self.file = open(job["results"], "a", encoding="utf-8")  # noqa: SIM115 (lives as long as the process)
        self.canary = os.path.realpath(job["canary"])

    def note(self, kind: str, name: str, text: str = "") -> None:
        """One line of JSON."""
        self.file.write(json.dumps({"kind": kind, "name": name, "text": text[:MESSAGE]}) + "\n")
        self.file.flush()

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:  # noqa: ARG002
        """Keep this task's tests, then the canaries."""
        mine = [i for i in items if (os.path.realpath(i.path), i.originalname) in self.wanted]
        last = [i for i in items if os.path.realpath(i.path) == self.canary]
        items[:] = mine + last

    def pytest_collectreport(self, report: Any) -> None:
        """A test file that cannot be imported says why."""
        if report.failed:
            self.note("import", report.nodeid, last_words(str(report.longrepr)))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Passed and failed, once a test."""
        if report.when == "call" or report.failed or report.skipped:
            canary = "labs_canary" in report.nodeid
            name = report.nodeid.rpartition("::")[2].partition("[")[0]
            self.note(f"canary {report.outcome}" if canary else report.outcome, name, words_of(report))


def words_of(report: Any) -> str:
    """What a failed test has to say."""
    if report.skipped:
        return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash is not None else str(report.longrepr or "")


def last_words(text: str) -> str:
    """The lines of a traceback that carry the error."""
    errors = [line[2:].strip() for line in text.splitlines() if line.startswith("E ")]
    return "\n".join(errors[:4]) or text[-MESSAGE:]


def main(job: dict[str, Any]) -> None:
    """Run the tests of one job. Never returns: the process ends here."""
    try:
        _limit(job)
        os.environ |= {"MINIFER_LAB": job["lab"], "MINIFER_LAB_SEED": str(job["seed"])}
        for name in [n for n in sys.modules if n.split(".")[0] == "minifer"]:
            del sys.modules[name]
        sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "Overlay"]
        sys.path[:0] = [job["root"], str(Path(job["root"]) / "tests")]
        importlib.import_module("minifer")
        _watch(job)
        _run(job)
    finally:
        sys.stdout.flush()
        os._exit(0)


def _limit(job: dict[str, Any]) -> None:
    if hasattr(os, "setsid") and job["fork"]:
        os.setsid()
        out = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (out, 1), (out, 2)):
            os.dup2(source, target)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stdout
    try:
        import resource
    except ImportError:  # Windows: the parent's clock is the only limit
        return
    largest = OUTPUT_LIMIT * (
        64 if job["answers"][0].endswith(".cu") else 1
    )  # a compiler writes more than a test prints
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _watch(job: dict[str, Any]) -> None:
    """An audit hook, which cannot be taken out again: no other engine, and no look at the answer."""
    answers = {os.path.realpath(answer) for answer in job["answers"] if not answer.endswith(".cu")}
    folders = {os.path.join(os.path.dirname(answer), "__pycache__", Path(answer).stem) for answer in answers}

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "import" and args[0].split(".")[0] in FORBIDDEN:
            raise ImportError(f"imports {args[0].split('.')[0]}: a lab is written with Python and NumPy alone")
        if event == "open" and answers and isinstance(args[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(args[0]))
            compiled = os.path.join(os.path.dirname(path), os.path.basename(path).partition(".")[0])
            if path in answers or compiled in folders:
                raise PermissionError("reads the reference's file of this task: write your own")

    sys.addaudithook(hook)


def _run(job: dict[str, Any]) -> None:
    import pytest

    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # whatever else is installed has no part in a grade
    files = [*dict.fromkeys(path for path, _ in job["tests"]), job["canary"]]
    options = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=no", "-q", "--color=no", "-o", "addopts="]
    options += ["--import-mode=importlib", "--tb=native", "-c", str(Path(job["root"]) / "pyproject.toml")]
    notes = Notes(job)
    try:
        pytest.main([*files, *options], plugins=[notes])
    except SystemExit:
        notes.note("exit", "", "sys.exit")
    notes.note("end", "")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as handle:
        given = json.load(handle)
    main(given)
