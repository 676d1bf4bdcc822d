"""A headless Chromium for the tests of the x-ray's page: the system's own, driven by playwright."""

import shutil
from pathlib import Path

import pytest

CHROMIUM = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")


@pytest.fixture(scope="session")
def chromium():
    """One browser for all tests, or a skip that says what is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'minifer[browser]'")
    path = next((p for p in (shutil.which("chromium"), *CHROMIUM) if p and Path(p).exists()), None)
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium, tmp_path):
    """`open_page(html, width=..., theme=...)` opens a page from disk. At the end of the test nothing may have been
    printed to the console, thrown, or asked of any other address."""
    contexts, wrong = [], []

    def open_(html, width=1280, theme="light", **options):
        path = tmp_path / f"page{len(contexts)}.html"
        path.write_text(html, "utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, accept_downloads=True, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        address = path.as_uri()
        page.on("request", lambda r: r.url == address or r.url.startswith("blob:") or wrong.append(f"asked {r.url}"))
        page.goto(address)
        assert page.evaluate("window.minifer !== undefined")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert wrong == []
