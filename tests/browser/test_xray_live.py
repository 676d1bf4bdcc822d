"""The page at `/` of a running server: a chat box, and the engine at work while it answers."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server():
    """The address of `minifer serve tiny`, on a port that was free."""
    pytest.importorskip("uvicorn", reason="needs the server: pip install 'minifer[serve]'")
    command = [sys.executable, "-u", "-m", "minifer", "serve", "tiny", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        lines = iter(process.stdout.readline, "")
        address = next((m.group() for line in lines if (m := re.search(r"http://127\.0\.0\.1:\d+", line))), None)
        assert address, "the server ended before it was ready"
        yield address
        process.terminate()


def until(page, condition):
    """Wait for a condition; the page's policy forbids playwright's own way, which evaluates text inside the page."""
    for _ in range(600):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never became true: {condition}")


def test_a_class_watches_its_own_requests(chromium, server):
    page = chromium.new_page()
    wrong = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda r: r.url.startswith(server) or wrong.append(r.url))
    page.goto(server)
    page.get_by_text("Watching replica 0").wait_for()
    for question in ("Tell me a story.", "<img src=x onerror=alert(1)>"):
        page.fill("#message", question)
        page.keyboard.press("Enter")
    until(page, "window.minifer.state.runs[0]?.lives.filter(life => life.reason !== null).length === 2")
    until(page, "document.querySelectorAll('#log .answer:not(:empty)').length === 2")
    assert "2 requests" in page.inner_text("#facts")
    assert page.locator(".story").count() == 5
    assert page.locator("#log img").count() == 0
    # the tokens are spelled out by the server, and what the chat shows is what the strip shows
    until(page, "![...document.querySelectorAll('.chip .token')].some(t => /^#\\d/.test(t.textContent))")
    answer = page.locator("#log .answer").first.inner_text()
    strip = "".join(page.locator(".chip.decode .token").all_inner_texts()).replace("\u00b7", " ")
    assert answer.replace("\n", "")[:20].strip() in strip
    assert wrong == []
    page.close()
