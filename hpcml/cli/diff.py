"""``hpcml diff``: show in what two runs differ."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form
from hpcml.cli.say import say
from hpcml.paths import Places


@click.command()
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@click.option("--all", "everything", is_flag=True, help="Also what is alike.")
@form("json", "csv", "md")
@pass_places
def diff(places: Places, /, first: str, second: str, everything: bool, form: str | None) -> None:  # noqa: FBT001 - click
    """Show in what two runs differ: settings, environment and outcome."""
    from hpcml.cli.terminal import console, show
    from hpcml.commands.diff import diff_runs
    from hpcml.report import diff as report

    differences = diff_runs(places, first, second, everything=everything)
    if form == "json":
        say(report.differences_json(differences), nl=False)
    elif form == "csv":
        say(report.differences_csv(differences), nl=False)
    elif form == "md":
        say(report.differences_markdown(differences), nl=False)
    else:
        show(report.differences_table(differences, console=console()))
