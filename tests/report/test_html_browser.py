"""Reports in a real Chromium, opened as a file: drawn, sorted, toggled, walked with the keyboard, and silent."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
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

    assert report.count(".drawing .main-svg") >= report.count(".drawing") > 10
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


_CURVES = "figure:has(.updatemenu-button)"


def test_a_level_is_hidden_by_its_name_in_the_legend(opened: Open, brief: str) -> None:
    report = opened(brief)
    figure = report.page.locator(_CURVES).first
    lines = figure.locator(".scatterlayer .trace")
    before = lines.count()

    figure.locator(".legendtoggle").nth(1).click()

    expect(lines).to_have_count(before - (5 + 2))  # its runs, its mean and the band of that


def test_the_horizontal_axis_can_be_time_and_the_vertical_one_logarithmic(opened: Open, brief: str) -> None:
    report = opened(brief)
    figure = report.page.locator(_CURVES).first
    lines, title = figure.locator(".scatterlayer .trace"), figure.locator(".xtitle")
    before, steps = lines.count(), figure.locator(".xtick").all_text_contents()

    figure.locator(".updatemenu-button", has_text="time").click()
    figure.locator(".updatemenu-button", has_text="log").click()

    assert title.text_content() == "seconds since the start"
    assert figure.locator(".xtick").all_text_contents() != steps
    assert figure.locator(".drawing").evaluate("plot => plot._fullLayout.yaxis.type") == "log"
    assert lines.count() == before
    assert report.heard == []


def test_on_a_phone_nothing_is_wider_than_the_screen(opened: Open, whole: str) -> None:
    report = opened(whole, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)

    assert report.page.evaluate("document.documentElement.scrollWidth") == 360
    beyond = "all => all.filter(each => each.getBoundingClientRect().right > 361).length"
    assert report.page.locator("p, li, h1, h2, h3, figure").evaluate_all(beyond) == 0


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
    assert report.count("th[aria-sort=ascending]") == 1


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

    figure = report.page.locator("figure", has=report.page.locator(".updatemenu-button")).first
    assert figure.locator(".scatterlayer .trace").count() == 200 + 2 * 40
    assert report.heard == []
