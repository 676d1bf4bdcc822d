"""The last records of the replicas' traces, and whoever wants the next ones.

    replica --lines--> Tape --> a ring per replica     what /trace shows
                            --> lookers                those who read /trace/stream
                            --> files                  `--trace`: everything

A looker who is too slow loses records and is told how many; the engine waits for nobody.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

RING = 2000
"""Records kept per replica."""
BACKLOG = 1000
"""Records that a looker may be behind."""


class Tape:
    """The last records of every replica's trace, and whoever wants the next ones. `files` get everything."""

    def __init__(self, num_replicas: int, files: Sequence[Any] = (), ring: int = RING) -> None:
        self.headers = [""] * num_replicas
        self.rings: list[deque[str]] = [deque(maxlen=ring) for _ in range(num_replicas)]
        self.lookers: list[set[Looker]] = [set() for _ in range(num_replicas)]
        self.files = files

    def take(self, replica: int, lines: list[str]) -> None:
        """Records that a replica has sent, each with its line end."""
        if lines[0].startswith('{"kind":"header"'):
            self.headers[replica] = lines[0]
            if self.files and self.rings[replica]:  # one was restarted: a file has one header
                self._to_file(replica, lines[1:])
            else:
                self._to_file(replica, lines)
            lines = lines[1:]
        else:
            self._to_file(replica, lines)
        self.rings[replica].extend(lines)
        for looker in self.lookers[replica]:
            looker.push(lines)

    def close(self) -> None:
        """Bring the files to the disk."""
        for file in self.files:
            file.close()
        self.files = ()

    def _to_file(self, replica: int, lines: list[str]) -> None:
        if self.files:
            self.files[replica].write("".join(lines))


class Looker:
    """One reader of the live trace."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines, self.lost, self.news, self.over = deque(lines), 0, asyncio.Event(), False
        self.news.set()

    def end(self) -> None:
        """The server shuts down: nothing more will come."""
        self.over = True
        self.news.set()

    def push(self, lines: Sequence[str]) -> None:
        """More records; beyond BACKLOG they are lost."""
        room = max(0, BACKLOG - len(self.lines))
        self.lines.extend(lines[:room])
        self.lost += len(lines) - min(len(lines), room)
        self.news.set()
