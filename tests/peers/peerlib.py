"""What the scripts of this folder share: where peers live, how a step of an installation runs, what is left behind.

A *peer* is another engine, installed in a folder of its own under MINIFER_PEERS (default `~/.cache/minifer-peers`) and
nowhere else: no package of minifer's environment is touched, and deleting the folder removes the peer. A peer that is
ready has a `peer.json` in its folder. That file is all `minifer bench micro --peers` looks for: it names the peer, its
version, the form of model that it loads (`gguf` or `hf`), and the command of its *driver*, which measures on demand.

A driver is started as `COMMAND... MODEL THREADS` and speaks JSON, one line at a time:

    driver:   {"ready": true}
    minifer:  {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "batch": 1, "warmup": false}
    driver:   {"seconds": 0.81}        or    {"error": "why not"}

and ends when its input ends. Everything else that it or its engine says goes to stderr.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent


def home() -> Path:
    """The folder in which peers live; made if it is not there."""
    folder = Path(os.environ.get("MINIFER_PEERS") or Path.home() / ".cache" / "minifer-peers").expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(text: str) -> None:
    """One line of progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    """End the script with one line that says what is wrong and what to do."""
    raise SystemExit(f"error: {text}")


def need(*programs: str) -> None:
    """End with an error if one of the programs is not installed."""
    missing = [p for p in programs if shutil.which(p) is None]
    if missing:
        fail(f"{', '.join(missing)} not found: install a C++ compiler and CMake (Debian: apt install g++ cmake)")


def run(what: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run one step of an installation with its output in `log`; while it runs, its last line is shown on a terminal.

    Ends the script with the tail of the log if the step fails. Ctrl-C ends the step too; the next call goes on from
    what is there.
    """
    say(f"{what} (log: {log})")
    log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with log.open("w", encoding="utf-8", errors="replace") as out:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        )
        try:
            while process.poll() is None:
                time.sleep(0.5)
                _show(log, time.monotonic() - start)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        fail(f"{what} failed with code {process.returncode}. The end of {log}:\n{tail}")
    say(f"  done in {time.monotonic() - start:.0f} s")


def _show(log: Path, seconds: float) -> None:
    """The last line of the log, in place, where somebody is looking."""
    if sys.stderr.isatty():
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 300))
            lines = file.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        print(f"\r\x1b[K  {seconds:5.0f} s  {last[:90]}", end="\r", file=sys.stderr, flush=True)


def make_venv(folder: Path) -> Path:
    """A virtual environment at `folder` (kept if it is one already); its Python.

    To use an environment that exists elsewhere, make `folder` a symbolic link to it.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        say(f"virtual environment: {folder}")
        venv.create(folder, with_pip=True)
    return python


def output_of(command: Sequence[str | Path]) -> str | None:
    """What a short command prints (stdout), or None if it cannot be run or fails."""
    try:
        result = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def finish(folder: Path, name: str, version: str, form: str, python: str | Path, driver: str, **more: Any) -> None:
    """Copy the driver into the peer's folder and write `peer.json`: from now on the peer is installed."""
    shutil.copy(HERE / driver, folder / "driver.py")
    shutil.copy(HERE / "driving.py", folder / "driving.py")
    command = [str(python), str(folder / "driver.py")]
    manifest = {"name": name, "version": version, "form": form, "dtype": "F32", "command": command, **more}
    (folder / "peer.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    say(f"{name} {version} is ready: {folder}")


def main(install: Callable[[], None], folder: str) -> None:
    """The command line of every install script: `install` (the default), or `remove`."""
    words = sys.argv[1:] or ["install"]
    if words == ["install"]:
        install()
    elif words == ["remove"]:
        place = home() / folder
        shutil.rmtree(place, ignore_errors=True)
        say(f"removed {place}")
    else:
        fail(f"usage: python {sys.argv[0]} [install|remove]")
