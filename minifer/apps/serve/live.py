"""A running server to look at: the page at /, the trace as it grows at /trace/stream, its last records at /trace.

A trace holds token ids, and token ids are the text. So these routes are open only where the server is (`--live`, the
default on loopback and nowhere else), and behind the API key like everything.

A looker who is too slow loses records and is told how many; the engine waits for nobody.
"""

import importlib
import importlib.util
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs

from minifer.apps.serve.protocol import ApiError
from minifer.apps.serve.reply import Call, Events, Text, as_json
from minifer.apps.serve.service import Service
from minifer.apps.serve.tape import Looker, Tape


def _tape(service: Service, call: Call) -> tuple[Tape, int]:
    tape = service.tape
    if tape is None or not service.settings.live:
        raise ApiError(404, "the live trace is off (see --live)", code="not_found")
    wanted = parse_qs(call.query).get("replica", ["0"])[0]
    if not (wanted.isascii() and wanted.isdigit() and len(wanted) < 6 and int(wanted) < len(tape.rings)):
        raise ApiError(400, f"replica must be a number from 0 to {len(tape.rings) - 1}", param="replica")
    return tape, int(wanted)


async def recent(service: Service, call: Call, _body: dict[str, Any]) -> Text:
    """GET /trace?replica=N: the header and the last records, as a trace file."""
    tape, replica = _tape(service, call)
    text = tape.headers[replica] + "".join(tape.rings[replica])
    return Text(text.encode(), "application/x-ndjson")


async def stream(service: Service, call: Call, _body: dict[str, Any]) -> Events:
    """GET /trace/stream?replica=N: the header, the last records, and then every new one, as server-sent events."""
    tape, replica = _tape(service, call)
    return Events(_records(tape, replica), "text/event-stream")


async def _records(tape: Tape, replica: int) -> AsyncIterator[bytes]:
    looker = Looker([tape.headers[replica], *tape.rings[replica]] if tape.headers[replica] else [])
    tape.lookers[replica].add(looker)
    try:
        yield b": minifer trace\n\n"
        while not looker.over:
            await looker.news.wait()
            looker.news.clear()
            if lines := looker.taken():
                yield "".join(f"data: {line.rstrip()}\n\n" for line in lines).encode()
            if looker.lost:
                yield b"event: lost\ndata: " + as_json(looker.lost) + b"\n\n"
                looker.lost = 0
    finally:
        tape.lookers[replica].discard(looker)


async def page(service: Service, _call: Call, _body: dict[str, Any]) -> Text:
    """GET /: the live page where there is one, else a line of text."""
    html = live_page() if service.settings.live else None
    if html is None:
        return Text(b"minifer is running; /openapi.json says what it understands\n", "text/plain; charset=utf-8")
    return Text(html.encode(), "text/html; charset=utf-8")


def live_page() -> str | None:
    """The page of `minifer.apps.xray`, if that package offers `live_page()`."""
    if importlib.util.find_spec("minifer.apps.xray") is None:
        return None
    make = getattr(importlib.import_module("minifer.apps.xray"), "live_page", None)
    return None if make is None else str(make())
