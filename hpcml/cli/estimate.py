"""``hpcml estimate``: say how long a sweep will take, by recorded runs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form
from hpcml.cli.program import BeforeProgram, complete_words, reading_metrics
from hpcml.cli.say import say
from hpcml.paths import Places


@click.command(cls=BeforeProgram, context_settings={"ignore_unknown_options": True})
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_words, metavar="[WORDS OF HPCML RUN]..."
)
@click.option("--as-is", is_flag=True, help="Sweep nothing of the words behind --.")
@reading_metrics
@form("json", "csv", "md")
@pass_places
def estimate(
    places: Places,
    /,
    *,
    words: tuple[str, ...],
    program_words: tuple[str, ...] | None,
    metrics: tuple[str, ...],
    as_is: bool,
    form: str | None,
) -> int:
    """Say how long a sweep will take, and what it will use, by recorded runs; nothing is submitted.

    Type what you would give to hpcml run: hpcml estimate -m precision=fp32,tf32 'seed=range(5)'
    """
    from hpcml.cli.program import compose
    from hpcml.cli.terminal import ask, console, say_remarks, show
    from hpcml.commands import estimate as operation
    from hpcml.commands.submit.check import plan_points
    from hpcml.config.sweep import most_runs
    from hpcml.report import estimate as report

    most = most_runs(os.environ)
    points, remarks = compose(words, program_words, metrics, is_literal=as_is, most=most)
    if not points:
        return 0  # Hydra has printed what was asked for
    planned, machine = plan_points(points, os.environ, Path.cwd(), ask=ask, is_dry=True, most=most)
    say_remarks(remarks)
    found = operation.estimate_runs(planned, places, machine)
    if form == "json":
        say(report.estimate_json(found), nl=False)
    elif form == "csv":
        say(report.estimate_csv(found), nl=False)
    elif form == "md":
        say(report.estimate_markdown(found), nl=False)
    else:
        show(report.estimate_table(found, console=console()))
    return 0
