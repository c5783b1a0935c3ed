"""``hpcml peak``: show what runs attained of what their devices can do at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcml.cli.options import output_in, pass_places, selecting
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection


@click.command()
@click.option("--published", "is_published", is_flag=True, help="List what others published, and no runs.")
@selecting
@output_in("json", "csv", "md")
@pass_places
def peak(places: Places, /, *, is_published: bool, selection: Selection) -> Output[Any]:
    """Show what runs attained of what their devices can do at most, and what may have kept them from more."""
    from hpcml.commands import peak as attainment
    from hpcml.report.utilization import utilization_document

    if is_published and not selection.is_empty:
        raise click.UsageError("--published lists no runs: leave out which runs are meant")
    result = attainment.published_alone() if is_published else attainment.attained_by(places, selection)
    return document_output(utilization_document(result))
