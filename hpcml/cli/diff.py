"""``hpcml diff``."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form
from hpcml.places import Places


@click.command()
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@click.option("--all", "everything", is_flag=True, help="Also what is alike.")
@form("json", "csv", "md")
@pass_places
def diff(places: Places, /, first: str, second: str, everything: bool, form: str | None) -> None:  # noqa: FBT001 - click
    """Show in what two runs differ: settings, environment and outcome."""
    from hpcml.cli.terminal import console, show
    from hpcml.operations import questions
    from hpcml.report import differences_table as report

    differences = questions.diff_runs(places, first, second, everything=everything)
    if form == "json":
        click.echo(report.differences_json(differences), nl=False)
    elif form == "csv":
        click.echo(report.differences_csv(differences), nl=False)
    elif form == "md":
        click.echo(report.differences_markdown(differences), nl=False)
    else:
        show(report.differences_table(differences, console=console()))
