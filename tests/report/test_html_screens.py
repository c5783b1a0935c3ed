"""Reports on screens of different widths: nothing is out of sight, nothing broken, and axe-core has no complaint."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from rendered import report_page

from tests.report.browsing import Open
from tests.report.publication_values import full_comparison, publication
from tests.report.report_values import difference, flag, row


@pytest.fixture(scope="module")
def whole() -> str:
    return report_page(publication(seeds=2, points=30))


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_nothing_makes_the_page_wider_than_the_screen(opened: Open, whole: str, width: int) -> None:
    report = opened(whole, drawn=False, viewport={"width": width, "height": 800})

    assert report.page.evaluate("document.documentElement.scrollWidth") == width


def test_a_long_name_in_the_title_of_a_chart_makes_no_page_wider_than_a_phone(opened: Open) -> None:
    name = "cosine_warmup_restart_schedule_variant_00_of_thirty"
    rows = (row(name, 0.91), row("b", 0.91, difference=difference(0.0, 0.001), verdict="equivalent"))
    comparison = full_comparison(rows=rows, reference=name)
    report = opened(
        report_page(publication((name, "b"), seeds=2, points=30, comparison=comparison)),
        drawn=False,
        viewport={"width": 390, "height": 800},
    )

    assert report.page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_first_screen_says_what_was_asked_found_how_sure_it_is_and_what_weakens_it(opened: Open) -> None:
    rows = (
        row("fp32", 0.91),
        row(
            "tf32",
            0.9,
            verdict="equivalent",
            difference=difference(-0.01, 0.004),
            flags=(flag("not interleaved: so"), flag("emulated: no speed")),
        ),
    )
    told = publication(("fp32", "tf32"), seeds=2, points=5, comparison=full_comparison(rows=rows))

    for width, height in ((1280, 800), (390, 844)):
        report = opened(report_page(told), drawn=False, viewport={"width": width, "height": height})
        box = report.page.locator(".finding").first
        assert box.bounding_box()["y"] + box.bounding_box()["height"] < height
        text = box.inner_text()
        assert [word for word in ("Asked", "Found", "How sure", "Weakened by") if word not in text] == []
        assert "no difference that matters: -0.0100" in text
        assert "not interleaved: so" in text
        assert text.split("\n")[0].endswith("equivalent tf32 against fp32")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_core_has_no_complaint(opened: Open, whole: str, width: int, scheme: str) -> None:
    # a screen's worth of charts is drawn: axe-core takes long over each line of a drawing, and all are made alike
    report = opened(whole, drawn=False, viewport={"width": width, "height": 800}, color_scheme=scheme)
    report.page.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    report.page.locator(".drawing").first.scroll_into_view_if_needed()
    report.page.wait_for_selector(".drawing .main-svg", state="attached")

    found = Axe().run(report.page)

    assert found.violations_count == 0, found.generate_report()
