"""``hpcml tag``: give runs tags, take them away, and note something of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import narrowing, pass_places
from hpcml.cli.say import say
from hpcml.paths import Places

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection


# -draft is a word here, and not the options -d, -r, -a, -f and -t: all options are long.
@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@click.argument("words", metavar="[RUN]... +TAG|-TAG...", nargs=-1)
@click.option("--note", metavar="TEXT", help="Note it of the runs, with your name and the time; hpcml show shows it.")
@narrowing
@pass_places
def tag(places: Places, /, *, words: tuple[str, ...], note: str | None, selection: Selection) -> None:
    """Give runs tags and take them away: hpcml tag 222k7wz9 +paper -draft."""
    from hpcml.commands.tag import tag as annotate
    from hpcml.report.runs import notes_line, tags_line

    if unknown := [word for word in words if word.startswith("--")]:
        raise click.NoSuchOption(unknown[0])
    changes = [word for word in words if word.startswith(("+", "-"))]
    wanted = replace(selection, references=[word for word in words if word not in changes])
    if wanted.is_empty or not (changes or note is not None):
        raise click.UsageError("say which runs, and what to change: hpcml tag RUN... +paper -draft --note TEXT")
    records = annotate(places, wanted, changes, note=note)
    for record in records:
        say(tags_line(record) if changes else notes_line(record))
    if not records:
        say("no run matches", err=True)
