"""A server for tests: on a free port of loopback, with the bundled model, in this process or with real replicas."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from minifer.apps.serve.app import build
from minifer.apps.serve.fleet import Fleet
from minifer.apps.serve.replica import Replica
from minifer.apps.serve.server import bound_socket, make_server
from minifer.apps.serve.service import Service, Settings
from minifer.apps.serve.tape import Tape

GREEDY = {"temperature": 0, "max_tokens": 8}


class Running:
    """A server that runs in a thread of its own until `stop`."""

    def __init__(
        self,
        replicas: int = 1,
        *,
        in_thread: bool = True,
        engine: dict[str, Any] | None = None,
        fleet: dict[str, Any] | None = None,
        deadline_s: float = 5.0,
        **settings: Any,
    ) -> None:
        options = {"device": "cpu", "num_blocks": 256, "room_options": {"threads": 1}, **(engine or {})}
        made = [
            Replica(i, "tiny", options, about={"replica": i}, trace=True, in_thread=in_thread) for i in range(replicas)
        ]
        self.log: list[str] = []
        self.tape = Tape(replicas)
        self.service = Service(
            Fleet(made, on_trace=self.tape.take, **(fleet or {})),
            Settings(**{"model_name": "tiny", "log": self.log.append, **settings}),
            self.tape,
        )
        self.socket = bound_socket("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = make_server(
            build(self.service), self.service, host="127.0.0.1", port=self.port, deadline_s=deadline_s
        )
        self.client = httpx.Client(timeout=60, trust_env=False, limits=httpx.Limits(max_connections=None))
        self._started = threading.Event()
        self.server.when_started = self._started.set
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        while not self._started.wait(0.1):
            assert self.thread.is_alive(), "the server did not start"

    def _run(self) -> None:
        asyncio.run(self.server.serve(sockets=[self.socket]))

    def stop(self) -> None:
        """End it as a signal would."""
        self.client.close()
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive()

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """POST a JSON body (or bytes as they are)."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(self.url + path, content=content, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET a path."""
        return self.client.get(self.url + path, **options)

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The data of every server-sent event of a streamed answer; the last one as text."""
        reply = self.post(path, {**body, "stream": True})
        assert reply.status_code == 200, reply.text
        return events_of(reply.content)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        samples = [s for f in text_string_to_metric_families(self.get("/metrics").text) for s in f.samples]
        return sum(s.value for s in samples if s.name == f"minifer:{name}" and labels.items() <= s.labels.items())

    def connect(self) -> socket.socket:
        """A raw connection."""
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.settimeout(30)
        return sock

    def quiet(self, seconds: float = 30.0) -> bool:
        """Wait until nothing runs, nothing waits and no block is in use; whether that came true."""
        for _ in range(int(seconds / 0.05)):
            loads = [seat.load for seat in self.service.fleet.seats]
            busy = self.service.fleet.streams or any(load.running or load.waiting or load.kv_usage for load in loads)
            if not busy:
                return True
            threading.Event().wait(0.05)
        return False


def events_of(data: bytes) -> list[Any]:
    """The events of a stream, checked for their form: `data: <one line>` and an empty line, nothing else."""
    text = data.decode()
    assert text.endswith("\n\n")
    found = []
    for event in text[:-2].split("\n\n"):
        assert event.startswith("data: ")
        assert "\n" not in event
        assert "\r" not in event
        found.append(event[6:] if event == "data: [DONE]" else json.loads(event[6:]))
    return found


@contextmanager
def running(*args: Any, **options: Any) -> Iterator[Running]:
    """A server for the length of a `with`."""
    server = Running(*args, **options)
    try:
        yield server
    finally:
        server.stop()


def raw_request(body: dict[str, Any] | bytes, path: str = "/v1/completions", headers: str = "") -> bytes:
    """A POST as bytes."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(content)}\r\n{headers}\r\n"
    return head.encode() + content
