"""``hpcml query``: answer a SELECT over the store's views."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form
from hpcml.cli.say import say
from hpcml.paths import Places


@click.command()
@click.argument("sql", required=False)
@click.option(
    "--timeout",
    default="60",
    show_default=True,
    metavar="T",
    help="Give up after so long: 60 (seconds), 500ms, 5m.",
)
@form("json", "csv", "md")
@pass_places
def query(places: Places, /, sql: str | None, timeout: str, form: str | None) -> None:
    """Answer one SELECT over the store's views; - reads it from standard input, without one the views are listed.

    Nothing can be written so.
    """
    import sys

    from hpcml.cli.terminal import console, show
    from hpcml.commands.query import ask_in_sql, views
    from hpcml.report import query as report
    from hpcml.units import parse_interval_s

    limit_s = parse_interval_s(timeout, field="--timeout")
    if limit_s <= 0:
        raise click.UsageError(f"--timeout {timeout} is no time to answer in")

    if sql is None:
        rows = report.views_as_rows(views())
    else:
        rows = ask_in_sql(places, sys.stdin.read() if sql == "-" else sql, limit_s=limit_s)
    if form == "json":
        say(report.rows_json(rows), nl=False)
    elif form == "csv":
        say(report.rows_csv(rows), nl=False)
    elif form == "md":
        say(report.rows_markdown(rows), nl=False)
    elif sql is None:
        show(report.views_table(rows, console=console()))
    else:
        show(report.rows_table(rows, console=console()))
        if remark := report.rows_remark(rows):
            say(remark, err=True)
