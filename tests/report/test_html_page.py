from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import plotly.graph_objects as go
import pytest
from rendered import report_page

from tests.report.publication_values import HOSTILE, LEVELS, full_comparison, publication, runs_of
from tests.report.report_values import flag, row


class Page(HTMLParser):
    """The tags of a page, the texts of its scripts and all other text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._inside: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._inside = dict(attrs)
            self.scripts.append((self._inside, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            self.text += data
        else:
            self.scripts[-1] = (self._inside, self.scripts[-1][1] + data)

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def figures(self) -> list[dict[str, Any]]:
        return [json.loads(text) for attributes, text in self.scripts if attributes.get("type") == "application/json"]


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(report_page(publication()))


def test_the_numbers_of_a_comparison_are_on_the_page(page: Page) -> None:
    for word in ("0.9108", "± 0.0024", "-0.0010", "[-0.0018, -0.0002]", "equivalent", "worse"):
        assert word in page.text, word
    for word in ("8.979", "2.22", "[2.21, 2.23]", "emulated", "fp32, tf32"):
        assert word in page.text, word
    for word in ("812.5", "counter", "board", "0.610", "[0.590, 0.630]", "93.10", "an operator's word"):
        assert word in page.text, word
    for word in ("310.0", "12.0", "1395", "18432", "44.0", "power", "4 of 5", "10m12s"):
        assert word in page.text, word


def test_conclusions_come_before_everything_that_they_rest_on(page: Page) -> None:
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", report_page(publication()))

    assert headings == [
        "Summary",
        "Comparison by precision",
        "Training curves",
        "Telemetry",
        "Scaling over GPUs",
        "Peaks",
        "Environment and confounders",
        "Runs",
        "How the numbers were obtained",
        "Reproduce",
    ]
    assert page.text.index("2.22 [2.21, 2.23] times as fast as fp32") < page.text.index(
        "val_accuracy against fp32; margin"
    )


def test_nothing_is_linked_from_outside(page: Page) -> None:
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), attributes


def test_every_chart_is_a_figure_that_plotly_knows(page: Page) -> None:
    figures = page.figures()

    assert len(figures) >= 12
    for figure in figures:
        known = go.Figure(data=figure["data"], layout=figure["layout"])
        assert any(trace.x for trace in known.data)
        for trace in known.data:
            assert trace.visible is False or len(trace.x) == len(trace.y), figure


def test_each_chart_has_words_and_numbers_that_stand_for_it(page: Page) -> None:
    drawings = [attributes for attributes in page.attributes("div") if attributes.get("class") == "drawing"]

    assert len(drawings) == len(page.figures())
    assert all(drawing["role"] == "group" and len(drawing["aria-label"] or "") > 20 for drawing in drawings)
    assert len(page.attributes("details")) == len(drawings)


def test_tables_have_captions_and_scopes(page: Page) -> None:
    assert len(page.attributes("caption")) == len(page.attributes("table")) > 15
    assert {attributes.get("scope") for attributes in page.attributes("th")} == {"col", "row"}
    assert {name for name, _ in page.tags} >= {"main", "nav", "header", "footer", "section"}


def test_hostile_words_are_text_wherever_they_come_from() -> None:
    calm = Page(report_page(publication(LEVELS[: len(HOSTILE)])))
    levels = tuple(HOSTILE)
    rows = (
        row(levels[0], 0.9),
        *(row(level, 0.9, verdict="inconclusive", flags=(flag(level),)) for level in levels[1:]),
    )
    cell = {
        "rows": rows,
        "where": {"model": HOSTILE[0], "data": HOSTILE[1]},
        "device": HOSTILE[2],
        "reference": HOSTILE[0],
    }
    told = publication(levels, seeds=2, title=HOSTILE[0], by=HOSTILE[3], comparison=full_comparison(**cell))
    runs = runs_of(levels, seeds=2, name=HOSTILE[0], experiment=HOSTILE[1], facts={HOSTILE[0]: HOSTILE[5]})

    text = report_page(
        publication(levels, seeds=2, title=told.title, by=told.by, comparison=told.comparison, runs=runs)
    )

    page = Page(text)
    assert {name for name, _ in page.tags} <= {"ol", *(name for name, _ in calm.tags)}
    assert not [a for _, a in page.tags for name in a if name.startswith("on")]
    assert HOSTILE[0] in page.text
    assert "{{ 7*7 }}" in page.text
    text.encode()  # a lone surrogate is spelt out, else no file could hold it
    for character in ("\u2028", "\u202e", "\x1b"):
        assert character not in page.text + "".join(
            script for a, script in page.scripts if a.get("type") == "application/json"
        )


def test_what_is_drawn_by_plotly_is_no_markup_either() -> None:
    levels = tuple(HOSTILE)
    page = Page(report_page(publication(levels, seeds=2, comparison=None)))

    for figure in page.figures():
        drawn = json.dumps(figure["data"]) + json.dumps(figure["layout"])
        assert not re.search(r"<(?!br>|/?extra>)", drawn)


def test_a_value_that_is_no_number_is_a_gap_and_no_invalid_json() -> None:
    known = publication(points=20)
    curves = known.curves[0]
    uid = next(iter(curves.curves.points))
    broken = [
        point._replace(value=math.nan) if at == 7 else point for at, point in enumerate(curves.curves.points[uid])
    ]
    points = {**curves.curves.points, uid: broken}

    told = type(curves)(
        group=0,
        curves=type(curves.curves)(metric=curves.curves.metric, runs=curves.curves.runs, points=points),
        bands=curves.bands,
    )
    page = Page(report_page(publication(points=20, curves=(told,))))

    (figure,) = [figure for figure in page.figures() if "updatemenus" in figure["layout"]]
    assert figure["data"][0]["y"][7] is None


def test_two_hundred_runs_of_a_thousand_points_stay_below_twelve_megabytes() -> None:
    levels = tuple(f"batch {2**at}" for at in range(40))
    rows = (row(levels[0], 0.9), *(row(level, 0.9, verdict="inconclusive") for level in levels[1:]))

    many = publication(levels, points=1000, by="training.batch_size", comparison=full_comparison(rows=rows))
    text = report_page(many)

    assert len(many.runs) == 200
    size = len(text.encode())
    assert size < 12_000_000
