"""``hpcml show``: show what is recorded of a run, the files that it wrote, or how a metric went."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from hpcml.cli.options import WholeNumber, output_in, pass_places, selecting
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection

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
