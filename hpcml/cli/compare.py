"""``hpcml compare``."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form, selecting
from hpcml.places import Places


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option(
    "--by",
    default="precision",
    show_default=True,
    metavar="KEY[,KEY]",
    help="The setting whose effect is asked for; several change together.",
)
@click.option("--reference", metavar="LEVEL", help="What the others are compared with; default for precision: fp32.")
@click.option("--metric", metavar="NAME", help="Default: the objective that the runs were configured with.")
@click.option(
    "--goal", type=click.Choice(["max", "min"]), help="Which way the metric should go; default: as configured."
)
@click.option(
    "--margin",
    type=click.FloatRange(min=0, min_open=True),
    help="A difference below it does not matter; fix it beforehand.",
)
@click.option("--target", type=float, help="A value of the metric: time and energy until it was reached.")
@click.option("--score", type=click.Choice(["mlperf"]), help="Time to the target without the fastest and slowest run.")
@click.option("--allow", multiple=True, metavar="WORD[,WORD]", help="Settings and facts that may differ in a table.")
@click.option("--allow-mixed", is_flag=True, help="Compare although anything else differs; it is listed.")
@selecting
@form("json", "csv", "md", "latex")
@pass_places
def compare(  # noqa: PLR0913, PLR0917 - one for each option
    places: Places,
    /,
    by: str,
    reference: str | None,
    metric: str | None,
    goal: str | None,
    margin: float | None,
    target: float | None,
    score: str | None,
    allow: tuple[str, ...],
    allow_mixed: bool,  # noqa: FBT001 - click's flag
    form: str | None,
    **selection: object,
) -> None:
    """Compare runs that differ in one setting: metric, speed, cost, and whether the difference matters.

    Runs that differ in other settings too stand in tables of their own, one for each combination.
    """
    from hpcml.cli.terminal import console, show
    from hpcml.operations import confront, consult
    from hpcml.report import comparison_data, comparison_latex, comparison_markdown, comparison_text

    result = confront.compare_runs(
        places,
        consult.Selection(**selection),  # type: ignore[arg-type] # click's own types
        by=by,
        reference=reference,
        metric=metric,
        goal=goal,
        margin=margin,
        target=target,
        score=score,
        allow=[word.strip() for words in allow for word in words.split(",") if word.strip()],
        allow_mixed=allow_mixed,
    )
    if form == "json":
        click.echo(comparison_data.comparison_json(result), nl=False)
    elif form == "csv":
        click.echo(comparison_data.comparison_csv(result), nl=False)
    elif form == "md":
        click.echo(comparison_markdown.comparison_markdown(result), nl=False)
    elif form == "latex":
        click.echo(comparison_latex.comparison_latex(result), nl=False)
    else:
        show(comparison_text.comparison_renderable(result, console=console()))
