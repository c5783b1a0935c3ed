"""``hpcml published``: show tables that others published, above one's own runs."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form, selecting
from hpcml.cli.say import say
from hpcml.paths import Places


@click.command()
@click.argument("keys", metavar="[TABLE]...", nargs=-1)
@selecting
@form("json", "csv", "md")
@pass_places
def published(places: Places, /, keys: tuple[str, ...], form: str | None, **selection: object) -> None:
    """Show tables that others published: accuracies in TF32 and FP32, claims of speed, specifications.

    Without TABLE they are listed; a part of a name is enough. Selected runs stand below a table of precisions.
    """
    from hpcml.cli.terminal import console, show
    from hpcml.commands.published import compare_beside
    from hpcml.commands.selection import Selection
    from hpcml.model.published_tables import choose_tables, published_tables
    from hpcml.report.comparison import comparison_document
    from hpcml.report.published import published_document, published_list
    from hpcml.report.render.forms import FORMS
    from hpcml.report.render.terminal import as_renderable

    tables = choose_tables(keys)
    if form == "csv" and len(tables) > 1:
        raise click.UsageError(f"--csv has the columns of one table, and {len(tables)} were chosen: name one")
    own = compare_beside(places, tables, Selection(**selection))  # type: ignore[arg-type] # click's own types
    if not tables:
        document = published_list(published_tables())
    else:
        document = published_document(tables, None if own is None else comparison_document(own))
    if form is None:
        show(as_renderable(document, console=console()))
    else:
        say(FORMS[form](document), nl=False)
