"""``hpcml report``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form, selecting
from hpcml.places import Places, without_password

_DEFAULT = "report.html"


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option(
    "-o", "out", metavar="FILE", help=f"Default: {_DEFAULT}; for --md and --latex standard output, which is -."
)
@click.option("--title", metavar="TEXT", help="Of the report; default: the experiment.")
@click.option("--by", metavar="KEY", help="The one setting allowed to differ; default: precision.")
@click.option("--reference", metavar="LEVEL", help="What the others are compared with; default for precision: fp32.")
@click.option("--metric", metavar="NAME", help="Default: the objective that the runs were configured with.")
@click.option("--goal", type=click.Choice(["max", "min"]), help="Which way the metric should go.")
@click.option("--margin", type=click.FloatRange(min=0, min_open=True), help="A difference below it does not matter.")
@click.option("--target", type=float, help="A value of the metric: time and energy until it was reached.")
@click.option("--score", type=click.Choice(["mlperf"]), help="Time to the target without the fastest and slowest run.")
@click.option("--allow", multiple=True, metavar="WORD[,WORD]", help="Settings and facts that may differ in a table.")
@click.option("--allow-mixed", is_flag=True, help="Compare although anything else differs; it is listed.")
@click.option("--curve", "curves", multiple=True, metavar="METRIC", help="Draw this; default: the metric and the loss.")
@selecting
@form("md", "latex")
@pass_places
def report(  # noqa: PLR0913 - one for each option
    places: Places,
    /,
    *,
    out: str | None,
    title: str | None,
    by: str | None,
    reference: str | None,
    metric: str | None,
    goal: str | None,
    margin: float | None,
    target: float | None,
    score: str | None,
    allow: tuple[str, ...],
    allow_mixed: bool,
    curves: tuple[str, ...],
    form: str | None,
    **selection: object,
) -> None:
    """Write a report of runs, all or the selected, as one HTML file that needs nothing else.

    Verdicts first, then tables and charts, then where all of it came from. An earlier report is replaced.
    """
    from hpcml.operations import consult, publish
    from hpcml.report import report_forms

    wish = publish.Wish(
        title=title,
        by=by,
        reference=reference,
        metric=metric,
        goal=goal,
        margin=margin,
        target=target,
        score=score,
        allow=[word.strip() for words in allow for word in words.split(",") if word.strip()],
        allow_mixed=allow_mixed,
        curves=curves,
        command_line=_command_line(sys.argv),
    )
    found = publish.publish(places, consult.Selection(**selection), wish)  # type: ignore[arg-type] # click's own types
    chosen = report_forms.FORMS[form or "html"]
    file = out or (_DEFAULT if form is None else publish.STDOUT)
    publish.write_report(chosen.render(found), file, sys.stdout, is_ours=chosen.is_ours)
    if file != publish.STDOUT:
        click.echo(f"a report of {len(found.runs)} runs is in {file}", err=True)


def _command_line(argv: list[str]) -> list[str]:
    """Return the words typed as a report may tell them: without a password, also in ``--store=URL``."""
    return [Path(argv[0]).name, *(without_password(word) for word in argv[1:])]
