"""Fetching files through the clients that this machine already has, in a child process that is kept in bounds.

A package client knows the proxies, mirrors and certificates of this machine, so it does the talking. What a program
that starts it has to see to is here: that it ends (a limit on its time, and on how long nothing may arrive), that it
is gone when we are stopped, that all it writes lies in one folder, and that this folder is removed whatever happens.

Not here: which model comes from where, and whether what arrived is right. See `minifer/hub.py`.
"""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from minifer.errors import DownloadError
from minifer.formats.atomic import temporary_name

ATTEMPT_LIMIT_S = 1800.0  # one attempt, whatever it does
SILENCE_LIMIT_S = 90.0  # ... and how long nothing may arrive
HUB_SILENCE_LIMIT_S = 15.0  # offline, the hub's client would go on trying for 23 s before it says so
POLL_S = 0.2
STALE_S = 86400.0  # what an attempt that was killed left behind is swept away after a day


def package_command(requirement: str, work: Path) -> list[str]:
    """Unpack one package, without its dependencies, into `work / "target"`: by pip, or by uv where pip is absent.

    Raises DownloadError where neither is installed.
    """
    options = ["--no-deps", "--only-binary", ":all:", "--target", str(work / "target"), "--quiet", requirement]
    if importlib.util.find_spec("pip"):
        bounded = ["--timeout", "15", "--retries", "2", "--no-input", "--no-compile", "--disable-pip-version-check"]
        return [sys.executable, "-m", "pip", "install", *bounded, *options]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable, "--cache-dir", str(work / "uv"), *options]
    raise DownloadError("the package client: neither pip nor uv is installed here")


def run_client(command: list[str], who: str, work: Path, report: Callable[[], None], *, silence_s: float) -> None:
    """Run a client to its end, calling `report` meanwhile.

    Raises DownloadError when it fails, takes more than ATTEMPT_LIMIT_S, or writes nothing for `silence_s` seconds.
    However this function is left, Ctrl-C included, the client is not running any more.
    """
    with (work / "messages").open("wb") as messages:
        client = _start(command, work, messages)
        try:
            started = heard = time.monotonic()
            size = 0
            while client.poll() is None:
                now, new_size = time.monotonic(), _total_bytes(work)
                size, heard = new_size, now if new_size != size else heard
                if now - started > ATTEMPT_LIMIT_S or now - heard > silence_s:
                    raise DownloadError(f"{who}: gave up after {now - started:.0f} s without a result")
                report()
                time.sleep(POLL_S)
        finally:
            if client.poll() is None:
                client.kill()
            client.wait()
    if client.returncode:
        raise DownloadError(f"{who}: {_last_words(work / 'messages') or f'exit status {client.returncode}'}")


def _start(command: list[str], work: Path, messages: BinaryIO) -> "subprocess.Popen[bytes]":
    """Start a client whose temporary files lie in `work`: on the same disk, visible for progress, gone afterwards."""
    temporary = work / "tmp"
    temporary.mkdir(exist_ok=True)
    overrides = {"TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)}
    overrides |= {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}  # both contradict --target
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, env={**os.environ, **overrides}
        )
    except OSError as error:
        raise DownloadError(f"{command[0]} could not be started: {error.strerror}") from None


def _last_words(messages: Path) -> str:
    """The line of a client's output that says most: its last error, or else its last line."""
    lines = [line.strip() for line in messages.read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [""])[-1][:300].rstrip(".")


def _files(work: Path) -> Iterator[int]:
    """Sizes of all files below `work`; the client may delete one between two looks."""
    for folder, _, names in os.walk(work):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.path.getsize(os.path.join(folder, name))


def largest_file(work: Path) -> int:
    """Size in bytes of the largest file below `work`: how far a download of one large file has come."""
    return max(_files(work), default=0)


def _total_bytes(work: Path) -> int:
    return sum(_files(work))


@contextlib.contextmanager
def work_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target`, hence on the same disk, that is gone afterwards whatever happens."""
    work = temporary_name(target)
    work.mkdir(parents=True)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove work folders that an attempt left which was ended by force, more than a day ago."""
    for leftover in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > STALE_S:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
