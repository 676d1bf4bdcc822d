"""A server at a URL: how it is asked, what it says about itself, and whether it is there.

Answers are judged strictly. A request has failed if the status is not 200, if the stream carries an error, if it breaks
off, or if it ends without saying that this was the end; a failed request never looks like a fast one.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from minifer.apps.loadgen.protocols import Api, Ask, Lines
from minifer.apps.loadgen.record import Record
from minifer.apps.loadgen.wire import Address, WireError, exchange, fetch
from minifer.apps.workloads import Arrival

CACHE_HITS = re.compile(r"^\w+:prefix_cache_hits(?:_total)?(?:\{[^}]*\})? +([0-9.eE+-]+)", re.MULTILINE)
ASK_AGAIN_S = 0.25


@dataclass(frozen=True)
class Server:
    """Where a server is and which API it is spoken to with."""

    address: Address
    api: Api
    headers: Mapping[str, str] = field(default_factory=dict)
    endpoint: str | None = None
    limit_s: float | None = None
    """How long a whole answer may take; None: as long as it likes."""

    async def send(self, arrival: Arrival, ask: Ask, record: Record, now: Callable[[], float]) -> None:
        """Send one request and note every event of its answer in `record`. Raises WireError where it breaks off."""
        body = json.dumps(self.api.payload(arrival, ask)).encode()
        path = self.endpoint or self.api.path
        reader = EventReader(self.api, record)
        record.sent = now()  # not the time that preparing the body took
        question = exchange(self.address, "POST", path, body, self.headers, reader.feed, now)
        try:
            head = await asyncio.wait_for(question, self.limit_s)
        except TimeoutError:
            raise WireError(f"the answer was not complete after {self.limit_s:g} s") from None
        reader.end(head.status, now())

    async def get_json(self, path: str) -> Any:
        """The JSON under a path, None if there is none."""
        status, body = await fetch(self.address, path, self.headers)
        try:
            return json.loads(body) if status == 200 else None
        except ValueError:
            return None

    async def models(self) -> list[str]:
        """The names of the models it has. Raises WireError if it does not say."""
        answer = await self.get_json(self.api.models_path)
        try:
            return self.api.models(answer)
        except (KeyError, TypeError, IndexError):
            raise WireError(f"{self.address.authority} does not list its models at {self.api.models_path}") from None

    async def wait_until_ready(self, limit_s: float) -> None:
        """Return as soon as it lists its models. Raises WireError after `limit_s` seconds, with the last reason."""
        now = asyncio.get_running_loop().time
        stop = now() + limit_s
        while True:
            try:
                await self.models()
                return
            except WireError:
                if now() >= stop:
                    raise
            await asyncio.sleep(ASK_AGAIN_S)

    async def cache_hits(self) -> float | None:
        """Prompt tokens that its `/metrics` says came out of the prefix cache so far; None where it does not say."""
        try:
            status, body = await fetch(self.address, "/metrics", self.headers)
        except WireError:
            return None
        found = CACHE_HITS.findall(body.decode("utf-8", errors="replace")) if status == 200 else []
        return sum(map(float, found)) if found else None


class EventReader:
    """From the bytes of a body to the events of a record."""

    def __init__(self, api: Api, record: Record) -> None:
        self._api, self._record = api, record
        self._lines, self._framing = Lines(), api.framing()
        self._raw, self._last = b"", False

    def feed(self, data: bytes, time: float) -> None:
        """Take bytes that arrived at a time, in seconds on the record's clock."""
        if len(self._raw) < 500:
            self._raw += data  # the words of an error that is no stream
        for line in self._lines.feed(data):
            self._message(self._framing.take(line), time)

    def end(self, status: int, time: float) -> None:
        """Judge the answer."""
        record = self._record
        if status != 200:
            record.error = f"HTTP {status}: {self._raw.decode('utf-8', errors='replace').strip()[:300]}"
            return
        for line in self._lines.rest():
            self._message(self._framing.take(line), time)
        self._message(self._framing.rest(), time)
        if record.error is None and not self._last and record.finish_reason is None:
            record.error = "the answer ended without saying that it was complete"

    def _message(self, message: str | None, time: float) -> None:
        if message is None or self._last:
            return
        event = self._api.event(message)
        self._last = event.last
        self._record.take(event, time)
