"""``hpcml tag``: give runs tags, and take them away."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import DashedCommand, selecting
from hpcml.cli.say import say
from hpcml.paths import Places


@click.command(cls=DashedCommand)
@click.argument("words", metavar="[RUN]... +TAG|-TAG...", nargs=-1)
@selecting
@pass_places
def tag(places: Places, /, *, words: tuple[str, ...], **selection: object) -> None:
    """Give runs tags and take them away: hpcml tag 222k7wz9 +paper -draft."""
    from hpcml.commands.selection import Selection
    from hpcml.commands.tag import parse_change
    from hpcml.commands.tag import tag as change_tags
    from hpcml.report.runs import tags_line

    changes = [word for word in words if word.startswith(("+", "-"))]
    wanted = Selection(references=[word for word in words if word not in changes], **selection)  # type: ignore[arg-type]
    if wanted.is_empty or not changes:
        raise click.UsageError("say which runs, and what to change: hpcml tag RUN... +paper -draft")
    records = change_tags(places, wanted, [parse_change(word) for word in changes])
    for record in records:
        say(tags_line(record))
    if not records:
        say("no run matches", err=True)
