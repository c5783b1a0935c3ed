"""``hpcml curves``: show how a metric went in runs."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import WholeNumber, form, selecting
from hpcml.cli.say import say
from hpcml.paths import Places


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option("--metric", metavar="NAME", help="Default: the objective that the runs were configured with.")
@click.option(
    "--points",
    type=WholeNumber(min=1),
    metavar="N",
    help="At most so many of each run's, evenly chosen; default: all.",
)
@selecting
@form("json", "csv", "md")
@pass_places
def curves(places: Places, /, metric: str | None, points: int | None, form: str | None, **selection: object) -> None:
    """Show how a metric went in runs: its shape here, its points as CSV or JSON."""
    from hpcml.cli.terminal import console, show
    from hpcml.commands.curves import curves_of
    from hpcml.commands.selection import Selection
    from hpcml.model.told_apart import what_differs
    from hpcml.report import curves as report

    chosen = Selection(**selection)  # type: ignore[arg-type] # click's own types
    found = curves_of(places, chosen, metric=metric, points=points)
    if form == "json":
        say(report.curves_json(found), nl=False)
    elif form == "csv":
        say(report.curves_csv(found), nl=False)
    elif form == "md":
        say(report.curves_markdown(found, apart=what_differs(found.runs)), nl=False)
    else:
        show(report.curves_table(found, console=console(), apart=what_differs(found.runs)))
