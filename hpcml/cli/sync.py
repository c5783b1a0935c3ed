"""``hpcml sync``."""

from __future__ import annotations

import os

import click

from hpcml.cli.main import pass_places
from hpcml.places import Places


@click.command()
@pass_places
def sync(places: Places) -> int:
    """Finish interrupted submissions, ask the schedulers, retry what schedule.retry allows, read all run folders."""
    from hpcml.cli.hints import warn
    from hpcml.operations.backends import Backends
    from hpcml.operations.machine import look_around
    from hpcml.operations.standing import poll_interval_s
    from hpcml.operations.synchronise import synchronise

    interval_s = poll_interval_s(os.environ)
    backends = Backends(places=places, machine=look_around(os.environ))
    done = synchronise(places, backends, interval_s)
    for line in done.lines:
        click.echo(line)
    report = done.report
    click.echo(f"{report.runs} runs, {report.new_points} new points, {report.bad_lines} unreadable lines")
    for problem in report.problems:
        click.echo(f"hpcml: {problem}", err=True)
    for warning in done.warnings:
        warn(warning)
    return 3 if done.waiting else 0
