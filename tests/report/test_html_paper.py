"""Reports on paper: printed to PDF by a real Chromium, then read and looked at."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pypdfium2
import pytest
from rendered import report_page

from tests.report.browsing import Open, Opened
from tests.report.publication_values import publication, runs_of
from tests.report.report_values import comparison

_GREEN = (0x00, 0x9E, 0x73)  # of the last level, which is drawn over the others
_SCALE = 2  # pixels of a point
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


def middle_of(page: pypdfium2.PdfPage, text: str, *, above: float) -> float:
    """Return where the lowest *text* that stands higher than *above* has its middle, in points from the left."""
    words = page.get_textpage()
    search = words.search(text, match_whole_word=True)
    found = []
    while (at := search.get_next()) is not None:
        boxes = [words.get_charbox(at[0] + each) for each in range(at[1])]
        found.append((boxes[0][1], (boxes[0][0] + boxes[-1][2]) / 2))
    return min(each for each in found if each[0] > above)[1]


def bottom_of(page: pypdfium2.PdfPage, text: str) -> float:
    words = page.get_textpage()
    at = words.search(text).get_next()
    assert at is not None
    return float(words.get_charbox(at[0])[1])


@pytest.mark.story
@pytest.mark.parametrize(("size", "scheme"), [("Letter", "dark"), ("A5", "light")])
def test_each_word_and_number_is_whole_and_each_curve_ends_where_its_data_end(
    opened: Open, size: str, scheme: str
) -> None:
    told = publication(
        seeds=2, points=71, timelines={}, scaling=None, comparison=comparison(), command_line=("hpcml", *["word"] * 60)
    )
    report = opened(report_page(told), drawn=False, color_scheme=scheme)
    words = whole_words(report)

    paper = printed(report, size)

    text = "\n".join(paper.texts)
    assert {word for word in words if word not in text} == set()
    assert text.count("word") >= 60
    chart = "val_accuracy. Thin lines: each of 6 runs"
    page = next(page for page, found in zip(paper.pages, paper.texts, strict=True) if chart in found)
    below = bottom_of(page, chart)
    zero, six_hundred = (middle_of(page, tick, above=below) for tick in ("0", "600"))
    picture = page.render(scale=_SCALE).to_numpy()[:, :, 2::-1].astype(int)
    height = picture.shape[0]
    green = np.abs(picture[: height - int(below * _SCALE)] - _GREEN).sum(axis=2) < 30
    drawn_to = np.flatnonzero(green.any(axis=0))[-1] / _SCALE
    assert drawn_to == pytest.approx(zero + (six_hundred - zero) * 700 / 600, abs=6)
    assert drawn_to < page.get_width()
    assert picture[5, 5].tolist() == [255, 255, 255]
    assert report.heard == []


def test_a_long_table_has_its_headings_on_each_page(opened: Open) -> None:
    levels = tuple(f"batch {2**at}" for at in range(30))
    told = publication(levels, seeds=5, curves=(), timelines={}, scaling=None, attainment=None, comparison=None)

    paper = printed(opened(report_page(told)), "A4")

    with_rows = [text for text in paper.texts if text.count("20261121-08") > 5]
    assert len(with_rows) > 2
    assert all(re.search(r"(?m)^run \w+ ", text) for text in with_rows)


def test_no_text_of_a_table_is_written_over_the_column_beside_it(opened: Open) -> None:
    facts = {"env.TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE": "0", "packages": "numpy 2.1.3 torch 2.6.0 " * 12}
    told = publication(
        seeds=2, runs=runs_of(seeds=2, facts=facts), curves=(), timelines={}, scaling=None, attainment=None
    )
    report = opened(report_page(told), drawn=False)

    report.page.evaluate("dispatchEvent(new Event('beforeprint'))")

    cells = report.page.locator(".scroll :is(th, td)")
    assert cells.filter(has_text="GRAPH_REWRITE").count() == 1
    assert cells.evaluate_all("all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)") == []


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
