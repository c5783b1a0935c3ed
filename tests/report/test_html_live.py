"""`hpcml watch` in a real Chromium, while real runs go."""

from __future__ import annotations

import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Page

from tests.cli.command_line import Hpcml, program
from tests.cli.test_wait import submit
from tests.cli.watching_pages import watching
from tests.cluster.nvml.building import build_library
from tests.report.conftest import PATIENCE_MS

GOES_ON = """
import json, os, time
from hpcml_client import connect
with connect() as run:
    asked, step = json.load(open(os.environ["HPCML_CONFIG"])), 0
    seed = asked["run"]["seed"]
    run.event("training", steps=10000)
    while not os.path.exists(f"finish-{seed}"):
        step += 1
        run.metrics({"loss": 1 / step, "val_accuracy": 0.5 + seed / 100}, step)
        time.sleep(0.1)
    run.metrics({"val_accuracy": 0.9 + seed / 100}, 10000)  # runs that are compared have the same last step
"""
HOSTILE = "<img src=x onerror=alert(1)>"
ARMS, SEEDS = 2, 3


@pytest.fixture
def user(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    """A user on a machine with two cores and a GPU, both of which are shown by doubles of ours."""
    cwd = tmp_path / "project"
    cwd.mkdir()
    gpu = {"HPCML_NVML_LIBRARY": str(build_library(tmp_path)), "FAKE_NVML_GPUS": "1"}
    return Hpcml(environ={**hpcml_environ, **gpu}, cwd=cwd)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(bypass_csp=False, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def until(page: Page, holds: str) -> None:
    """Wait until the expression *holds*; the page's own policy forbids Playwright's way of asking in the page."""
    give_up_at = time.monotonic() + PATIENCE_MS / 1000
    while True:
        with suppress(Error):  # the page is being loaded anew
            if page.evaluate(holds):
                return
        assert time.monotonic() < give_up_at, f"{holds}: {page.locator('main').inner_text()[:2000]}"
        page.wait_for_timeout(50)


def test_the_page_is_renewed_while_runs_go(user: Hpcml, page: Page) -> None:
    submit(
        user,
        "-m",
        program(GOES_ON),
        "+workload.env.ARM=a,b",
        f"seed=range({SEEDS})",
        f"name='{HOSTILE}'",
        "experiment=live",
        "telemetry.interval=200ms",
        "resources.cpus_per_task=1",
        "objective.margin=0.05",
    )
    heard, asked_for = [], []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("dialog", lambda dialog: (heard.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: asked_for.append(request.url))
    with watching(user, "live", "--by", "workload.env.ARM", "--port", "0", "--interval", "2s") as served:
        page.goto(served.link)
        until(page, "document.querySelector('main').innerText.includes('RUNNING')")
        until(page, "document.querySelector('main').innerText.includes('Right now')")
        for seed in range(SEEDS - 1):
            (user.cwd / f"finish-{seed}").touch()
        until(page, "document.querySelector('.verdict')?.innerText.includes(', so far')")
        until(page, "document.querySelector('main').innerText.includes('2 of 6 runs have not ended')")

        (user.cwd / f"finish-{SEEDS - 1}").touch()
        until(page, "document.querySelector('main').innerText.includes('All 6 runs have ended')")
        until(page, "!document.querySelector('main').innerText.includes('so far')")
        until(page, "document.querySelector('main').innerText.includes('hpcml report --experiment live --by')")
        until(page, "document.querySelectorAll('img, iframe, [onerror]').length === 0")
        until(page, f"document.querySelector('main').innerText.includes('{HOSTILE}')")

        assert served.end(signal.SIGINT) == 0
    assert all(url.startswith(served.link) for url in asked_for)
    assert [line for line in heard if "ERR_CONNECTION_REFUSED" not in line] == []


def test_gpus_are_shown_and_axe_core_has_no_complaint(user: Hpcml, browser: Browser) -> None:
    submit(user, program(GOES_ON), "experiment=gpu", "telemetry.interval=200ms", "resources.gpus_per_node=1")
    with watching(user, "gpu", "--port", "0", "--interval", "5s") as served:
        context = browser.new_context(viewport={"width": 390, "height": 844}, bypass_csp=True)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(served.link)
        until(page, "document.querySelector('main').innerText.includes('NVIDIA H100')")
        kept = user.cwd / "kept.html"  # which is not loaded anew
        kept.write_bytes(urllib.request.urlopen(served.link, timeout=60).read())  # noqa: S310 - of our own server
        page.goto(kept.as_uri())
        assert page.get_by_text("Their GPUs").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        context.close()
        (user.cwd / "finish-0").touch()
        assert user("wait", "--experiment", "gpu").returncode == 0
