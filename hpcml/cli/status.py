"""``hpcml status``."""

from __future__ import annotations

import os

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form
from hpcml.places import Places


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@form("json")
@pass_places
def status(places: Places, references: tuple[str, ...], form: str | None) -> None:
    """Ask the schedulers where the runs stand that have not ended, or the runs named."""
    from hpcml.cli.terminal import console, show
    from hpcml.operations.backends import Backends
    from hpcml.operations.plan import look_around
    from hpcml.operations.standing import standings
    from hpcml.report import standing_table as report

    backends = Backends(places=places, machine=look_around(os.environ))
    found, unanswered = standings(places, references, backends)
    for line in unanswered:
        click.echo(f"hpcml: warning: {line}; what is shown is what was known before", err=True)
    rows = [(standing.record, standing.known) for standing in found]
    if form == "json":
        click.echo(report.standing_json(rows), nl=False)
    elif rows:
        show(report.standing_table(rows, console=console()))
    else:
        click.echo("no run is waiting or running", err=True)
