"""The servers of a comparison, of which one runs and the others stand still.

Idle servers are not idle: they poll, they spin while waiting for work, they hold threads that the scheduler has to look
at. So a server outside its turn gets SIGSTOP, with all its child processes, and SIGCONT when its turn comes; its
weights stay in memory and its caches warm. A server that was started here can instead be started for each turn and
ended after it (`restart`), which also frees its memory.

Whatever happens, no server is left standing still: those that somebody else started go on, those started here end.
"""

import contextlib
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from minifer.apps.loadgen.client import Server
from minifer.apps.loadgen.wire import WireError
from minifer.errors import UsageError

PATIENCE_S = 20.0
"""How long a server may take to end, and all its processes to stand still."""

LOOK_S = 0.5
"""How often to look whether a server that is being started still runs."""

CAN_STOP = hasattr(signal, "SIGSTOP")


@dataclass
class Peer:
    """One server of the comparison. `pid` is somebody else's process, `command` one that is started here."""

    name: str
    server: Server
    model: str | None = None
    pid: int | None = None
    command: str | None = None
    log: Path | None = None
    restart: bool = False
    about: dict[str, Any] = field(default_factory=dict)
    _process: "subprocess.Popen[bytes] | None" = None

    @property
    def idle(self) -> str:
        """What becomes of it outside its turn, in words."""
        if self.command is not None and self.restart:
            return "started for its turns only"
        if self.pid is None and self.command is None:
            return "left alone: it shares the machine with the others"
        return "stopped (SIGSTOP)"

    async def begin_turn(self, ready_s: float) -> None:
        """Let it run, and wait until it answers. Raises WireError or UsageError."""
        if self.command is not None and self._process is None:
            self._process = _start(self.command, self.log)
        self.wake()
        stop = time.monotonic() + ready_s
        while True:
            try:
                await self.server.wait_until_ready(LOOK_S)
                return
            except WireError as error:
                gone = self._process is not None and self._process.poll() is not None
                if gone or time.monotonic() >= stop:
                    raise WireError(f"{self.name}: {'it has ended; ' if gone else ''}{error}{self._why()}") from error

    def end_turn(self) -> None:
        """Make it stand still, or end it."""
        if self.command is not None and self.restart:
            self.end()
            return
        processes = self._all()
        for process in processes:
            process.suspend()
        stop = time.monotonic() + PATIENCE_S
        while time.monotonic() < stop and not all(_stands(process) for process in processes):
            time.sleep(0.01)

    def wake(self) -> None:
        """Let it go on, children first."""
        for process in reversed(self._all()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def end(self) -> None:
        """The end of the comparison: let it go on; end it if it was started here."""
        self.wake()
        if self._process is None:
            return
        processes = self._all()
        self._process.terminate()
        _, left = psutil.wait_procs(processes, timeout=PATIENCE_S)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._process = None

    def _all(self) -> list[psutil.Process]:
        """Its process and all below it; none if it is not ours to stop or has ended."""
        pid = self._process.pid if self._process is not None else self.pid
        if pid is None:
            return []
        try:
            process = psutil.Process(pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _why(self) -> str:
        """The last line that a server started here has said."""
        if self.log is None or not self.log.exists():
            return ""
        lines = self.log.read_text("utf-8", errors="replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"; the last line of {self.log}: {last[:200]}"


def _stands(process: psutil.Process) -> bool:
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _start(command: str, log: Path | None) -> "subprocess.Popen[bytes]":
    """Start a command line in a session of its own, so that Ctrl-C is ours; what it says goes to its log."""
    out: IO[bytes] | int = log.open("ab") if log is not None else subprocess.DEVNULL
    try:
        return subprocess.Popen(shlex.split(command), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                start_new_session=True)  # fmt: skip
    except (OSError, ValueError) as error:
        raise UsageError(f"{command!r} cannot be started: {error}") from error
    finally:
        if not isinstance(out, int):
            out.close()


@contextlib.contextmanager
def standing(peers: list[Peer]) -> Iterator[None]:
    """All of them stand still at first and none of them at the end, whatever happens between."""
    for peer in peers:
        if peer.pid is not None and not psutil.pid_exists(peer.pid):
            raise UsageError(f"--pid {peer.name}={peer.pid}: there is no such process")
        if not CAN_STOP and (peer.pid is not None or (peer.command is not None and not peer.restart)):
            raise UsageError("this system cannot stop a process: use --start with --restart")
    try:
        for peer in peers:
            peer.end_turn()
        yield
    finally:
        for peer in peers:
            peer.end()


async def describe(peer: Peer) -> dict[str, Any]:
    """What a server says about itself: model, version. Asked during its turn."""
    found: dict[str, Any] = {"model": peer.model or (await peer.server.models())[0]}
    for path, keys in (("/version", ("version",)), ("/api/version", ("version",)), ("/props", ("build_info",))):
        with contextlib.suppress(WireError):
            answer = await peer.server.get_json(path)
            if isinstance(answer, dict) and (words := [str(answer[key]) for key in keys if key in answer]):
                return found | {"version": words[0]}
    return found | {"version": None}
