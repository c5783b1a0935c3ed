"""``hpcml query``: answer a SELECT over the store's views."""

from __future__ import annotations

from typing import Any

import click

from hpcml.cli.options import output_in, pass_places
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output


@click.command()
@click.argument("sql", required=False)
@click.option("--timeout", default="60", metavar="T", help="Give up after so long: 60 (seconds), 500ms, 5m.")
@output_in("json", "csv", "md")
@pass_places
def query(places: Places, /, sql: str | None, timeout: str) -> Output[Any]:
    """Output one SELECT over the store's views; - reads it from standard input, without one the views are listed.

    Nothing can be written so.
    """
    import sys

    from hpcml.commands.query import ask_in_sql, views
    from hpcml.report.query import rows_document, views_document
    from hpcml.units import parse_interval_s

    limit_s = parse_interval_s(timeout, field="--timeout")
    if limit_s <= 0:
        raise click.UsageError(f"--timeout {timeout} is no time to answer in")
    if sql is None:
        return document_output(views_document(views()))
    found = ask_in_sql(places, sys.stdin.read() if sql == "-" else sql, limit_s=limit_s)
    return document_output(rows_document(found.columns, found.rows), remark=None if found.rows else "no rows")
