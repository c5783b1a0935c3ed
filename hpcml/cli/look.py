"""Commands that show recorded runs: runs, show, diff, query."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import click

from hpcml.cli.options import WholeNumber, form, output_in, pass_places, print_output, selecting
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


_NEWEST = ("@1",)


@click.command()
@selecting
@click.option("--all", "is_all", is_flag=True, help="Also all settings with their defaults, facts and events.")
@click.option("--files", "are_files", is_flag=True, help="The files that its program wrote, and where they lie.")
@click.option(
    "--curve",
    metavar="[METRIC]",
    is_flag=False,
    flag_value="",
    help="How METRIC went, in one run or in several; alone: the objective that they were configured with.",
)
@click.option(
    "--points", type=WholeNumber(min=1), metavar="N", help="--curve: at most so many of each run's; default: all."
)
@output_in("json", "csv", "md")
@pass_places
def show(
    places: Places, *, selection: Selection, is_all: bool, are_files: bool, curve: str | None, points: int | None
) -> Output[Any]:
    """Show what was asked of one run, its result and its end; --all shows everything recorded of it.

    RUN is an id, a unique end of one, a name, @1 for the newest run or @-1 for the last submission, if it is one run.
    Without one: the newest.
    """
    from hpcml.commands.selection import Selection

    if is_all + are_files + (curve is not None) > 1:
        raise click.UsageError("--all, --files and --curve are three questions: ask one")
    if points is not None and curve is None:
        raise click.UsageError("--points is about --curve: add it")
    chosen = replace(selection, references=_NEWEST) if selection.is_empty else selection
    if curve is not None:
        return _curves(places, chosen, curve or None, points)
    if len(chosen.references) != 1 or chosen != Selection(references=chosen.references):
        raise click.UsageError("hpcml show shows one run: name it; hpcml runs lists several, --curve draws them")
    return _files(places, chosen.references[0]) if are_files else _details(places, chosen.references[0], is_all=is_all)


def _curves(places: Places, selection: Selection, metric: str | None, points: int | None) -> Output[Any]:
    from hpcml.commands.show import curves_of
    from hpcml.model.told_apart import what_differs
    from hpcml.report import curves as report

    found = curves_of(places, selection, metric=metric, points=points)
    return document_output(report.curves_document(found, apart=what_differs(found.runs)))


def _files(places: Places, reference: str) -> Output[Any]:
    from hpcml.commands.show import files_of
    from hpcml.report import files as report

    found = files_of(places, reference)
    return document_output(report.files_document(found.work, found.files))


def _details(places: Places, reference: str, *, is_all: bool) -> Output[Any]:
    from hpcml.commands.show import show_run
    from hpcml.report import show as report

    return document_output(report.run_document(show_run(places, reference), is_all=is_all))


@click.command()
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@click.option("--all", "everything", is_flag=True, help="Also what is alike.")
@output_in("json", "csv", "md")
@pass_places
def diff(places: Places, /, first: str, second: str, *, everything: bool) -> Output[Any]:
    """Show in what two runs differ: settings, environment and outcome."""
    from hpcml.commands.show import diff_runs
    from hpcml.report import diff as report

    found = diff_runs(places, first, second, everything=everything)
    return document_output(report.differences_document(found), lines=[report.remark(found)])


@click.command()
@click.argument("sql", required=False)
@click.option("--timeout", default="60", metavar="T", help="Give up after so long: 60 (seconds), 500ms, 5m.")
@output_in("json", "csv", "md")
@pass_places
def query(places: Places, /, sql: str | None, timeout: str) -> Output[Any]:
    """Output one SELECT over the store's views; - reads it from standard input, without one the views are listed.

    Nothing can be written so.
    """
    import sys

    from hpcml.commands.runs import ask_in_sql, views
    from hpcml.report.query import rows_document, views_document
    from hpcml.units import parse_interval_s

    limit_s = parse_interval_s(timeout, field="--timeout")
    if limit_s <= 0:
        raise click.UsageError(f"--timeout {timeout} is no time to answer in")
    if sql is None:
        return document_output(views_document(views()))
    found = ask_in_sql(places, sys.stdin.read() if sql == "-" else sql, limit_s=limit_s)
    return document_output(rows_document(found.columns, found.rows), remark=None if found.rows else "no rows")
