"""``hpcml runs``."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form, selecting
from hpcml.places import Places


@click.command()
@selecting
@click.option("--sort", metavar="KEY", help="A setting, a field of the run or a metric; default: oldest first.")
@click.option("--desc", "descending", is_flag=True, help="Largest or newest first.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many.")
@click.option("--metric", metavar="NAME", help="The metric to show; default: each run's objective.")
@form("json", "csv", "md")
@pass_places
def runs(places: Places, /, metric: str | None, form: str | None, **selection: object) -> None:
    """List recorded runs."""
    import time

    from hpcml.cli.hints import say_interrupted
    from hpcml.cli.terminal import console, show
    from hpcml.operations import consult
    from hpcml.report import runs_table as report

    records = consult.list_runs(places, consult.Selection(**selection))  # type: ignore[arg-type] # click's own types
    now = time.time()
    if form == "json":
        click.echo(report.runs_json(records), nl=False)
    elif form == "csv":
        click.echo(report.runs_csv(records), nl=False)
    elif form == "md":
        click.echo(report.runs_markdown(records, now=now, metric=metric), nl=False)
    elif records:
        show(report.runs_table(records, console=console(), now=now, metric=metric))
    else:
        click.echo("no runs recorded here yet, or none that match", err=True)
    say_interrupted(places)
