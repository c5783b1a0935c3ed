"""``hpcml note``: note something of a run."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import DashedCommand
from hpcml.cli.say import say
from hpcml.paths import Places


@click.command(cls=DashedCommand)
@click.argument("reference", metavar="RUN")
@click.argument("text", nargs=-1, required=True)
@pass_places
def note(places: Places, reference: str, text: tuple[str, ...]) -> None:
    """Note TEXT of a run, with your name and the time; hpcml show shows it."""
    from hpcml.commands import tag

    record = tag.note(places, reference, " ".join(text))
    say(f"{record.uid}  {len(record.notes)} note{'s' if len(record.notes) != 1 else ''}")
