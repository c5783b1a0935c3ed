"""``hpcml plan``: say how many seeds a verdict needs, by the spread of recorded runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import Number, WholeNumber, form, selecting
from hpcml.cli.say import say
from hpcml.paths import Places

if TYPE_CHECKING:
    from hpcml.model.planning import WantedVerdict

_POWER = 0.8


class PowerCommand(click.Command):
    """A command whose ``--power`` may stand alone: click would take the run that follows for its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take ``--power`` away where no number comes after it: the default is meant."""
        before = args[: args.index("--")] if "--" in args else args
        kept = [
            word
            for at, word in enumerate(before)
            if word != "--power" or (at + 1 < len(before) and _is_number(before[at + 1]))
        ]
        return super().parse_args(ctx, [*kept, *args[len(before) :]])


def _is_number(word: str) -> bool:
    try:
        return "." in word and float(word) is not None  # 0.9, and not the end of an id that is all digits
    except ValueError:
        return False


@click.command(cls=PowerCommand)
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option(
    "--power",
    type=Number(min=0.01, max=0.999),
    default=_POWER,
    show_default=True,
    metavar="[SHARE]",
    help="How often the verdict is to be reached, if the arms are truly equal.",
)
@click.option(
    "--margin",
    type=Number(min=0, min_open=True),
    help="A difference below it does not matter; default: as configured.",
)
@click.option("--metric", metavar="NAME", help="Default: the objective that the runs were configured with.")
@click.option("--by", default="precision", show_default=True, metavar="KEY", help="What will be compared.")
@click.option("--reference", metavar="LEVEL", help="What the others are compared with; default for precision: fp32.")
@click.option(
    "--verdict",
    type=click.Choice(["equivalent", "non-inferior"]),
    default="equivalent",
    show_default=True,
    help="What is to be shown.",
)
@click.option(
    "--comparisons",
    type=WholeNumber(min=1),
    default=1,
    show_default=True,
    help="How many share the risk of 5 %: rows that will be judged together.",
)
@selecting
@form("json", "md")
@pass_places
def plan(  # noqa: PLR0913, PLR0917 - one for each option
    places: Places,
    /,
    power: float,
    margin: float | None,
    metric: str | None,
    by: str,
    reference: str | None,
    verdict: WantedVerdict,
    comparisons: int,
    form: str | None,
    **selection: object,
) -> None:
    """Say how many seeds a verdict needs, by the spread of recorded runs.

    hpcml plan --power and hpcml plan --power 0.9 both work, as does hpcml plan alone.
    """
    from hpcml.cli.terminal import console, show
    from hpcml.commands import plan as seed_plan
    from hpcml.commands.selection import Selection
    from hpcml.report import plan as report

    found = seed_plan.seeds_for(
        places,
        Selection(**selection),  # type: ignore[arg-type] # click's own types
        by=by,
        reference=reference,
        metric=metric,
        margin=margin,
        power=power,
        verdict=verdict,
        comparisons=comparisons,
    )
    if form == "json":
        say(report.power_json(found), nl=False)
    elif form == "md":
        say(report.power_markdown(found), nl=False)
    else:
        show(report.power_table(found, console=console()))
