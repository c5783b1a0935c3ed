"""``hpcml cancel``."""

from __future__ import annotations

import os

import click

from hpcml.cli.main import pass_places
from hpcml.places import Places


@click.command()
@click.argument("references", metavar="RUN...", nargs=-1, required=True)
@pass_places
def cancel(places: Places, references: tuple[str, ...]) -> None:
    """Stop runs, by id (4 characters of its end are enough if it is unique) or name; one that has ended stays so."""
    from hpcml.operations.backends import Backends
    from hpcml.operations.plan import look_around
    from hpcml.operations.stop import stop

    backends = Backends(places=places, machine=look_around(os.environ))
    for uid, was_running in stop(places, references, backends):
        click.echo(f"{uid}  {'cancelling' if was_running else 'had ended already'}")
