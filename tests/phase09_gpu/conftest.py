"""One imaginary GPU serves all tests of this phase: what one of them leaves undone is forgotten before the next."""

from collections.abc import Iterator

import pytest

from minifer.apps.testing.strict_machine import machine


@pytest.fixture(autouse=True)
def nothing_under_way() -> Iterator[None]:
    machine.abandon()
    yield
    machine.abandon()
