"""One HTTP request whose answer is stamped when its bytes arrive.

A stamp belongs to the moment at which the operating system hands bytes over, and `data_received` is the first line of
Python to run then. An HTTP library reads through several layers and a queue first: with 150 streams of 25 events a
second, between the server's `write` and the stamp lay 1 to 2 ms here and 4 to 5 through httpx, and at the 99th
percentile 2 to 3 against 16 to 20 (two cores, server in a process of its own). It has limits of its own, too: 100
connections, 5 s of patience. So this file speaks the little HTTP that is needed: one POST or GET per connection, an
answer with a length, in chunks, or up to the end of the connection. It knows no redirects, proxies or compression. A
request's clock starts before its connection is made.

Bytes can be cut anywhere: in the middle of a line, of a character, of the length of a chunk. Everything here is
therefore an incremental parser that is fed pieces.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from minifer.errors import MiniferError, UsageError

MOST_HEAD_BYTES = 1 << 16
PATIENCE_S = 30.0
"""For small questions such as `/v1/models`; a streamed answer may take as long as it likes."""


class WireError(MiniferError):
    """A server could not be reached, or what it sent is not HTTP or breaks off."""


@dataclass(frozen=True)
class Address:
    """Where a server is: the parts of a URL, `path` without a slash at its end."""

    host: str
    port: int
    path: str = ""
    tls: bool = False

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Take `http://host:port/path` apart; `host:port` alone is http. Raises UsageError.

        >>> Address.parse("http://127.0.0.1:8000/v1/"), Address.parse("[::1]:9").host
        (Address(host='127.0.0.1', port=8000, path='/v1', tls=False), '::1')
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port, host = parts.port, parts.hostname
        except ValueError as error:
            raise UsageError(f"{url!r} is not a URL: {error}") from error
        if parts.scheme not in ("http", "https") or not host:
            raise UsageError(f"{url!r} is not the URL of a server: write http://HOST:PORT")
        return cls(
            host, port or (443 if parts.scheme == "https" else 80), parts.path.rstrip("/"), parts.scheme == "https"
        )

    @property
    def authority(self) -> str:
        """Host and port as the Host header wants them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass
