"""uvicorn around the application: sockets, patience, and how it ends.

**Patience.** A client that opens a connection and says half a request, or nothing, holds a socket for as long as it
likes, if it may; one that does not read its answer holds the answer. `Connection` gives every request `read_timeout_s`
to arrive, and every client `send_timeout_s` to read on, and cuts the connection otherwise.

**How it ends.** On the first SIGTERM or Ctrl-C no connection is taken any more, and requests under way may finish
until `deadline_s`. What is unfinished then ends with `finish_reason` "abort", so that its client knows that it is not
whole. A second signal ends it at once.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from minifer.apps.serve.service import Service

GRACE_S = 2.0
"""After the deadline: for the last bytes to be written."""


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 connection with a time limit for the arrival of a request, and one for a pause in reading."""

    patience_s = 30.0
    reading_s = 120.0
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client is there: its request has to follow."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, "transport": transport}  # for whoever has to cut it (front.Guard)
        self._late: asyncio.TimerHandle | None = self.loop.call_later(self.patience_s, self._cut)

    def data_received(self, data: bytes) -> None:
        """Some bytes: is a request complete, or does the clock start?"""
        super().data_received(data)
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self._late is not None:
            self._late.cancel()
            self._late = None
        elif not answering and self._late is None:
            self._late = self.loop.call_later(self.patience_s, self._cut)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        for timer in (self._late, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """64 KiB wait to be read by the client."""
        super().pause_writing()
        self._stuck = self._stuck or self.loop.call_later(self.reading_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads."""
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _cut(self) -> None:
        self._late = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn's server, with a deadline for what is under way when it is told to stop."""

    def __init__(self, config: uvicorn.Config, service: Service, deadline_s: float) -> None:
        super().__init__(config)
        self.service, self.deadline_s = service, deadline_s
        self.when_started: Callable[[], object] = bool

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Load, listen, say so. A signal while the model is loaded ends it; so does a model that can't be."""
        start = asyncio.create_task(self.service.start())
        while not start.done() and not self.should_exit:
            await asyncio.wait({start}, timeout=0.1)
        start.cancel()
        await asyncio.wait({start})
        if start.cancelled() or start.exception() is not None:
            self.should_exit = True
            await self.service.close()
            if not start.cancelled():
                start.result()
            return
        await super().startup(sockets)
        self.when_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish or abort by the deadline."""
        self.service.draining = True
        for tape in self.service.tape.lookers if self.service.tape else ():
            for looker in list(tape):
                looker.end()
        abort = asyncio.get_running_loop().call_later(self.deadline_s, self.service.fleet.abort_all)
        try:
            await super().shutdown(sockets)
        finally:
            abort.cancel()
            await self.service.close()


def make_server(
    app: Any, service: Service, *, host: str, port: int, deadline_s: float = 10.0, backlog: int = 2048
) -> Server:
    """A server that is ready to `run()` (or, in a running loop, to `serve()`)."""
    patience = {"patience_s": service.settings.read_timeout_s, "reading_s": service.settings.send_timeout_s}
    connection = type("Connection", (Connection,), patience)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=backlog,
        limit_concurrency=service.settings.max_connections,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=max(1, round(deadline_s + GRACE_S)),
    )
    return Server(config, service, deadline_s)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound before a model is loaded, so that a port that is taken is found out at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
