"""``hpcml query``."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form
from hpcml.places import Places


@click.command()
@click.argument("sql", required=False)
@click.option(
    "--timeout",
    "limit_s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up after so long.",
)
@form("json", "csv", "md")
@pass_places
def query(places: Places, /, sql: str | None, limit_s: float, form: str | None) -> None:
    """Answer one SELECT over the store's views; - reads it from standard input, without one the views are listed.

    Nothing can be written so.
    """
    import sys

    from hpcml.cli.terminal import console, show
    from hpcml.operations import questions
    from hpcml.report import query_table as report

    if sql is None:
        rows = report.views_as_rows(questions.views())
    else:
        rows = questions.ask_in_sql(places, sys.stdin.read() if sql == "-" else sql, limit_s=limit_s)
    if form == "json":
        click.echo(report.rows_json(rows), nl=False)
    elif form == "csv":
        click.echo(report.rows_csv(rows), nl=False)
    elif form == "md":
        click.echo(report.rows_markdown(rows), nl=False)
    elif sql is None:
        show(report.views_table(rows, console=console()))
    else:
        show(report.rows_table(rows, console=console()))
        if remark := report.rows_remark(rows):
            click.echo(remark, err=True)
