"""``hpcml runs``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form, selecting
from hpcml.places import Places

if TYPE_CHECKING:
    from hpcml.records import RunRecord


@click.command()
@selecting
@click.option("--columns", metavar="KEY,...", help="Show these and no others: whatever --where knows.")
@click.option("--sort", metavar="KEY", help="A setting, a field of the run or a metric; default: oldest first.")
@click.option("--desc", "descending", is_flag=True, help="Largest or newest first.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many.")
@click.option("--metric", metavar="NAME", help="The metric to show; default: each run's objective.")
@form("json", "csv", "md")
@pass_places
def runs(places: Places, /, columns: str | None, metric: str | None, form: str | None, **selection: object) -> None:
    """List recorded runs."""
    import time

    from hpcml.cli.hints import say_interrupted
    from hpcml.cli.terminal import console, show
    from hpcml.operations import consult
    from hpcml.report import runs_table as report
    from hpcml.report.runs_columns import keys_in

    chosen = consult.Selection(**selection)  # type: ignore[arg-type] # click's own types
    keys = keys_in(columns)
    records = consult.list_runs(places, chosen, columns=keys)
    now = time.time()
    if keys and (form or records):
        show_columns(records, keys, form=form, now=now)
    elif form == "json":
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


def show_columns(records: Sequence[RunRecord], keys: Sequence[str], *, form: str | None, now: float) -> None:
    """Print what the runs have under *keys*."""
    from hpcml.cli.terminal import console, show
    from hpcml.report import value_table as report
    from hpcml.report.runs_columns import rows_of

    rows = rows_of(records, keys, now=now)
    if form == "json":
        click.echo(report.value_json(keys, rows), nl=False)
    elif form == "csv":
        click.echo(report.value_csv(keys, rows), nl=False)
    elif form == "md":
        click.echo(report.value_markdown(keys, rows), nl=False)
    else:
        show(report.value_table(keys, rows, console=console()))
