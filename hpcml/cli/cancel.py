"""``hpcml cancel``."""

from __future__ import annotations

import os

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import selecting
from hpcml.places import Places


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@selecting
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_places
def cancel(places: Places, /, *, yes: bool, **selection: object) -> int:
    """Stop runs, by id (4 characters of its end are enough if it is unique), name or selection; asks before."""
    from hpcml.cli.hints import warn
    from hpcml.cli.terminal import confirm
    from hpcml.operations.backends import Backends
    from hpcml.operations.consult import Selection
    from hpcml.operations.machine import look_around
    from hpcml.operations.stop import plan_stop, stop
    from hpcml.report.standing_table import open_line

    wanted = Selection(**selection)  # type: ignore[arg-type] # click's own types
    if wanted.is_empty:
        raise click.UsageError("say what is to be stopped: RUN..., --experiment, --state, --where or --submission")
    backends = Backends(places=places, machine=look_around(os.environ))
    wish = plan_stop(places, wanted)
    count = f"{len(wish.wanted)} run{'s' if len(wish.wanted) != 1 else ''}"
    if wish.wanted and not yes:
        for record in wish.wanted:
            click.echo(open_line(record), err=True)
        if not confirm(f"Cancel {count}?", otherwise="-y cancels without a question"):
            click.echo("nothing was cancelled", err=True)
            return 1
    troubles: dict[str, int] = {}
    for stopped in stop(wish, backends):
        click.echo(f"{stopped.uid}  {'cancelling' if stopped.was_open else 'had ended already'}")
        if stopped.trouble is not None:
            troubles[stopped.trouble] = troubles.get(stopped.trouble, 0) + 1
    for trouble, of_runs in troubles.items():
        warn(f"{of_runs} of them could not be told to end: {trouble}; they are marked, and hpcml status tells again")
    if not wish.wanted and not wish.ended:
        click.echo("no run that waits or runs matches", err=True)
    return 3 if troubles else 0
