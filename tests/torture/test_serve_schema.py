"""The server against its own OpenAPI document: schemathesis makes requests from it, good and bad ones.

The checks are schemathesis's: no 5xx, only documented status codes and media types, bodies that fit their schema, and
405 for methods that are not there.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from minifer.apps.serve.app import WAYS
from tests.serving import Running, running

schemathesis = pytest.importorskip("schemathesis")

ENDLESS = "/trace/stream"
PATHS = sorted({way.path.replace("{name:path}", "{name}") for way in WAYS} - {ENDLESS})


@pytest.fixture(scope="module")
def api() -> Iterator[tuple[Running, Any]]:
    """A server, and what schemathesis makes of its document."""
    with running(engine={"max_num_seqs": 32}, fleet={"max_queue": 300}) as server:
        yield server, schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def short(body: Any) -> Any:
    """The same request for a short answer, where it would be a long one."""
    if isinstance(body, dict) and isinstance(body.get("max_tokens", 2), int):
        return {**body, "max_tokens": 2}
    return body


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("path", PATHS)
def test_every_operation_keeps_its_word(api, path, mode):
    from schemathesis import GenerationMode

    server, schema = api
    operation = next(iter(schema[path].values()))
    takes_input = operation.method.upper() == "POST" or operation.query  # any text is a good name in a path
    if mode == "negative" and not takes_input:
        pytest.skip("takes no input that could be wrong")

    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=GenerationMode(mode)))
    def play(case):
        case.body = short(case.body)
        case.call_and_validate(timeout=60, checks=CHECKS)

    play()
    assert server.quiet()


def _checks() -> list[Any]:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    return [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.unsupported_method,
    ]


CHECKS = _checks()
