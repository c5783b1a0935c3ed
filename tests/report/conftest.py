"""A real Chromium for the tests of reports, which opens them as a file and looks at all of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.parts import require
from tests.report.browsing import Open, Opened

PATIENCE_MS = 60_000
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    require("a browser", None if chromium else "no chromium or google-chrome on PATH")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=SWITCHES)
        yield started
        started.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Open a report from the disk; wait until its tables are laid out and, if *drawn*, walk to each of its charts."""
    contexts = []

    def open_it(text: str, *, drawn: bool = True, **screen: object) -> Opened:
        path = tmp_path / "report.html"
        path.write_text(text, encoding="utf-8")
        context = browser.new_context(**screen)  # type: ignore[arg-type]
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        one = Opened(page=context.new_page())
        one.page.on("console", lambda message: one.heard.append(message.text))
        one.page.on("pageerror", lambda error: one.heard.append(str(error)))
        one.page.on("dialog", lambda dialog: (one.heard.append(f"dialog {dialog.message}"), dialog.dismiss()))
        one.page.on("request", lambda request: one.asked_for.append(request.url))
        one.page.goto(path.as_uri())
        one.page.wait_for_selector("html[data-charts]", state="attached")
        if drawn:
            one.walk()
        return one

    yield open_it
    for context in contexts:
        context.close()
