"""A server that does what a script says: these bytes, at these times. And a clock that tests can rely on.

`VirtualLoop` is an event loop whose time stands still while anything is to be done, and jumps to the next timer when
nothing is. Real sockets work in it, so a client and a `ScriptedServer` in the same loop exchange real bytes, and every
stamp that the client takes is exactly the time in the script.
"""

import asyncio
import json
import selectors
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

IDLE_S = 0.002
"""So long nothing may arrive before the time jumps: loopback needs a few microseconds."""
HANGS_AFTER = 4000

Step = tuple[float, bytes]
"""Bytes, and when they are sent: seconds after the request has arrived."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n"


class _Jumping(selectors.DefaultSelector):
    """Waits a moment for real events; if there are none, moves the loop's time to where it wanted to wait to."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.idle, self.oversleep = 0.0, 0, 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0 if timeout is not None and timeout <= 0 else IDLE_S)
        self.idle = 0 if found or timeout is not None else self.idle + 1
        if self.idle > HANGS_AFTER:
            raise RuntimeError("nothing will ever happen in this loop")
        if not found and timeout:
            self.now += timeout + self.oversleep
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a time of its own, which starts at 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """The time in seconds: as exact as the timers are."""
        return self._jumping.now


def in_virtual_time(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine function in a loop of its own."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def chunk(data: bytes) -> bytes:
    """A chunk of a chunked body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def sse(message: Any) -> bytes:
    """A server-sent event in a chunk of its own."""
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return chunk(f"data: {text}\n\n".encode())


def text_event(text: str, finish: str | None = None) -> bytes:
    """One event of /v1/completions."""
    return sse({"choices": [{"index": 0, "text": text, "finish_reason": finish}]})


def usage_event(output: int, prompt: int = 7, cached: int | None = None) -> bytes:
    """The event that has no choices."""
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return sse({"choices": [], "usage": usage})


def answer(texts: Sequence[tuple[float, str]], end: float | None = None, output: int | None = None,
           **usage: Any) -> list[Step]:  # fmt: skip
    """A whole stream: texts at times, then the finish, the usage and `[DONE]` at `end`."""
    end = texts[-1][0] if end is None and texts else end or 0.0
    steps = [(0.0, HEAD), *[(at, text_event(text)) for at, text in texts], (end, text_event("", "length"))]
    tail = usage_event(len(texts) if output is None else output, **usage)
    return [*steps, (end, tail), (end, sse("[DONE]")), (end, chunk(b""))]


class ScriptedServer:
    """Answers POSTs by `script(number of the request, its body)`; GETs from `pages`. Notes what it was asked.

    `most` is the largest number of POSTs under way at once, `bodies` what was sent, `times` when. A script's last step
    is followed by closing the connection.
    """

    def __init__(self, script: Callable[[int, dict[str, Any]], Sequence[Step]],
                 pages: dict[str, Any] | None = None, port: int = 0) -> None:  # fmt: skip
        self.port = port
        self.script, self.bodies, self.times, self.most, self.level = script, [], [], 0, 0
        self.paths, self.heads = [], []
        self.pages = {"/v1/models": {"data": [{"id": "tiny"}]}, "/api/tags": {"models": [{"name": "tiny"}]}}
        self.pages |= pages or {}
        self.url = ""

    async def __aenter__(self) -> "ScriptedServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(" ", 2)
            if method == "GET":
                writer.write(self._page(path))
                await writer.drain()
                return
            length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
            await self._post(path, head, json.loads(await reader.readexactly(length)), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _page(self, path: str) -> bytes:
        page = self.pages.get(path)
        if page is None:
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        page = page() if callable(page) else page
        body = page.encode() if isinstance(page, str) else json.dumps(page).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def _post(self, path: str, head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        self.bodies.append(body)
        self.paths.append(path)
        self.heads.append(head)
        self.times.append(start)
        self.level += 1
        self.most = max(self.most, self.level)
        try:
            for at, data in self.script(len(self.bodies) - 1, body):
                if (left := start + at - loop.time()) > 0:
                    await asyncio.sleep(left)
                writer.write(data)
                await writer.drain()
        finally:
            self.level -= 1


class ServerThread:
    """The same server in a thread and in real time, for tests of whole commands."""

    def __init__(self, script: Callable[[int, dict[str, Any]], Sequence[Step]], **options: Any) -> None:
        self.server = ScriptedServer(script, **options)
        self._ready, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        assert self._ready.wait(10)
        return self.server

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self.server:
            self._ready.set()
            await self._stop.wait()
