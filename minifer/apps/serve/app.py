"""The routes, and the application made of them.

    Log -> CORS -> Guard -> one of ROUTES

A route is a line of the table below: method, path, handler, and for POST the fields of its body, from which the
published document is made as well (`openapi.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Route

from minifer.apps.serve import live, llama_server, ollama, openai, vllm_metrics
from minifer.apps.serve.front import Guard, Log
from minifer.apps.serve.openapi import document
from minifer.apps.serve.protocol import ApiError, Field
from minifer.apps.serve.reply import Call, Endpoint, Handler, Receive, Scope, Send, Text
from minifer.apps.serve.service import Service


@dataclass(frozen=True)
class Way:
    """One route. `fields` describe the body of a POST."""

    method: str
    path: str
    handler: Handler
    fields: Sequence[Field] = ()
    media: tuple[str, ...] = ("application/json",)


async def metrics(service: Service, _call: Call, _body: dict[str, Any]) -> Text:
    """GET /metrics for Prometheus."""
    return Text(*vllm_metrics.exposition(service.fleet, service.settings.model_name))


async def openapi(service: Service, _call: Call, _body: dict[str, Any]) -> dict[str, Any]:
    """GET /openapi.json: this server, described."""
    return document(WAYS, service.settings)


JSON, SSE, NDJSON, PLAIN, HTML = (
    "application/json",
    "text/event-stream",
    "application/x-ndjson",
    "text/plain",
    "text/html",
)
WAYS = (
    Way("GET", "/v1/models", openai.models),
    Way("GET", "/v1/models/{name:path}", openai.model),
    Way("POST", "/v1/completions", openai.completions, openai.COMPLETION, (JSON, SSE)),
    Way("POST", "/v1/chat/completions", openai.chat_completions, openai.CHAT, (JSON, SSE)),
    Way("POST", "/api/generate", ollama.generate, ollama.GENERATE, (JSON, NDJSON)),
    Way("POST", "/api/chat", ollama.chat, ollama.CHAT, (JSON, NDJSON)),
    Way("GET", "/api/tags", ollama.tags),
    Way("GET", "/api/ps", ollama.running),
    Way("POST", "/api/show", ollama.show, ollama.SHOW),
    Way("GET", "/api/version", ollama.version),
    Way("GET", "/health", llama_server.health),
    Way("GET", "/props", llama_server.props),
    Way("POST", "/tokenize", llama_server.tokenize, llama_server.TOKENIZE),
    Way("POST", "/detokenize", llama_server.detokenize, llama_server.DETOKENIZE),
    Way("GET", "/metrics", metrics, media=(PLAIN,)),
    Way("GET", "/openapi.json", openapi),
    Way("GET", "/", live.page, media=(HTML, PLAIN)),
    Way("GET", "/trace", live.recent, media=(NDJSON,)),
    Way("GET", "/trace/stream", live.stream, media=(SSE,)),
)


class Known:
    """Notes the route's name for the log, then lets the endpoint answer."""

    def __init__(self, way: Way, service: Service) -> None:
        self.name, self.endpoint = way.path, Endpoint(service, way.handler)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        scope["minifer.route"] = self.name
        await self.endpoint(scope, receive, send)


def build(service: Service) -> Any:
    """The whole ASGI application. The replicas are started and ended by whoever serves it (`server.Server`)."""
    routes = [Route(way.path, Known(way, service), methods=[way.method]) for way in WAYS]
    inner = Starlette(routes=[*routes, _Elsewhere(routes)])
    app: Any = Guard(Bare(inner), service.settings)
    if service.settings.cors:
        app = CORSMiddleware(
            app, allow_origins=service.settings.cors, allow_methods=["GET", "POST", "OPTIONS"], allow_headers=["*"]
        )
    return Log(app, service.settings)


class Bare:
    """Starlette without its own handling of errors, which would answer before the Guard can."""

    def __init__(self, app: Starlette) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the router, past the middleware."""
        scope["app"] = self.app
        await self.app.router(scope, receive, send)


class _Elsewhere(Route):
    """Whatever no route takes: 404, or 405 with the methods that there are."""

    def __init__(self, routes: Sequence[Route]) -> None:
        super().__init__("/{path:path}", self._answer, include_in_schema=False)
        self.methods = None  # all of them
        self.app = self._answer
        self.routes = routes

    async def _answer(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        found = [route for route in self.routes if route.matches(scope)[0] is not Match.NONE]
        methods = sorted({method for route in found for method in route.methods or ()})
        if methods:
            what = f"this path takes {' and '.join(methods)}"
            raise ApiError(405, what, code="method_not_allowed", headers={"Allow": ", ".join(methods)})
        raise ApiError(404, "there is nothing at this path; /openapi.json lists what there is", code="not_found")
