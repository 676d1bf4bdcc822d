"""The server of notebook 10 ends when its notebook does, however that is."""

import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from minifer.apps.notebook_server import start_server
from minifer.errors import UsageError

pytest.importorskip("starlette")

NOTEBOOK = """
import time
from minifer.apps.notebook_server import start_server
print(start_server("tiny").url, flush=True)
time.sleep(600)
"""


def answers(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def test_it_serves_and_stops():
    """Twice stopped is stopped once."""
    with start_server("tiny", "--max-num-seqs", "2") as server:
        assert server.running
        assert answers(server.url)
    server.stop()
    assert not server.running
    assert not answers(server.url)


def test_it_does_not_outlive_its_notebook():
    """A kernel that is killed says nothing to anybody; the server ends all the same."""
    with subprocess.Popen([sys.executable, "-c", NOTEBOOK], stdout=subprocess.PIPE, text=True) as notebook:
        url = notebook.stdout.readline().strip()
        assert answers(url)
        notebook.kill()
    deadline = time.monotonic() + 20
    while answers(url) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not answers(url)


def test_what_it_says_when_it_cannot_start():
    """The server's own words."""
    with pytest.raises(UsageError, match=r"did not start.*no-such-model"):
        start_server("no-such-model")
