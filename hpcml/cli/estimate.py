"""``hpcml estimate``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form
from hpcml.places import Places


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[WORDS OF HPCML RUN]...")
@form("json", "csv", "md")
@pass_places
def estimate(places: Places, /, words: tuple[str, ...], form: str | None) -> int:
    """Say how long a sweep will take, and what it will use, by recorded runs; nothing is submitted.

    Type what you would give to hpcml run: hpcml estimate -m precision=fp32,tf32 'seed=range(5)'
    """
    from hpcml.cli.terminal import ask, console, show
    from hpcml.config.compose import compose_from_cli
    from hpcml.operations import estimate as operation
    from hpcml.operations.account import with_accounts
    from hpcml.operations.machine import look_around
    from hpcml.operations.plan import plan_all
    from hpcml.report import estimate_table as report
    from hpcml.schedulers.request import ACCOUNT_PLACEHOLDER

    points = compose_from_cli(words, project=Path.cwd())
    if not points:
        return 0  # Hydra has printed what was asked for
    points = with_accounts(points, os.environ, Path.cwd(), ask=ask, placeholder=ACCOUNT_PLACEHOLDER)
    machine = look_around(os.environ)
    found = operation.estimate_runs(plan_all(points, machine), places, machine)
    if form == "json":
        click.echo(report.estimate_json(found), nl=False)
    elif form == "csv":
        click.echo(report.estimate_csv(found), nl=False)
    elif form == "md":
        click.echo(report.estimate_markdown(found), nl=False)
    else:
        show(report.estimate_table(found, console=console()))
    return 0
