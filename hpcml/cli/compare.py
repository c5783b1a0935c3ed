"""``hpcml compare``: compare runs that differ in one setting, with intervals and verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcml.cli.options import comparing, output_in, pass_places, selecting
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output

if TYPE_CHECKING:
    from hpcml.analysis.compare.result import ComparisonRequest
    from hpcml.commands.selection import Selection


@click.command()
@comparing
@selecting
@output_in("json", "csv", "md", "latex")
@pass_places
def compare(places: Places, /, *, request: ComparisonRequest, selection: Selection) -> Output[Any]:
    """Compare runs that differ in one setting: metric, speed, cost, and whether the difference matters.

    Runs that differ in other settings too stand in tables of their own, one for each combination.
    """
    from hpcml.commands.compare import compare_runs
    from hpcml.report.comparison import comparison_document

    return document_output(comparison_document(compare_runs(places, selection, request)))
