"""``hpcml note``."""

from __future__ import annotations

import click

from hpcml.cli.dashed import DashedCommand
from hpcml.cli.main import pass_places
from hpcml.places import Places


@click.command(cls=DashedCommand)
@click.argument("reference", metavar="RUN")
@click.argument("text")
@pass_places
def note(places: Places, reference: str, text: str) -> None:
    """Note TEXT of a run, with your name and the time; hpcml show shows it."""
    from hpcml.operations import annotate

    record = annotate.note(places, reference, text)
    click.echo(f"{record.uid}  {len(record.notes)} note{'s' if len(record.notes) != 1 else ''}")
