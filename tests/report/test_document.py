from __future__ import annotations

from report_values import comparison

from hpcml.report.comparison import comparison_document
from hpcml.report.comparison_columns import csv_columns


def test_what_programs_get_is_as_wide_for_every_row() -> None:
    document = comparison_document(comparison())

    assert len({tuple(line) for line in document.flat}) == 1
    assert len(document.flat) == len(comparison().cells[0].rows)


def test_no_key_is_given_twice() -> None:
    keys = [each.key for each in csv_columns(comparison(), comparison().cells[0])]

    assert len(keys) == len(set(keys))
