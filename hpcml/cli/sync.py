"""``hpcml sync``."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.places import Places


@click.command()
@pass_places
def sync(places: Places) -> None:
    """Bring the run directories into the store. The other commands do it by themselves; delete the store and sync."""
    from hpcml.operations.collect import collect, opened

    with opened(places) as store:
        report = collect(store, places)
    click.echo(f"{report.runs} runs, {report.new_points} new points, {report.bad_lines} unreadable lines")
    for problem in report.problems:
        click.echo(f"hpcml: {problem}", err=True)
