"""``hpcml compare``."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form, selecting
from hpcml.places import Places


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option("--by", default="precision", show_default=True, metavar="KEY", help="The one setting allowed to differ.")
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
@click.option("--allow-mixed", is_flag=True, help="Compare although other settings differ; they are listed.")
@selecting
@form("json", "csv", "md")
@pass_places
def compare(
    places: Places,
    /,
    by: str,
    reference: str | None,
    metric: str | None,
    goal: str | None,
    margin: float | None,
    allow_mixed: bool,  # noqa: FBT001 - click's flag
    form: str | None,
    **selection: object,
) -> None:
    """Compare runs that differ in one setting: metric, speed, and whether the difference matters."""
    from hpcml.cli.terminal import console, show
    from hpcml.operations import confront, consult
    from hpcml.report import comparison_data, comparison_markdown, comparison_text

    result = confront.compare_runs(
        places,
        consult.Selection(**selection),  # type: ignore[arg-type] # click's own types
        by=by,
        reference=reference,
        metric=metric,
        goal=goal,
        margin=margin,
        allow_mixed=allow_mixed,
    )
    if form == "json":
        click.echo(comparison_data.comparison_json(result), nl=False)
    elif form == "csv":
        click.echo(comparison_data.comparison_csv(result), nl=False)
    elif form == "md":
        click.echo(comparison_markdown.comparison_markdown(result), nl=False)
    else:
        show(comparison_text.comparison_renderable(result, console=console()))
