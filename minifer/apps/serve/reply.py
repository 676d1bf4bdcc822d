"""From a request that arrives to an answer that is written, and what happens if the client leaves in between.

Handlers are coroutines `(service, call, body) -> dict, coroutine of a dict, Text or Events`. Around each of them stands
an `Endpoint`: it reads the body within a limit of bytes and of time, runs the handler, and at the same time listens for
the client's leaving. Whoever leaves ends the handler, and leaving a `Group` gives the blocks back.

The status of a stream is decided by its first event: until the first token is there, an error is still an error with a
status of its own.
"""

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minifer.apps.serve.answers import Group
from minifer.apps.serve.messages import Job, Piece
from minifer.apps.serve.protocol import ApiError, parse_json
from minifer.apps.serve.service import Service

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

CLIENT_LEFT = 499
"""Never sent; nginx's number for the log."""


def as_json(value: Any) -> bytes:
    """One line of JSON in UTF-8. Line ends inside of texts are escaped, so that the line is one."""
    return _encode(value).encode("utf-8", "replace")


def sse(value: Any) -> bytes:
    """One server-sent event: `data: `, the value as one line of JSON, and a blank line.

    >>> sse({"n": 1})
    b'data: {"n":1}\\n\\n'
    """
    return b"data: " + as_json(value) + b"\n\n"


@dataclass
class Call:
    """One HTTP request, and what the log will say of it: counts and times, never a text."""

    arrival: float = field(default_factory=time.perf_counter)
    path_name: str = ""  # what the path names, e.g. the model of /v1/models/NAME
    query: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def jobs(self, jobs: Sequence[Job]) -> None:
        """These were sent off."""
        self.facts |= {"jobs": len(jobs), "prompt_tokens": sum(len(job.prompt_ids) for job in jobs)}

    def routed(self, group: Group) -> None:
        """This is where they went."""
        self.facts["replicas"] = [stream.replica for stream in group.streams]
        self.facts["reason"] = group.streams[0].reason

    def ended(self, piece: Piece) -> None:
        """An answer has ended."""
        self.facts["finish"] = piece.finish_reason
        if piece.costs is not None:
            self.facts["output_tokens"] = self.facts.get("output_tokens", 0) + piece.costs.output_tokens
            self.facts.setdefault("queue_ms", _ms(piece.costs.queue_s))
            self.facts.setdefault("prefill_ms", _ms(piece.costs.prefill_s))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


@dataclass
class Events:
    """An answer in parts."""

    parts: AsyncIterator[bytes]
    media_type: str


@dataclass
class Text:
    """An answer that is not JSON."""

    body: bytes
    media_type: str


Handler = Callable[[Service, Call, dict[str, Any]], Awaitable[Any]]


class Endpoint:
    """An ASGI application around a handler."""

    def __init__(self, service: Service, handler: Handler) -> None:
        self.service, self.handler = service, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or stop when the client has left."""
        call: Call = scope["minifer.call"]
        call.path_name = scope.get("path_params", {}).get("name", "")
        call.query = scope.get("query_string", b"").decode("latin-1")
        body = await self._body(scope, receive)
        work = asyncio.create_task(self._work(call, body, send))
        left = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                call.facts["status"] = CLIENT_LEFT
        finally:
            left.cancel()
            work.cancel()  # nothing happens to what is done
            await asyncio.wait({work})
        if not work.cancelled():
            work.result()

    async def _body(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        """Read and parse the body. Only so many bytes of bodies may be on their way at once."""
        if scope["method"] != "POST":
            return {}
        service = self.service
        declared = declared_length(scope, service.settings.max_body)
        with service.bytes_taken(declared):
            try:
                async with asyncio.timeout(service.settings.read_timeout_s):
                    data = await read_body(receive, service.settings.max_body)
            except TimeoutError:
                raise ApiError(408, "the body did not arrive in time", headers={"Connection": "close"}) from None
            return await service.in_time(len(data), lambda: parse_json(data))

    async def _work(self, call: Call, body: dict[str, Any], send: Send) -> None:
        answer = await self.handler(self.service, call, body)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Events):
            await self._stream(answer, send)
        elif isinstance(answer, Text):
            await respond(send, 200, answer.body, answer.media_type)
        else:
            await respond(send, 200, as_json(answer))

    async def _stream(self, events: Events, send: Send) -> None:
        """Write parts as they come. A client that does not read for too long is cut (see `server.Connection`)."""
        parts = events.parts
        try:
            first = await anext(parts)
            headers = [(b"content-type", events.media_type.encode()), (b"cache-control", b"no-cache")]
            headers.append((b"x-accel-buffering", b"no"))  # a proxy that buffers would undo it all
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await parts.aclose()  # type: ignore[attr-defined]  # a generator; its Group is left with it


def declared_length(scope: Scope, most: int) -> int:
    """What Content-Length says, `most` if it says nothing. Raises ApiError 413 if it is more than that."""
    declared = dict(scope["headers"]).get(b"content-length")
    if declared is None:
        return most
    if not declared.isdigit() or len(declared) > 18 or int(declared) > most:
        raise _too_large(most)
    return int(declared)


async def read_body(receive: Receive, most: int) -> bytes:
    """The whole body. Raises ApiError 413 as soon as it is known to be too long."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(CLIENT_LEFT, "the client has left")
        size += len(message.get("body", b""))
        if size > most:
            raise _too_large(most)
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _too_large(most: int) -> ApiError:
    what = f"the body is larger than {most} bytes"
    return ApiError(413, what, code="request_too_large", headers={"Connection": "close"})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def respond(
    send: Send,
    status: int,
    body: bytes,
    media_type: str = "application/json",
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """A whole answer in one write."""
    fixed = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
    fixed += [(b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"frame-ancestors 'none'")]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})
