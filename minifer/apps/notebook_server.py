"""A real `minifer serve` for a notebook, on loopback and a free port, which ends when the notebook does.

However it does: by `stop()`, by an error in a cell, or because somebody killed the kernel. The server is the child of a
small guardian process that reads from a pipe and gets nothing; when the notebook's end of the pipe is closed, for
whatever reason, the operating system says so, and the guardian ends the server.

    notebook --pipe--> guardian (python -m minifer.apps.notebook_server ...) --> minifer serve ...
"""

import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from minifer.errors import UsageError

SERVED = re.compile(r"is served at (http://\S+)")
PATIENCE_S = 15.0
"""How long the server may take to finish what it does before it is killed."""


@dataclass
class NotebookServer:
    """A running server: its address, and the way to end it. May be used with `with`."""

    url: str
    guardian: "subprocess.Popen[str]"
    said: deque[str] = field(default_factory=lambda: deque(maxlen=50))

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return self.guardian.poll() is None

    def stop(self) -> None:
        """End it, and wait until it has ended. May be called twice."""
        if self.guardian.stdin is not None and not self.guardian.stdin.closed:
            self.guardian.stdin.close()
        self.guardian.wait()

    def __enter__(self) -> "NotebookServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_server(model: str, *options: str) -> NotebookServer:
    """Serve `model` on any free port of this machine; returns when it answers. Raises UsageError with what it said.

    `options` are those of `minifer serve`.
    """
    serve = [sys.executable, "-m", "minifer", "serve", model, "--port", "0", "--log", "off", *options]
    guardian = subprocess.Popen(
        [sys.executable, "-m", "minifer.apps.notebook_server", *serve],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    server = NotebookServer("", guardian)
    assert guardian.stderr is not None
    for line in guardian.stderr:
        server.said.append(line.rstrip())
        if found := SERVED.search(line):
            server.url = found.group(1).rstrip("/;")
            break
    else:
        server.stop()
        raise UsageError("the server did not start: " + " ".join(server.said)[-500:])
    threading.Thread(target=lambda: server.said.extend(guardian.stderr or ()), daemon=True).start()
    return server


def guard(command: Sequence[str]) -> int:
    """Run `command` until it ends, or until there is nobody left at the other end of standard input."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def wait_for_the_end() -> None:
        while sys.stdin.read(1):
            pass
        child.terminate()
        try:
            child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            child.kill()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1:]))
