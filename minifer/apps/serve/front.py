"""What every request passes before a handler sees it, from outside in.

    Log    one JSON line per request: counts and times, never a text, a header, a key or a query
    CORS   starlette's, outside of the key, because a browser's preflight carries none and needs an answer
    Guard  Host and Origin, then the key; and whatever goes wrong further in becomes an error in the right form

**Host and Origin.** A server on 127.0.0.1 can be reached by every web page the user looks at: by a form that posts to
it, and by a name that is made to point there (DNS rebinding). So a Host that is not among those expected is refused,
and so is an Origin that neither CORS allows nor is this server itself. Programs send no Origin and never notice.
"""

import base64
import binascii
import contextlib
import hmac
import json
import time
import traceback
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

from minifer.apps.serve.protocol import ApiError
from minifer.apps.serve.reply import CLIENT_LEFT, Call, Receive, Scope, Send, as_json, respond
from minifer.apps.serve.service import Settings

App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = ("/health", "/openapi.json")
"""Need no key: a load balancer has none, and the document holds nothing of the model."""

BROWSED = ("/", "/trace", "/trace/stream")
"""A browser opens these, and asks its user for a password where the server asks for `Basic`."""


class Log:
    """Writes one line per request to `settings.log`, if there is one."""

    def __init__(self, app: App, settings: Settings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on, and note the status."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        call = scope["minifer.call"] = Call()

        async def noting(message: Any) -> None:
            if message["type"] == "http.response.start":
                call.facts["status"] = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noting)
        finally:
            self._write(scope, call)

    def _write(self, scope: Scope, call: Call) -> None:
        if self.settings.log is None:
            return
        known = scope.get("minifer.route", "other")  # a path that is no route may hold anything
        took = round((time.perf_counter() - call.arrival) * 1e3, 3)
        line = {"time": round(time.time(), 3), "method": scope["method"][:16], "route": known, **call.facts, "ms": took}
        self.settings.log(json.dumps(line))


class Guard:
    """Lets in who may come in, and answers every error in the form of the language that was spoken."""

    def __init__(self, app: App, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self._keys = [sha256(key.encode()).digest() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, pass on, and turn exceptions into answers."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begun = False

        async def noting(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, receive, noting)
        except ApiError as error:
            if begun:
                self._hang_up(scope)
            elif error.status != CLIENT_LEFT:
                await _refuse(scope, send, error)
        except Exception as error:
            self._report(error)
            if begun:
                self._hang_up(scope)
            else:
                await _refuse(scope, send, ApiError(500, "something unexpected happened in the server"))

    def _report(self, error: Exception) -> None:
        """Where it happened. An error's own words may hold a prompt, so they are left out."""
        if self.settings.log is not None:
            frames = [
                f"{frame.name} {frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
            ]
            self.settings.log(json.dumps({"unexpected": type(error).__name__, "at": frames[-8:]}))

    def _check(self, scope: Scope) -> None:
        headers = scope["headers"]
        hosts, origins, keys = ([v for k, v in headers if k == name] for name in (b"host", b"origin", b"authorization"))
        if self.settings.hosts and (len(hosts) != 1 or name_of(hosts[0]) not in self.settings.hosts):
            raise ApiError(403, "this Host is not served here (see --allowed-host)", code="forbidden_host")
        if origins and not self._may_come(origins, hosts):
            raise ApiError(403, "requests from this Origin are not allowed (see --cors)", code="forbidden_origin")
        if self._keys and scope["path"] not in OPEN_PATHS and not self._known(keys):
            what = "the API key is missing or wrong: send it as `Authorization: Bearer KEY`"
            how = 'Basic realm="minifer, the key is the password"' if scope["path"] in BROWSED else "Bearer"
            raise ApiError(401, what, code="invalid_api_key", headers={"WWW-Authenticate": how})

    def _may_come(self, origins: list[bytes], hosts: list[bytes]) -> bool:
        if "*" in self.settings.cors:
            return True
        own = {b"http://" + host for host in hosts} | {b"https://" + host for host in hosts}
        return all(origin in own or origin.decode("latin-1") in self.settings.cors for origin in origins)

    def _known(self, given: list[bytes]) -> bool:
        """Compare with every key, digests of one length, in constant time: the time says nothing about a key."""
        token = sha256(_token(given[0] if len(given) == 1 else b"")).digest()
        same = [hmac.compare_digest(token, key) for key in self._keys]  # all of them, whichever it is
        return any(same)

    @staticmethod
    def _hang_up(scope: Scope) -> None:
        """Half an answer can't be taken back: cut the connection, so that nobody takes it for a whole one."""
        transport = scope.get("state", {}).get("transport")
        if transport is not None:
            transport.abort()


def _token(authorization: bytes) -> bytes:
    """The key in an Authorization header: of a program `Bearer KEY`, of a browser the password of `Basic`."""
    scheme, _, token = authorization.partition(b" ")
    if scheme.lower() == b"basic":
        with contextlib.suppress(binascii.Error):
            return base64.b64decode(token.strip(), validate=True).partition(b":")[2]
    return token.strip() if scheme.lower() == b"bearer" else b""


def name_of(host: bytes) -> str:
    """The name in a Host header, without its port.

    >>> name_of(b"[::1]:8000"), name_of(b"LOCALHOST:80")
    ('::1', 'localhost')
    """
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


async def _refuse(scope: Scope, send: Send, error: ApiError) -> None:
    body = error.ollama() if scope["path"].startswith("/api/") else error.openai()
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await respond(send, error.status, as_json(body), headers=headers)
