"""``hpcml plan``: say how many seeds a verdict needs, or how long a sweep will take, by recorded runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcml.cli.options import Number, WholeNumber, narrowing, output_in, pass_places
from hpcml.cli.program import BeforeProgram, complete_words
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcml.commands.selection import Selection

_POWER = 0.8


class PlanCommand(BeforeProgram):
    """A command that takes the words of `hpcml run` with ``--time``; without it, words with a dash are mistakes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let pass options that are not known where they are those of `hpcml run`."""
        before = args[: args.index("--")] if "--" in args else args
        ctx.ignore_unknown_options = "--time" in before
        return super().parse_args(ctx, args)


@click.command(cls=PlanCommand)
@click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    shell_complete=complete_words,
    metavar="[RUN]... | --time [WORDS OF HPCML RUN]...",
)
@click.option(
    "--time",
    "is_time",
    is_flag=True,
    help="How long a sweep will take and what it will use: type what hpcml run would be given. Nothing is submitted.",
)
@click.option("--as-is", is_flag=True, help="--time: sweep nothing of the words behind --.")
@click.option(
    "--power",
    type=Number(min=0.01, max=0.999),
    default=_POWER,
    metavar="SHARE",
    help="How often the verdict is to be reached, if the arms are truly equal.",
)
@click.option(
    "--margin", type=Number(min=0, min_open=True), help="A difference below it does not matter; default: as configured."
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Default: the objective that the runs were configured with; --time: as in hpcml run.",
)
@click.option("--by", default="precision", metavar="KEY", help="What will be compared.")
@click.option("--reference", metavar="LEVEL", help="What the others are compared with; default for precision: fp32.")
@click.option(
    "--verdict", type=click.Choice(["equivalent", "non-inferior"]), default="equivalent", help="What is to be shown."
)
@click.option(
    "--comparisons",
    type=WholeNumber(min=1),
    default=1,
    help="How many share the risk of 5 %: rows that will be judged together.",
)
@narrowing
@output_in("json", "csv", "md")
@pass_places
def plan(
    places: Places,
    /,
    *,
    words: tuple[str, ...],
    program_words: tuple[str, ...] | None,
    is_time: bool,
    as_is: bool,
    metrics: tuple[str, ...],
    selection: Selection,
    **wish: Any,  # noqa: ANN401 - what `seeds_for` takes
) -> Output[Any]:
    """Say how many seeds a verdict needs, by the spread of recorded runs; with --time, how long a sweep will take.

    hpcml plan --time -m precision=fp32,tf32 'seed=range(5)'
    """
    from dataclasses import replace

    from hpcml.commands.plan import seeds_for
    from hpcml.report import plan as report

    if is_time:
        if not selection.is_empty:
            raise click.UsageError("--time is about runs to come: leave out which recorded ones are meant")
        return _time(places, words, program_words, metrics, is_literal=as_is)
    if as_is:
        raise click.UsageError("--as-is is about --time: add it")
    if len(metrics) > 1:
        raise click.UsageError("--metric was given twice, and one is planned for: give one")
    recorded = replace(selection, references=[*words, *(program_words or ())])
    found = seeds_for(places, recorded, metric=metrics[0] if metrics else None, **wish)
    return document_output(report.power_document(found))


def _time(
    places: Places,
    words: Sequence[str],
    program_words: Sequence[str] | None,
    metrics: Sequence[str],
    *,
    is_literal: bool,
) -> Output[Any]:
    from hpcml.cli.program import compose
    from hpcml.cli.terminal import ask, say_remarks
    from hpcml.commands.estimate import estimate_runs
    from hpcml.commands.submit.check import plan_points
    from hpcml.config.sweep import most_runs
    from hpcml.report import estimate as report

    most = most_runs(os.environ)
    points, remarks = compose(words, program_words, metrics, is_literal=is_literal, most=most)
    if not points:
        return Output(None, json=lambda _: "", csv=lambda _: "", md=lambda _: "")  # Hydra has printed what was asked
    planned, machine = plan_points(points, os.environ, Path.cwd(), ask=ask, is_dry=True, most=most)
    say_remarks(remarks)
    return document_output(report.estimate_document(estimate_runs(planned, places, machine)))
