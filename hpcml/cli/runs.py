"""``hpcml runs``: list recorded runs, or those that did best by a metric."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import click

from hpcml.cli.options import WholeNumber, form, pass_places, print_output, selecting
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection


@click.command()
@selecting
@click.option("--columns", metavar="KEY,...", help="Show these and no others: whatever --where knows.")
@click.option("--sort", metavar="KEY", help="A setting, a field of the run or a metric; default: oldest first.")
@click.option("--desc", "descending", is_flag=True, help="Largest or newest first.")
@click.option("--limit", type=WholeNumber(min=1), metavar="N", help="At most so many; by time the newest.")
@click.option("--metric", metavar="NAME", help="The metric to show; default: each run's objective.")
@click.option(
    "--best",
    metavar="[METRIC]",
    is_flag=False,
    flag_value="",
    help="The runs that did best by METRIC, 10 or --limit; alone: by the objective that they were configured with.",
)
@click.option("--goal", type=click.Choice(["max", "min"]), help="--best: which value it is; default: as configured.")
@click.option("--by", multiple=True, metavar="KEY", help="--best: in each group of runs alike in it; may be repeated.")
@click.option(
    "--at",
    type=click.Choice(["last", "best"]),
    help="--best: by the value that a run ended with, the default, or the best that it ever had, which rewards noise.",
)
@form("json", "csv", "md")
@pass_places
def runs(  # noqa: PLR0913 - one for each option
    places: Places,
    /,
    *,
    selection: Selection,
    columns: str | None,
    sort: str | None,
    descending: bool,
    limit: int | None,
    metric: str | None,
    best: str | None,
    goal: str | None,
    by: tuple[str, ...],
    at: Literal["last", "best"] | None,
    form: str | None,
) -> int:
    """List recorded runs; with --best those that did best by a metric."""
    if best is not None:
        if columns or sort or descending or metric:
            raise click.UsageError("--best has an order and columns of its own: leave the other options out")
        return print_output(
            _best(places, selection, best or None, goal=goal, by=by, at=at or "last", count=limit), form
        )
    if goal or by or at:
        raise click.UsageError("--goal, --by and --at are about --best: add --best METRIC")
    chosen = replace(selection, sort=sort, descending=descending, limit=limit)
    from hpcml.cli.terminal import say_interrupted

    code = print_output(_listed(places, chosen, columns=columns, metric=metric, form=form), form)
    say_interrupted(places)
    return code


def _best(places: Places, selection: Selection, metric: str | None, **how: Any) -> Output[Any]:  # noqa: ANN401 - as given
    from hpcml.commands.runs import best_runs
    from hpcml.report import best as report

    ranking = best_runs(places, selection, metric=metric, **how)
    return document_output(report.ranking_document(ranking), remark=report.ranking_remark(ranking))


def _listed(
    places: Places, selection: Selection, *, columns: str | None, metric: str | None, form: str | None
) -> Output[Any]:
    import time

    from hpcml.commands.runs import list_runs
    from hpcml.model.told_apart import what_differs
    from hpcml.report import runs as report

    keys, now = report.keys_in(columns), time.time()
    is_table = not keys and form in (None, "md")
    asked = [*keys, *([] if metric is None else [f"metrics.{metric}"])]
    records = list_runs(places, selection, columns=asked, settings=report.SHOWN_SETTINGS if is_table else None)
    if not records and form is None:
        return Output(records, remark=_none(places, selection))
    if keys:
        from hpcml.report.query import rows_document

        return document_output(rows_document(keys, report.rows_of(records, keys, now=now)))
    apart = what_differs(records) if is_table else {}
    return document_output(report.runs_document(records, now=now, metric=metric, apart=apart))


def _none(places: Places, selection: Selection) -> str:
    if not selection.is_empty:
        return "no recorded run matches; hpcml runs lists them all"
    if any(places.runs.glob("*/*/")):
        return "no run here can be read"
    return "no runs recorded here yet; hpcml run -n shows what a first one would do"
