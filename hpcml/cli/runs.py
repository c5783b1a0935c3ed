"""``hpcml runs``: list recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import WholeNumber, form, selecting
from hpcml.cli.say import say
from hpcml.paths import Places

if TYPE_CHECKING:
    from hpcml.model.records import RunRecord


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@selecting
@click.option("--columns", metavar="KEY,...", help="Show these and no others: whatever --where knows.")
@click.option("--sort", metavar="KEY", help="A setting, a field of the run or a metric; default: oldest first.")
@click.option("--desc", "descending", is_flag=True, help="Largest or newest first.")
@click.option("--limit", type=WholeNumber(min=1), metavar="N", help="At most so many; by time the newest.")
@click.option("--metric", metavar="NAME", help="The metric to show; default: each run's objective.")
@form("json", "csv", "md")
@pass_places
def runs(places: Places, /, columns: str | None, metric: str | None, form: str | None, **selection: object) -> None:
    """List recorded runs."""
    import time

    from hpcml.cli.terminal import console, say_interrupted, show
    from hpcml.commands.runs import list_runs
    from hpcml.commands.selection import Selection
    from hpcml.model.told_apart import what_differs
    from hpcml.report import runs as report
    from hpcml.report.runs import keys_in

    chosen = Selection(**selection)  # type: ignore[arg-type] # click's own types
    keys = keys_in(columns)
    is_table = not keys and form in (None, "md")
    asked = [*keys, *([] if metric is None else [f"metrics.{metric}"])]
    records = list_runs(places, chosen, columns=asked, settings=report.SHOWN_SETTINGS if is_table else None)
    now = time.time()
    if keys and (form or records):
        show_columns(records, keys, form=form, now=now)
    elif form == "json":
        for piece in report.runs_json(records):
            say(piece, nl=False)
    elif form == "csv":
        say(report.runs_csv(records), nl=False)
    elif form == "md":
        say(report.runs_markdown(records, now=now, metric=metric, apart=what_differs(records)), nl=False)
    elif records:
        show(report.runs_table(records, console=console(), now=now, metric=metric, apart=what_differs(records)))
    elif chosen.is_empty:
        none = "no runs recorded here yet; hpcml run -n shows what a first one would do"
        say("no run here can be read" if any(places.runs.glob("*/*/")) else none, err=True)
    else:
        say("no recorded run matches; hpcml runs lists them all", err=True)
    say_interrupted(places)


def show_columns(records: Sequence[RunRecord], keys: Sequence[str], *, form: str | None, now: float) -> None:
    """Print what the runs have under *keys*."""
    from hpcml.cli.terminal import console, show
    from hpcml.report.render import rows as report
    from hpcml.report.runs import rows_of

    rows = rows_of(records, keys, now=now)
    if form == "json":
        say(report.value_json(keys, rows), nl=False)
    elif form == "csv":
        say(report.value_csv(keys, rows), nl=False)
    elif form == "md":
        say(report.value_markdown(keys, rows), nl=False)
    else:
        show(report.value_table(keys, rows, console=console()))
