"""``hpcml report``: write a report of runs: one HTML file, Markdown or LaTeX."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import comparing, form, pass_places, selecting
from hpcml.cli.say import say
from hpcml.paths import Places

if TYPE_CHECKING:
    from hpcml.analysis.compare.result import ComparisonRequest
    from hpcml.commands.selection import Selection

_DEFAULT = "report.html"


@click.command()
@click.option(
    "-o",
    "out",
    metavar="FILE",
    help=f"Default: {_DEFAULT}; .md and .tex are --md and --latex, whose default is standard output (-).",
)
@click.option("--title", metavar="TEXT", help="Of the report; default: the experiment.")
@comparing
@click.option(
    "--curve",
    "curves",
    multiple=True,
    metavar="METRIC",
    help="Draw this; default: metric, loss, step time, a loss scale that changed.",
)
@selecting
@form("md", "latex")
@pass_places
def report(
    places: Places,
    /,
    *,
    out: str | None,
    title: str | None,
    request: ComparisonRequest,
    curves: tuple[str, ...],
    form: str | None,
    selection: Selection,
) -> None:
    """Write a report of runs, all or the selected, as one HTML file that needs nothing else.

    Verdicts first, then tables and charts, then where all of it came from. An earlier report is replaced.
    """
    from hpcml.commands import report as publish
    from hpcml.report.publication import publication_document
    from hpcml.report.render.report_forms import REPORT_FORMS, form_of

    chosen = REPORT_FORMS[form or form_of(out or "")]
    wish = publish.Wish(title=title, comparison=request, curves=curves, command_line=_command_line(sys.argv))
    found = publish.publish(places, selection, wish)
    file = out or (_DEFAULT if form is None else publish.STDOUT)
    publish.write_report(chosen.render(publication_document(found)), file, sys.stdout, is_ours=chosen.is_ours)
    if file != publish.STDOUT:
        say(f"a report of {len(found.runs)} run{'s'[: len(found.runs) != 1]} is in {file}", err=True)


def _command_line(argv: list[str]) -> list[str]:
    """Return the words typed as a report may tell them: without secrets, also in ``--store=URL``."""
    from hpcml.model.secrets import masked

    return [Path(argv[0]).name, *masked(argv[1:])]
