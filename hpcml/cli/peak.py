"""``hpcml peak``."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form, selecting
from hpcml.places import Places


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
    from hpcml.operations import attainment, consult
    from hpcml.report import attainment_data, attainment_markdown, attainment_text

    chosen = consult.Selection(**selection)  # type: ignore[arg-type] # click's own types
    if is_published and not chosen.is_empty:
        raise click.UsageError("--published lists no runs: leave out which runs are meant")
    result = attainment.published_alone() if is_published else attainment.attained_by(places, chosen)
    if form == "json":
        click.echo(attainment_data.attainment_json(result), nl=False)
    elif form == "csv":
        click.echo(attainment_data.attainment_csv(result), nl=False)
    elif form == "md":
        click.echo(attainment_markdown.attainment_markdown(result), nl=False)
    else:
        show(attainment_text.attainment_renderable(result, console=console()))
