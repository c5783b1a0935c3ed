"""`hpcml watch` in a real Chromium, while real runs go: what is drawn moves, and what the reader chose stays."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

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
    while not page.evaluate(holds):
        assert time.monotonic() < give_up_at, f"{holds}: {page.locator('main').inner_text()[:2000]}"
        page.wait_for_timeout(50)


def test_the_page_moves_while_runs_go_and_what_the_reader_chose_stays(user: Hpcml, page: Page) -> None:
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
    with watching(user, "live", "--by", "workload.env.ARM", "--port", "0", "--interval", "500ms") as served:
        page.goto(served.link)
        until(page, "document.querySelector('main').innerText.includes('RUNNING')")
        assert page.get_by_role("heading", name="Right now").is_visible()
        assert "Waiting: 4" in page.locator("main").inner_text() or "Running: 1" in page.locator("main").inner_text()
        loss = page.locator("figure[data-name=loss]")
        loss.scroll_into_view_if_needed()
        until(page, "document.querySelector('figure[data-name=loss] .main-svg')")

        # what a reader does: a logarithmic axis, an unfolded table, a sorted one, a zoom, the focus
        loss.get_by_label("Logarithmic vertical axis").check()
        loss.get_by_label("time").check()
        loss.locator("summary").click()
        page.evaluate("document.querySelector('figure[data-name=loss] .drawing').dataset.mine = 'the same element'")
        page.evaluate(
            "Plotly.relayout(document.querySelector('figure[data-name=loss] .drawing'), {'xaxis.range': [0, 5]})"
        )
        loss.get_by_label("Smoothing").focus()
        before = int(page.evaluate("document.documentElement.dataset.version"))
        points = page.evaluate("document.querySelector('figure[data-name=loss] .drawing').data[0].x.length")
        scrolled = page.evaluate("scrollY")

        until(page, f"Number(document.documentElement.dataset.version) > {before + 1}")
        until(page, f"document.querySelector('figure[data-name=loss] .drawing').data[0].x.length > {points}")

        assert loss.get_by_label("Logarithmic vertical axis").is_checked()
        assert loss.get_by_label("time").is_checked()
        assert loss.locator("details").evaluate("each => each.open")
        drawing = loss.locator(".drawing")
        assert drawing.evaluate("each => each.dataset.mine") == "the same element"
        assert drawing.evaluate("each => each.layout.yaxis.type") == "log"
        assert drawing.evaluate("each => each.layout.xaxis.range") == [0, 5]
        assert page.evaluate("document.activeElement.dataset.way") == "weight"
        assert page.evaluate("scrollY") == scrolled

        for seed in range(SEEDS - 1):
            (user.cwd / f"finish-{seed}").touch()
        until(page, "document.querySelector('.verdict')?.innerText.includes(', so far')")
        until(page, "document.querySelector('main').innerText.includes('2 of 6 runs have not ended')")

        (user.cwd / f"finish-{SEEDS - 1}").touch()
        until(page, "document.querySelector('main').innerText.includes('All 6 runs have ended')")
        assert "so far" not in page.locator("main").inner_text()
        assert page.get_by_role("heading", name="Right now").count() == 0
        assert "hpcml report --experiment live --by workload.env.ARM" in page.locator("main").inner_text()

        assert served.end(signal.SIGINT) == 0
        until(page, "document.querySelector('.following').innerText.includes('does not answer any more')")
    assert page.locator("img, iframe, [onerror]").count() == 0
    assert HOSTILE in page.locator("main").inner_text()
    assert all(url.startswith(served.link) for url in asked_for)
    assert [line for line in heard if "ERR_CONNECTION_REFUSED" not in line] == []


def test_gpus_are_shown_and_axe_core_has_no_complaint(user: Hpcml, browser: Browser) -> None:
    submit(user, program(GOES_ON), "experiment=gpu", "telemetry.interval=200ms", "resources.gpus_per_node=1")
    with watching(user, "gpu", "--port", "0", "--interval", "500ms") as served:
        context = browser.new_context(viewport={"width": 390, "height": 844}, bypass_csp=True)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(served.link)
        until(page, "document.querySelector('main').innerText.includes('NVIDIA H100')")
        assert page.get_by_text("Their GPUs").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        context.close()
        (user.cwd / "finish-0").touch()
        assert user("wait", "--experiment", "gpu").returncode == 0