class Head:
    """Status and headers (names in lower case) of an answer; status 0 until they have arrived."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)


class Answer:
    """An incremental parser of one HTTP/1.1 answer: fed bytes, it hands the body on as it comes.

    >>> body = []
    >>> answer = Answer(body.append)
    >>> answer.feed(b"HTTP/1.1 200 OK\\r\\nTransfer-Enc")
    >>> answer.feed(b"oding: chunked\\r\\n\\r\\n3\\r\\nab")
    >>> answer.feed(b"c\\r\\n0\\r\\n\\r\\n")
    >>> answer.head.status, body, answer.complete
    (200, [b'ab', b'c'], True)
    """

    def __init__(self, on_body: Callable[[bytes], None]) -> None:
        self.head, self.complete = Head(), False
        self._on_body, self._buffer = on_body, b""
        self._left: int | None = None  # bytes of the body or chunk still to come; None: up to the end
        self._state = "head"

    def feed(self, data: bytes) -> None:
        """Take what has arrived. Raises WireError for what is not HTTP."""
        self._buffer += data
        steps = {"head": self._read_head, "body": self._read_body, "size": self._read_size, "gap": self._read_gap,
                 "trailer": self._read_trailer}  # fmt: skip
        while not self.complete and steps[self._state]():
            pass

    def end(self) -> None:
        """The connection was closed. Raises WireError if something was still to come."""
        if self._state == "body" and self._left is None:
            self.complete = True
        if not self.complete:
            raise WireError("the server closed the connection in the middle of its answer"
                            if self.head.status else "the server closed the connection without an answer")  # fmt: skip

    def _line(self, end: bytes) -> bytes | None:
        line, found, rest = self._buffer.partition(end)
        if not found:
            if len(self._buffer) > MOST_HEAD_BYTES:
                raise WireError("the server sent no HTTP")
            return None
        self._buffer = rest
        return line

    def _read_head(self) -> bool:
        lines = self._line(b"\r\n\r\n")
        if lines is None:
            return False
        first, *rest = lines.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
            raise WireError(f"the server sent no HTTP: {first[:60]!r}")
        if words[1].startswith("1"):
            return True  # 100 Continue and the like: the real head follows
        pairs = (line.partition(":") for line in rest)
        self.head.status = int(words[1])
        self.head.headers |= {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._begin_body(self.head.headers)
        return True

    def _begin_body(self, headers: Mapping[str, str]) -> None:
        length = headers.get("content-length", "")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            self._state = "size"
            return
        self._state = "body"
        if length.isdecimal():
            self._left = int(length)
        self.complete = self._left == 0 or self.head.status in (204, 304)

    def _read_size(self) -> bool:
        line = self._line(b"\r\n")
        if line is None:
            return False
        try:
            self._left = int(line.partition(b";")[0], 16)
        except ValueError:
            raise WireError(f"a chunk's length is {line[:20]!r}") from None
        self._state = "body" if self._left else "trailer"
        return True

    def _read_body(self) -> bool:
        take = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
        if not take:
            return False
        data, self._buffer = self._buffer[:take], self._buffer[take:]
        if self._left is not None:
            self._left -= take
            chunked = "chunked" in self.head.headers.get("transfer-encoding", "").lower()
            self._state = "gap" if self._left == 0 and chunked else "body"
            self.complete = self._left == 0 and not chunked
        self._on_body(data)
        return True

    def _read_gap(self) -> bool:
        """The line end behind a chunk."""
        if self._line(b"\r\n") is None:
            return False
        self._state = "size"
        return True

    def _read_trailer(self) -> bool:
        line = self._line(b"\r\n")
        self.complete = line == b""
        return line is not None


class _Exchange(asyncio.Protocol):
    """Sends one request; reads the clock for every piece that arrives."""

    def __init__(self, request: bytes, on_body: Callable[[bytes, float], None], now: Callable[[], float]) -> None:
        self.answer = Answer(self._pass_on)
        self.done: asyncio.Future[Head] = asyncio.get_running_loop().create_future()
        self._request, self._on_body, self._now, self._stamp = request, on_body, now, 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._stamp = self._now()
        self._guard(lambda: self.answer.feed(data))
        if self.answer.complete:
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and not self.done.done():
            self.done.set_exception(WireError(f"the connection broke: {error}"))
        self._guard(self.answer.end)
        self._finish()

    def _pass_on(self, data: bytes) -> None:
        self._on_body(data, self._stamp)

    def _guard(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # a bug in a reader would otherwise vanish into the event loop
            self._finish(error)

    def _finish(self, error: Exception | None = None) -> None:
        if self._transport is not None:
            self._transport.close()
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(self.answer.head)


async def exchange(address: Address, method: str, path: str, body: bytes, headers: Mapping[str, str],
                   on_body: Callable[[bytes, float], None], now: Callable[[], float]) -> Head:  # fmt: skip
    """Send one request on a connection of its own; `on_body(bytes, time)` gets the body as it arrives.

    Returns status and headers when the answer is complete. Raises WireError. Cancelling it closes the connection,
    by which a server knows that nobody is listening any more.
    """
    lines = {"Host": address.authority, "Connection": "close", "Content-Length": str(len(body)),
             "Content-Type": "application/json", **headers}  # fmt: skip
    head = f"{method} {address.path}{path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.create_connection(
            lambda: _Exchange(head.encode("latin-1") + b"\r\n" + body, on_body, now),
            address.host,
            address.port,
            ssl=ssl.create_default_context() if address.tls else None,
        )
    except OSError as error:
        raise WireError(f"no server at {address.authority}: {error.strerror or error}") from error
    try:
        return await protocol.done
    finally:
        transport.abort() if not protocol.done.done() else transport.close()


async def fetch(address: Address, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body of a GET. Raises WireError, also if the answer takes longer than PATIENCE_S."""
    parts: list[bytes] = []
    now = asyncio.get_running_loop().time
    question = exchange(address, "GET", path, b"", headers or {}, lambda data, _: parts.append(data), now)
    try:
        head = await asyncio.wait_for(question, PATIENCE_S)
    except TimeoutError:
        raise WireError(f"{address.authority}{path} did not answer within {PATIENCE_S:g} s") from None
    return head.status, b"".join(parts)
