"""`hpcml query`: the rows of an SQL statement as table, Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, RenderableType

from hpcml.model.query_results import SqlRows
from hpcml.report.render.forms import Output
from hpcml.report.render.rows import value_csv, value_json, value_markdown, value_table

_SHOWN = 1000  # more rows than anybody reads in a terminal


def rows_table(rows: SqlRows, *, console: Console) -> RenderableType:
    """Return the first 1000 rows as a table; as one block each where they do not fit the width."""
    return value_table(rows.columns, rows.rows[:_SHOWN], console=console, standing=True)


def listing_table(rows: SqlRows, *, console: Console) -> RenderableType:
    """Return all rows as a table, of a few columns: the views that can be queried, or chosen columns of runs."""
    return value_table(rows.columns, rows.rows, console=console)


def rows_remark(rows: SqlRows) -> str | None:
    """Return one line on how many rows the table leaves out, None where it has all."""
    more = len(rows.rows) - _SHOWN
    return f"{more} more rows: --csv, --json and --md give all" if more > 0 else None


def rows_markdown(rows: SqlRows) -> str:
    """Return all rows as a Markdown table."""
    return value_markdown(rows.columns, rows.rows)


def rows_csv(rows: SqlRows) -> str:
    """Return all rows as CSV; NULL is an empty field, a list or object JSON text."""
    return value_csv(rows.columns, rows.rows)


def rows_json(rows: SqlRows) -> str:
    """Return a JSON list with an object for each row."""
    return value_json(rows.columns, rows.rows)


def rows_output(rows: SqlRows) -> Output[SqlRows]:
    """Return the rows of a statement as a command prints them."""
    remark = rows_remark(rows)
    return Output(rows, table=rows_table, remark=remark, json=rows_json, csv=rows_csv, md=rows_markdown)


def listing_output(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Output[SqlRows]:
    """Return a listing as a command prints it."""
    listed = SqlRows(columns=columns, rows=rows)
    return Output(listed, table=listing_table, json=rows_json, csv=rows_csv, md=rows_markdown)


def listed_views(views: Mapping[str, tuple[str, Sequence[str]]]) -> Output[SqlRows]:
    """Return the views that can be queried, each with its description and columns; *views* has these two by name."""
    rows = [(name, what, ", ".join(columns)) for name, (what, columns) in views.items()]
    return listing_output(("view", "a row for each", "columns"), rows)
