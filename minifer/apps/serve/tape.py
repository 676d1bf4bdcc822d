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
RING_BYTES = 16 << 20
"""And characters: the record of a long prompt is long."""
BACKLOG = 1000
"""Records that a looker may be behind."""
BACKLOG_BYTES = 8 << 20
"""And characters."""


class Tape:
    """The last records of every replica's trace, and whoever wants the next ones. `files` get everything."""

    def __init__(self, num_replicas: int, files: Sequence[Any] = (), ring: int = RING) -> None:
        self.headers = [""] * num_replicas
        self.rings: list[deque[str]] = [deque(maxlen=ring) for _ in range(num_replicas)]
        self.sizes = [0] * num_replicas
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
        self._keep(replica, lines)
        for looker in self.lookers[replica]:
            looker.push(lines)

    def _keep(self, replica: int, lines: list[str]) -> None:
        ring = self.rings[replica]
        for line in lines:
            if len(ring) == ring.maxlen:
                self.sizes[replica] -= len(ring.popleft())
            ring.append(line)
            self.sizes[replica] += len(line)
        while self.sizes[replica] > RING_BYTES:
            self.sizes[replica] -= len(ring.popleft())

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
        self.lines, self.size, self.lost = deque(lines), 0, 0
        self.news, self.over = asyncio.Event(), False
        self.news.set()

    def end(self) -> None:
        """The server shuts down: nothing more will come."""
        self.over = True
        self.news.set()

    def push(self, lines: Sequence[str]) -> None:
        """More records; beyond BACKLOG they are lost."""
        for line in lines:
            if len(self.lines) < BACKLOG and self.size + len(line) <= BACKLOG_BYTES:
                self.lines.append(line)
                self.size += len(line)
            else:
                self.lost += 1
        self.news.set()

    def taken(self) -> list[str]:
        """What has come since the last call."""
        lines, self.size = list(self.lines), 0
        self.lines.clear()
        return lines
