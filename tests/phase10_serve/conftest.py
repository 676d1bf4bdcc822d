"""One server for the whole phase: the bundled model, its engine in a thread of this process."""

from collections.abc import Iterator

import pytest

from tests.serving import Running


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A running server that tests may ask anything, and must not stop."""
    running = Running()
    yield running
    running.stop()
