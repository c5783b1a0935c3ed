"""``hpcml best``: list the runs that did best by a metric."""

from __future__ import annotations

from typing import Literal

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import WholeNumber, form, selecting
from hpcml.cli.say import say
from hpcml.paths import Places


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option("--metric", metavar="NAME", help="Default: the objective that the runs were configured with.")
@click.option("--goal", type=click.Choice(["max", "min"]), help="Which value is the best; default: as configured.")
@click.option("--by", multiple=True, metavar="KEY", help="The best of each group of runs alike in it; may be repeated.")
@click.option("-n", "count", type=WholeNumber(min=1), help="So many; default: 10, or 1 of each group.")
@click.option(
    "--at",
    type=click.Choice(["last", "best"]),
    default="last",
    show_default=True,
    help="The value that a run ended with, or the best that it ever had, which rewards noise.",
)
@selecting
@form("json", "csv", "md")
@pass_places
def best(
    places: Places,
    /,
    metric: str | None,
    goal: str | None,
    by: tuple[str, ...],
    count: int | None,
    at: Literal["last", "best"],
    form: str | None,
    **selection: object,
) -> None:
    """List the runs that did best by a metric."""
    from hpcml.cli.terminal import console, show
    from hpcml.commands.best import best_runs
    from hpcml.commands.selection import Selection
    from hpcml.report import best as report

    chosen = Selection(**selection)  # type: ignore[arg-type] # click's own types
    ranking = best_runs(places, chosen, metric=metric, goal=goal, at=at, by=by, count=count)
    if form == "json":
        say(report.ranking_json(ranking), nl=False)
    elif form == "csv":
        say(report.ranking_csv(ranking), nl=False)
    elif form == "md":
        say(report.ranking_markdown(ranking), nl=False)
    else:
        show(report.ranking_table(ranking, console=console()))
        say(report.ranking_remark(ranking), err=True)
