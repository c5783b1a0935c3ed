"""``hpcml peak``: show what runs attained of what their devices can do at most."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form, selecting
from hpcml.cli.say import say
from hpcml.paths import Places


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option("--published", "is_published", is_flag=True, help="List what others published, and no runs.")
@selecting
@form("json", "csv", "md")
@pass_places
def peak(
    places: Places,
    /,
    is_published: bool,  # noqa: FBT001 - click's flag
    form: str | None,
    **selection: object,
) -> None:
    """Show what runs attained of what their devices can do at most, and what may have kept them from more."""
    from hpcml.cli.terminal import console, show
    from hpcml.commands import peak as attainment
    from hpcml.commands.selection import Selection
    from hpcml.report.render.forms import FORMS
    from hpcml.report.render.terminal import as_renderable
    from hpcml.report.utilization import utilization_document

    chosen = Selection(**selection)  # type: ignore[arg-type] # click's own types
    if is_published and not chosen.is_empty:
        raise click.UsageError("--published lists no runs: leave out which runs are meant")
    result = attainment.published_alone() if is_published else attainment.attained_by(places, chosen)
    document = utilization_document(result)
    if form is None:
        show(as_renderable(document, console=console()))
    else:
        say(FORMS[form](document), nl=False)
