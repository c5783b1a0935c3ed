"""Reports on screens of different widths: nothing is out of sight, nothing broken, and axe-core has no complaint."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from rendered import report_page

from tests.report.browsing import Open
from tests.report.publication_values import full_comparison, publication
from tests.report.report_values import difference, flag, row

_OUT_OF_SIGHT = """() => [...document.querySelectorAll("main :is(th, td, li, p, dd, figure, code, button)")]
    .filter((each) => each.checkVisibility() && !each.closest("thead, details:not([open])"))
    .filter((each) => {
      const box = each.getBoundingClientRect();
      const over = each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display !== "inline";
      return box.left < -1 || box.right > innerWidth + 1 || over;
    }).map((each) => each.outerHTML.slice(0, 200))"""
_SCROLLS = """all => all.filter(each => !each.closest("details:not([open])"))
    .filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.outerHTML.slice(0, 400))"""


@pytest.fixture(scope="module")
def whole() -> str:
    return report_page(publication(seeds=2, points=30))


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_no_column_is_out_of_sight(opened: Open, whole: str, width: int) -> None:
    report = opened(whole, drawn=False, viewport={"width": width, "height": 800})

    assert report.page.evaluate(_OUT_OF_SIGHT) == []
    assert report.page.locator(".scroll").evaluate_all(_SCROLLS) == []
    assert report.page.evaluate("document.documentElement.scrollWidth") == width
    values = report.page.get_by_text("[0.8900, 0.9300]", exact=True)
    for at in range(values.count()):
        assert values.nth(at).is_visible()
    assert (report.count(".cards") > 0) == (width == 390)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_name_without_blanks_is_broken_before_it_takes_the_room_of_all_columns(opened: Open, width: int) -> None:
    levels = ("fp32", "x" * 150)
    rows = (row("fp32", 0.91), row(levels[1], 0.91, difference=difference(0.0, 0.001), verdict="equivalent"))
    text = report_page(publication(levels, seeds=2, points=30, comparison=full_comparison(rows=rows)))
    report = opened(text, drawn=False, viewport={"width": width, "height": 800})

    assert report.page.evaluate("document.documentElement.scrollWidth") == width
    assert report.page.evaluate(_OUT_OF_SIGHT) == []
    first = report.page.locator(".scroll", has=report.page.locator("caption", has_text="val_accuracy against")).first
    assert first.locator("thead th:visible").count() > 4 or width == 390


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


def test_a_table_that_is_cut_is_sorted_in_all_its_parts_and_the_key_stays_on_its_heading(
    opened: Open, whole: str
) -> None:
    report = opened(whole, drawn=False, viewport={"width": 768, "height": 800})
    button = report.page.get_by_role("button", name="wall time", exact=True)
    button.focus()

    for _ in range(2):
        report.page.keyboard.press("Enter")

    parts = report.page.locator(".scroll", has=report.page.locator("caption", has_text="All 6 runs"))
    first = parts.first.locator("tbody th").all_inner_texts()
    part = report.page.locator(".further", has=button)
    assert first == part.first.locator("tbody th").all_inner_texts()
    assert report.page.evaluate("document.activeElement.innerText").strip().startswith("wall time")


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


def test_a_tool_bar_never_lies_over_data(opened: Open, whole: str) -> None:
    report = opened(whole, drawn=False)
    report.page.locator(".drawing").first.scroll_into_view_if_needed()

    report.page.locator(".drawing .nsewdrag").first.hover()

    assert report.count(".modebar-container .modebar") == 0
    assert report.page.locator("figure").first.get_by_role("button", name="Save picture").is_visible()


def test_a_chart_has_a_link_to_it(opened: Open, whole: str) -> None:
    report = opened(whole, drawn=False)

    report.page.locator("figure").last.get_by_role("link", name="Link").click()

    report.page.wait_for_selector("figure:target .main-svg", state="attached")  # drawn, since it is on the screen
    assert report.page.locator("figure").last.evaluate("figure => figure.matches(':target')")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_core_has_no_complaint(opened: Open, whole: str, width: int, scheme: str) -> None:
    # axe-core is a script of somebody else's, which the page's own policy would not let run
    # a screen's worth of charts is drawn: axe-core takes long over each line of a drawing, and all are made alike
    report = opened(whole, drawn=False, viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True)
    report.page.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    report.page.locator(".drawing").first.scroll_into_view_if_needed()
    report.page.wait_for_selector(".drawing .main-svg", state="attached")

    found = Axe().run(report.page)

    assert found.violations_count == 0, found.generate_report()
