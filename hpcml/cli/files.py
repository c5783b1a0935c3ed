"""``hpcml files``: list what a run's program wrote."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form
from hpcml.cli.say import say
from hpcml.paths import Places


@click.command()
@click.argument("reference", metavar="RUN")
@form("json")
@pass_places
def files(places: Places, reference: str, form: str | None) -> None:
    """List the files that a run's program wrote into its working directory, and where they lie."""
    from hpcml.commands.files import files_of
    from hpcml.report import files as report

    found = files_of(places, reference)
    if form == "json":
        say(report.files_json(found.work, found.files), nl=False)
        return
    for line in report.files_lines(found.work, found.files):
        say(line)
