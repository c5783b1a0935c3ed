"""What a statement in SQL gave, in every form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, RenderableType

from hpcml.answers import Rows
from hpcml.report.value_table import value_csv, value_json, value_markdown, value_table

_SHOWN = 1000  # more rows than anybody reads in a terminal


def rows_table(rows: Rows, *, console: Console) -> RenderableType:
    """Return the first rows; where a row does not fit a line, each as a block."""
    return value_table(rows.columns, rows.rows[:_SHOWN], console=console, standing=True)


def views_table(views: Rows, *, console: Console) -> RenderableType:
    """Return the views with all their columns."""
    return value_table(views.columns, views.rows, console=console)


def rows_remark(rows: Rows) -> str | None:
    """Return how many rows the table leaves out, None where there are all."""
    more = len(rows.rows) - _SHOWN
    return f"{more} more rows: --csv, --json and --md give all" if more > 0 else None


def rows_markdown(rows: Rows) -> str:
    """Return all rows as a Markdown table."""
    return value_markdown(rows.columns, rows.rows)


def rows_csv(rows: Rows) -> str:
    """Return all rows as CSV."""
    return value_csv(rows.columns, rows.rows)


def rows_json(rows: Rows) -> str:
    """Return a JSON list with an object for each row."""
    return value_json(rows.columns, rows.rows)


def views_as_rows(views: Mapping[str, tuple[str, Sequence[str]]]) -> Rows:
    """Return the views that can be asked, as rows themselves."""
    return Rows(
        columns=("view", "a row for each", "columns"),
        rows=[(name, what, ", ".join(columns)) for name, (what, columns) in views.items()],
    )
