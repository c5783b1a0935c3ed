"""``hpcml cancel``."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.places import Places


@click.command()
@click.argument("references", metavar="RUN...", nargs=-1, required=True)
@pass_places
def cancel(places: Places, references: tuple[str, ...]) -> None:
    """Stop runs, by id (its end is enough if it is unique) or name; a run that has ended is left as it is."""
    from hpcml.operations import consult, follow

    for record, run_dir in consult.find(places, references):
        click.echo(f"{record.uid}  {'cancelling' if follow.cancel(run_dir) else 'had ended already'}")
