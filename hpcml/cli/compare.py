"""``hpcml compare``: compare runs that differ in one setting, with intervals and verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import comparing, form, selecting
from hpcml.cli.say import say
from hpcml.paths import Places

if TYPE_CHECKING:
    from hpcml.model.comparison import ComparisonRequest


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@comparing
@selecting
@click.option("--explain", is_flag=True, help="Say how each number came about, and show all remarks.")
@click.option("--checklist", is_flag=True, help="Answer what reviewers ask: seeds, lost runs, hours, code, tuning ...")
@form("json", "csv", "md", "latex")
@pass_places
def compare(
    places: Places,
    /,
    request: ComparisonRequest,
    form: str | None,
    *,
    explain: bool,
    checklist: bool,
    **selection: object,
) -> None:
    """Compare runs that differ in one setting: metric, speed, cost, and whether the difference matters.

    Runs that differ in other settings too stand in tables of their own, one for each combination.
    """
    from hpcml.cli.terminal import console, show
    from hpcml.commands.compare import check_runs, compare_runs
    from hpcml.commands.selection import Selection
    from hpcml.report.comparison import comparison_document
    from hpcml.report.render.forms import FORMS
    from hpcml.report.render.terminal import as_renderable

    chosen = Selection(**selection)  # type: ignore[arg-type] # click's own types
    if checklist:
        from hpcml.report.checklist import checklist_document

        document = checklist_document(*check_runs(places, chosen, request))
    else:
        document = comparison_document(compare_runs(places, chosen, request), explain=explain)
    if form is None:
        show(as_renderable(document, console=console()))
    else:
        say(FORMS[form](document), nl=False)
