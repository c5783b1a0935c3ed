"""Reports on paper: printed to PDF by a real Chromium, then read and looked at."""

from __future__ import annotations

import re
from typing import NamedTuple

import pypdfium2
import pytest
from rendered import report_page

from tests.report.browsing import Open, Opened
from tests.report.publication_values import publication
from tests.report.report_values import comparison

_READ = "td, th, p, li, dt, dd, h1, h2, h3, code"
_WORDS = f"""() => [...document.querySelectorAll("{_READ}")]
    .filter((each) => !each.closest("details, nav, .tools, noscript, .skip"))
    .flatMap((each) => each.textContent.split(/\\s+/))"""


class Paper(NamedTuple):
    pages: list[pypdfium2.PdfPage]
    texts: list[str]


def printed(report: Opened, size: str) -> Paper:
    pages = list(pypdfium2.PdfDocument(report.page.pdf(format=size)))
    return Paper(pages, [page.get_textpage().get_text_range() for page in pages])


def whole_words(report: Opened) -> set[str]:
    """The words of the page; those with a hyphen, behind which a line may end, are left out, but not numbers."""
    return {word for word in report.page.evaluate(_WORDS) if word and "-" not in word[1:]}


@pytest.mark.story
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_each_word_and_number_is_whole_on_white(opened: Open, scheme: str) -> None:
    told = publication(seeds=2, points=71, timelines={}, scaling=None, comparison=comparison())
    report = opened(report_page(told), color_scheme=scheme)
    words = whole_words(report)

    paper = printed(report, "A4")

    text = "\n".join(paper.texts)
    assert {word for word in words if word not in text} == set()
    assert paper.pages[0].render(scale=1).to_numpy()[5, 5].tolist() == [255, 255, 255]
    assert report.heard == []


def test_a_long_table_has_its_headings_on_each_page(opened: Open) -> None:
    levels = tuple(f"batch {2**at}" for at in range(30))
    told = publication(levels, seeds=5, curves=(), timelines={}, scaling=None, attainment=None, comparison=None)

    paper = printed(opened(report_page(told)), "A4")

    with_rows = [text for text in paper.texts if text.count("20261121-08") > 5]
    assert len(with_rows) > 2
    assert all(re.search(r"(?m)^run \w+ ", text) for text in with_rows)


def test_the_screen_is_as_before_when_it_was_printed(opened: Open) -> None:
    report = opened(
        report_page(publication(seeds=2, points=30, timelines={}, scaling=None)),
        color_scheme="dark",
        viewport={"width": 900, "height": 700},
    )
    layout = (
        "[...document.querySelectorAll('.main-svg, table, figure')].map((e) => "
        "{const box = e.getBoundingClientRect(); return [box.left, box.width, box.height]})"
    )
    before = report.page.evaluate(layout)

    report.page.pdf(format="A4")

    assert report.page.evaluate(layout) == before
    assert report.page.locator("body").evaluate("b => getComputedStyle(b).backgroundColor") == "rgb(20, 23, 27)"
