"""A proxy that notes when which bytes went by: the referee between two load generators.

    python tests/peers/stamping_proxy.py --listen 9000 --upstream 127.0.0.1:8000 --out stamps.jsonl

It forwards every connection and, when it is ended (SIGTERM or Ctrl-C), has written one line of JSON for each request:

    {"path": "/v1/completions", "sent": 3.25, "received": [[3.31, "HTTP/1.1 200 OK..."], [3.35, "..."]]}

`sent` is when the first byte of the request came from the client, the others are when bytes came from the server, each
before they were passed on; seconds on one monotonic clock. Bytes are written as Latin-1, which keeps each of the 256.
A client may use a connection again, but must have read the whole answer first, as every HTTP/1.1 client without
pipelining has. The proxy does not understand what it forwards, and adds about 0.1 ms to it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import time
from typing import IO, Any


class Proxy:
    """Forwards connections to one server and keeps the exchanges."""

    def __init__(self, host: str, port: int, out: IO[str]) -> None:
        self.host, self.port, self.out = host, port, out

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: two pumps, and the exchange that is under way."""
        try:
            up_reader, up_writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            writer.close()
            return
        connection = Connection(self.out)
        pumps = [
            asyncio.create_task(pump(reader, up_writer, connection.from_client)),
            asyncio.create_task(pump(up_reader, writer, connection.from_server)),
        ]
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*pumps)
        connection.end()


class Connection:
    """The exchange under way: it begins with the client's first byte after an answer."""

    def __init__(self, out: IO[str]) -> None:
        self.out, self.exchange = out, None  # type: IO[str], dict[str, Any] | None

    def from_client(self, data: bytes, now: float) -> None:
        """Bytes of a request; the first ones after an answer begin a new exchange."""
        if self.exchange is not None and self.exchange["received"]:
            self.end()
        if self.exchange is None:
            words = data.split(b" ", 2)
            self.exchange = {"path": words[1].decode("latin-1") if len(words) > 1 else "", "sent": now, "received": []}

    def from_server(self, data: bytes, now: float) -> None:
        """Bytes of an answer."""
        if self.exchange is not None:
            self.exchange["received"].append([now, data.decode("latin-1")])

    def end(self) -> None:
        """Write the exchange down."""
        if self.exchange is not None:
            self.out.write(json.dumps(self.exchange) + "\n")
            self.out.flush()
        self.exchange = None


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Any) -> None:
    """Pass bytes on, each piece noted before."""
    try:
        while data := await reader.read(1 << 16):
            note(data, time.perf_counter())
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def main() -> None:
    """Listen until a signal comes."""
    parser = argparse.ArgumentParser(description="forward connections and note when bytes went by")
    parser.add_argument("--listen", type=int, required=True, metavar="PORT", help="0 takes a free one and prints it")
    parser.add_argument("--upstream", required=True, metavar="HOST:PORT")
    parser.add_argument("--out", required=True, metavar="FILE")
    args = parser.parse_args()
    host, _, port = args.upstream.rpartition(":")
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    with open(args.out, "w", encoding="utf-8") as out:
        server = await asyncio.start_server(Proxy(host, int(port), out).serve, "127.0.0.1", args.listen, backlog=512)
        print(server.sockets[0].getsockname()[1], flush=True)
        await stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main())
