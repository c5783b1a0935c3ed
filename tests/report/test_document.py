from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

import pytest
from publication_values import publication
from report_values import comparison

from hpcml.model.comparison import Cell, Comparison, Row
from hpcml.report.comparison import comparison_document
from hpcml.report.comparison_costs import OUTCOME
from hpcml.report.comparison_rows import row_quantities
from hpcml.report.document import Document
from hpcml.report.publication import publication_document
from hpcml.report.quantities import Quantity, Short, line_table, report_table, short_table
from hpcml.report.render.data import as_csv, as_json
from hpcml.report.render.html.page import as_page
from hpcml.report.render.latex import as_latex, as_latex_report
from hpcml.report.render.markdown import as_markdown, as_markdown_report
from hpcml.report.render.terminal import as_text

SELECTED: Quantity[Row] = Quantity(
    key="hours_waited",
    heading="waited",
    unit="h",
    section=OUTCOME,
    is_derived=True,
    value=lambda row: 1000.5 + row.n_ok,
)


def with_one_more(compared: Comparison, cell: Cell) -> Sequence[Quantity[Row]]:
    return [*row_quantities(compared, cell), SELECTED]


@pytest.fixture(scope="module")
def compared() -> Document:
    return comparison_document(comparison(), with_one_more)


@pytest.fixture(scope="module")
def reported() -> Document:
    return publication_document(publication(), with_one_more)


def test_a_quantity_that_is_defined_once_stands_in_every_form_of_a_comparison(compared: Document) -> None:
    rows = json.loads(as_json(compared))["cells"][0]["rows"]
    lines = list(csv.DictReader(io.StringIO(as_csv(compared))))

    assert [line.split() for line in as_text(compared).splitlines() if "waited" in line] == [
        ["waited,", "h", "1006", "1006", "1004"]
    ]
    assert "| waited, h | 1006 | 1006 | 1004 |" in as_markdown(compared)
    assert r"  waited, h & 1006 & 1006 & 1004 \tabularnewline" in as_latex(compared)
    assert [row["hours_waited"] for row in rows] == [1005.5, 1005.5, 1003.5]
    assert [line["hours_waited"] for line in lines] == ["1005.5", "1005.5", "1003.5"]


def test_a_quantity_that_is_defined_once_stands_in_every_form_of_a_report(reported: Document) -> None:
    page = as_page(reported)

    assert "waited (h)" in page
    assert 'data-order="1005.5">' in page
    assert "| waited (h) |" in as_markdown_report(reported)
    assert "waited (h)" in as_latex_report(reported)


def test_what_programs_get_is_as_wide_for_every_row() -> None:
    document = comparison_document(comparison())

    assert len({tuple(line) for line in document.flat}) == 1
    assert len(document.flat) == len(comparison().cells[0].rows)


def test_no_key_is_given_twice() -> None:
    keys = [each.key for each in row_quantities(comparison(), comparison().cells[0]) if each.key is not None]

    assert len(keys) == len(set(keys))


def test_columns_stand_in_their_order_and_new_ones_where_they_were_defined() -> None:
    def of(heading: str, **more: int) -> Quantity[int]:
        return Quantity(heading=heading, value=lambda row: row, section="s", short=Short(), **more)  # type: ignore[arg-type] # order

    table = report_table("t", [of("b"), of("last", order=1), of("c"), of("a", order=-1)], [1])

    assert [column.heading for column in table.shown()] == ["a", "b", "c", "last"]


def test_what_nobody_has_is_neither_a_column_nor_a_line() -> None:
    empty: Quantity[int] = Quantity(heading="empty", value=lambda _: None, short=Short())
    line: Quantity[int] = Quantity(heading="nothing", value=lambda _: None)
    named: Quantity[int] = Quantity(heading="name", value=lambda row: row, short=Short())

    assert [column.heading for column in short_table([named, empty, line], [1, 2]).shown()] == ["name"]
    assert line_table([named, empty, line], [1, 2], ["one", "two"]) is None
