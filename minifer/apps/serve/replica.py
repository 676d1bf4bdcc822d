"""One replica as the server sees it: a process, a pipe, and a thread at each end of it.

The threads exist because a pipe can be used in one portable way only, by blocking. They do nothing but pass on: one
hand-over per step of the engine, not per token.

    event loop --send()--> queue --> writer thread --> pipe --> worker's process
    event loop <--call_soon_threadsafe(on_message)-- reader thread <-- pipe

A replica doesn't restart itself; it says that it has died, and `fleet.py` decides.
"""

import asyncio
import contextlib
import multiprocessing
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from minifer.apps.serve import worker

Message = Any
"""Ready, Failed or Report; None when the replica has died."""


class Replica:
    """A worker's process (or, for tests, a thread) and the pipe to it."""

    def __init__(
        self,
        index: int,
        model: str,
        options: Mapping[str, Any],
        *,
        about: Mapping[str, Any],
        trace: bool = False,
        in_thread: bool = False,
    ) -> None:
        """Nothing is started yet."""
        self.index, self.in_thread = index, in_thread
        self._arguments = (model, dict(options), dict(about), trace)
        self._pipe: Any = None
        self._process: Any = None
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def start(self, on_message: Callable[["Replica", Message], None]) -> None:
        """Start the process. `on_message` is called in the running event loop."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        if self.in_thread:
            self._process = threading.Thread(target=worker.main, args=(theirs, *self._arguments), daemon=True)
        else:
            # Not a daemon: a CPU room starts ranks of its own. The worker ends by itself when the pipe closes.
            self._process = context.Process(target=worker.main, args=(theirs, *self._arguments), daemon=False)
        self._process.start()
        if not self.in_thread:
            theirs.close()  # else the end of the process would not be the end of the pipe
        self._theirs = theirs
        loop = asyncio.get_running_loop()
        self._outbox = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self._pipe, loop, on_message), daemon=True).start()
        threading.Thread(target=self._write, args=(self._pipe, self._outbox), daemon=True).start()

    @property
    def pid(self) -> int | None:
        """The process id; None for a thread."""
        return getattr(self._process, "pid", None)

    def send(self, message: Any) -> None:
        """Hand a command to the worker. One that has died meanwhile is not an error: `on_message` will hear of it."""
        self._outbox.put(message)

    def kill(self) -> None:
        """End the process at once; a thread only loses its pipe."""
        if self._process is not None and not self.in_thread:
            self._process.kill()
        elif self._pipe is not None:
            self._theirs.close()

    def join(self, timeout_s: float) -> bool:
        """Wait for the process to end; whether it did."""
        if self._process is None:
            return True
        self._process.join(timeout_s)
        return not self._process.is_alive()

    @staticmethod
    def _write(pipe: Any, outbox: "queue.SimpleQueue[Any]") -> None:
        """Send until None is to be sent, or nobody is there. A worker in a long step does not read: only this waits."""
        with contextlib.suppress(OSError, ValueError):
            while (message := outbox.get()) is not None:
                pipe.send(message)

    def _read(self, pipe: Any, loop: asyncio.AbstractEventLoop, on_message: Callable[..., None]) -> None:
        """Receive until the pipe ends. Runs in a thread of its own."""
        message: Message = True
        while message is not None:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                message = None
            try:
                loop.call_soon_threadsafe(on_message, self, message)
            except RuntimeError:  # the loop is closed: the server has gone home
                break
        self._outbox.put(None)
        pipe.close()
