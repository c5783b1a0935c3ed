"""``hpcml compare``: compare runs that differ in one setting, with intervals and verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcml.cli.options import comparing, output_in, pass_places, selecting
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection
    from hpcml.model.comparison import ComparisonRequest


@click.command()
@comparing
@selecting
@click.option("--explain", is_flag=True, help="Say how each number came about, and show all remarks.")
@click.option("--checklist", is_flag=True, help="Output what reviewers ask: seeds, lost runs, hours, code, tuning ...")
@output_in("json", "csv", "md", "latex")
@pass_places
def compare(
    places: Places, /, *, request: ComparisonRequest, selection: Selection, explain: bool, checklist: bool
) -> Output[Any]:
    """Compare runs that differ in one setting: metric, speed, cost, and whether the difference matters.

    Runs that differ in other settings too stand in tables of their own, one for each combination.
    """
    from hpcml.commands.compare import check_runs, compare_runs
    from hpcml.report.checklist import checklist_document
    from hpcml.report.comparison import comparison_document

    if checklist:
        return document_output(checklist_document(*check_runs(places, selection, request)))
    return document_output(comparison_document(compare_runs(places, selection, request), explain=explain))
