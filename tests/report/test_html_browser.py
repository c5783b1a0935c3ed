"""Reports in a real Chromium, opened as a file: drawn, sorted, toggled, walked with the keyboard, and silent."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from rendered import report_page

from tests.report.browsing import Open
from tests.report.publication_values import HOSTILE, full_comparison, publication, runs_of
from tests.report.report_values import comparison, flag, row, speed


@pytest.fixture(scope="module")
def whole() -> str:
    """A report with one of everything."""
    return report_page(publication())


@pytest.fixture(scope="module")
def brief() -> str:
    """A report with few charts, which is there sooner."""
    return report_page(
        publication(seeds=5, points=30, timelines={}, scaling=None, attainment=None, comparison=comparison())
    )


@pytest.mark.story
def test_everything_is_drawn_and_nothing_is_asked_for_or_complained_about(opened: Open, whole: str) -> None:
    report = opened(whole)

    assert report.count(".drawing .main-svg") >= report.count(".drawing") > 12
    assert report.count(".drawing .scatterlayer .trace") > 20
    assert report.heard == []
    assert [url for url in report.asked_for if not url.startswith("file://")] == []
    assert len(report.asked_for) == 1


@pytest.mark.story
def test_a_table_is_sorted_by_the_column_whose_heading_is_pressed(opened: Open, brief: str) -> None:
    report = opened(brief)
    heading = (
        report.page.locator("table", has=report.page.locator("caption", has_text="All 15 runs"))
        .locator("th[aria-sort]")
        .nth(3)
    )
    assert heading.inner_text().strip() == "seed"

    heading.locator("button").click()
    ascending = report.column("All 15 runs", 4)
    heading.locator("button").click()

    assert ascending == [str(seed) for seed in range(5) for _ in range(3)]
    assert report.column("All 15 runs", 4) == ascending[::-1]
    assert heading.get_attribute("aria-sort") == "descending"


def test_what_is_not_known_stays_below_whichever_way_a_table_is_sorted(opened: Open, brief: str) -> None:
    report = opened(brief)
    button = report.page.get_by_role("button", name="speed-up", exact=True)  # in a part of the table below the first

    orders = []
    for _ in range(2):
        button.click()
        orders.append(report.column("Speed in steady state", 1))

    assert orders == [["fp32", "amp_bf16", "tf32"], ["amp_bf16", "fp32", "tf32"]]


def test_a_level_is_hidden_and_shown_again(opened: Open, brief: str) -> None:
    report = opened(brief)
    figure = report.page.locator("figure", has=report.page.locator(".views")).first
    lines, toggle = figure.locator(".scatterlayer .trace"), figure.get_by_role("button", name="amp_bf16")
    before = lines.count()

    toggle.click()
    without = lines.count()

    assert toggle.get_attribute("aria-pressed") == "false"
    assert before - without == 5 + 2  # its runs, its mean and the band of that
    toggle.click()
    assert lines.count() == before


def test_the_horizontal_axis_can_be_time(opened: Open, brief: str) -> None:
    report = opened(brief)
    figure = report.page.locator("figure", has=report.page.locator(".views")).first
    lines, title = figure.locator(".scatterlayer .trace"), figure.locator(".xtitle")
    before, steps = lines.count(), figure.locator(".xtick").all_text_contents()

    figure.get_by_label("time").check()

    assert title.text_content() == "seconds since the start"
    assert figure.locator(".xtick").all_text_contents() != steps
    assert lines.count() == before


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_the_button(opened: Open, brief: str, scheme: str) -> None:
    report = opened(brief, color_scheme=scheme)

    def is_dark() -> bool:
        return report.page.locator("body").evaluate("b => getComputedStyle(b).backgroundColor") == "rgb(20, 23, 27)"

    def ink() -> str:
        return str(report.page.locator(".xtick text").first.evaluate("t => getComputedStyle(t).fill"))

    first, first_ink = is_dark(), ink()
    report.page.locator("#theme").click()

    assert first == (scheme == "dark")
    assert is_dark() != first
    assert ink() != first_ink


def test_on_a_phone_nothing_is_wider_than_the_screen(opened: Open, whole: str) -> None:
    report = opened(whole, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)

    assert report.page.evaluate("document.documentElement.scrollWidth") == 360
    beyond = "all => all.filter(each => each.getBoundingClientRect().right > 361).length"
    # the links to sections are one line that is pushed aside
    assert report.page.locator("p, li:not(nav li), h1, h2, h3, figure").evaluate_all(beyond) == 0
    assert report.page.locator("nav ul").evaluate("ul => ul.scrollWidth > ul.clientWidth && ul.clientWidth <= 360")


def test_the_keyboard_reaches_everything_and_shows_where_it_is(opened: Open, whole: str) -> None:
    report = opened(whole)
    walked = []
    for _ in range(40):
        report.page.keyboard.press("Tab")
        walked.append(
            report.page.evaluate(
                "() => { const e = document.activeElement;"
                " return [e.tagName, e.className, getComputedStyle(e).outlineStyle] }"
            )
        )

    assert walked[0][:2] == ["A", "skip"]
    assert {tag for tag, _, _ in walked} >= {"BUTTON", "A"}
    assert all(outline != "none" for _, _, outline in walked)
    report.page.locator("th[aria-sort] button").first.focus()
    report.page.keyboard.press("Enter")
    assert report.count(".scroll:not(.further) th[aria-sort=ascending]") == 1


def test_hostile_words_do_nothing(opened: Open) -> None:
    levels = tuple(HOSTILE)
    timed = speed(9.0, 1.1)
    others = (row(level, 0.9, verdict="inconclusive", flags=(flag(level),), speed=timed) for level in levels[1:])
    told = full_comparison(
        rows=(row(levels[0], 0.9, speed=speed(9.9)), *others),
        reference=levels[0],
        where={"model": HOSTILE[1], "data": HOSTILE[3]},
    )
    runs = runs_of(levels, seeds=2, name=HOSTILE[0], experiment=HOSTILE[1], facts={HOSTILE[2]: HOSTILE[3]})
    text = report_page(publication(levels, seeds=2, title=HOSTILE[0], by=HOSTILE[3], comparison=told, runs=runs))

    report = opened(text)
    report.page.locator(".drawing .nsewdrag").first.hover()

    assert report.heard == []
    assert report.count("img, iframe, object, embed, [onerror], [onmouseover], a[href^=javascript]") == 0
    assert report.page.title() == HOSTILE[0]
    assert report.page.locator(".ytick", has_text="<img src=x onerror=alert(2)>").count() > 0
    assert report.count("svg a") == 0


def test_two_hundred_runs_are_drawn(opened: Open) -> None:
    levels = tuple(f"batch {2**at}" for at in range(40))
    rows = (row(levels[0], 0.9), *(row(level, 0.9, verdict="inconclusive") for level in levels[1:]))
    many = publication(levels, points=1000, by="training.batch_size", comparison=full_comparison(rows=rows))

    report = opened(report_page(many))

    figure = report.page.locator("figure", has=report.page.locator(".views")).first
    assert figure.locator(".scatterlayer .trace").count() == 200 + 2 * 40
    assert report.heard == []


@pytest.fixture(scope="module")
def long() -> str:
    return report_page(
        publication(seeds=400, points=2, timelines={}, scaling=None, attainment=None, comparison=comparison())
    )


def test_of_a_long_table_the_first_rows_are_laid_out_and_the_others_on_demand(opened: Open, long: str) -> None:
    report = opened(long, drawn=False)
    table = report.page.locator(".scroll:not(.further) table", has=report.page.locator("caption", has_text="All 1200"))
    assert "in all: " in table.locator("caption").inner_text()

    assert table.locator("tbody tr").count() == 500
    heading = table.locator("th[aria-sort] button", has_text="seed")
    heading.click()
    heading.click()
    seeds = table.locator("tbody tr:first-child td").all_inner_texts()
    assert "399" in seeds  # of all rows, not of those that are shown
    bar = report.page.locator(".rows", has_text="1200 rows; the first 500 are shown.")
    bar.get_by_role("button", name="Show 500 more").click()
    assert table.locator("tbody tr").count() == 1000
    report.page.get_by_role("button", name="Show all").last.click()
    assert table.locator("tbody tr").count() == 1200
    assert table.locator("tbody th").last.evaluate("cell => cell.scope") == "row"


def test_rows_are_chosen_by_what_their_columns_say(opened: Open, long: str) -> None:
    report = opened(long, drawn=False)
    table = report.page.locator(".scroll:not(.further) table", has=report.page.locator("caption", has_text="All 1200"))
    choice = report.page.get_by_role("searchbox", name="Rows").last

    choice.fill("tf32 seed 7, seed 399")  # no row of seed 70
    assert report.page.get_by_text("4 of 1200 rows match.").is_visible()
    found = [row.split("\t") for row in table.locator("tbody tr").all_inner_texts()]
    assert sorted(seed for row in found for seed in row if seed in ("7", "399")) == ["399", "399", "399", "7"]
    choice.fill("no run is called this")
    assert report.page.get_by_text("0 of 1200 rows match.").is_visible()
    choice.fill("")
    assert table.locator("tbody tr").count() == 500


def test_without_scripts_a_long_table_says_that_there_are_more_rows(long: str) -> None:
    assert "The first 500 of 1200 rows; a script shows the others." in long
    assert len(re.findall(r'<th scope="row"[^>]*>20261121-', long)) == 500 + 1  # one that does not count


def test_what_the_rows_of_a_long_table_say_is_no_markup_either(opened: Open) -> None:
    runs = [replace(each, name=HOSTILE) for each in runs_of(seeds=300)]
    report = opened(report_page(publication(seeds=300, points=2, runs=runs, timelines={})), drawn=False)

    report.page.get_by_role("button", name="Show all").last.click()

    assert report.count("tbody tr") > 900
    assert report.heard == []
    assert report.count("td img, td script") == 0


def test_a_browser_that_cannot_unpack_the_drawings_says_so_and_shows_the_numbers(
    browser: Browser, brief: str, tmp_path: Path
) -> None:
    (tmp_path / "report.html").write_text(brief, encoding="utf-8")
    context = browser.new_context()
    context.add_init_script("delete window.DecompressionStream")
    page = context.new_page()
    heard: list[str] = []
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("html[data-charts]", state="attached")

    assert heard == []
    assert page.get_by_text("this browser is older than").first.is_visible()
    assert page.locator(".drawing").count() == 0
    assert page.locator("figure table").first.is_visible()
    context.close()
