"""``hpcml status``."""

from __future__ import annotations

import os

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form
from hpcml.places import Places


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option("--watch", "is_watched", is_flag=True, help="Go on until all have ended; Ctrl-C leaves the runs alone.")
@form("json")
@pass_places
def status(places: Places, references: tuple[str, ...], *, is_watched: bool, form: str | None) -> int:
    """Say where the runs stand that have not ended, or the runs named; the schedulers are asked once a minute."""
    import time

    from hpcml.cli.hints import say_interrupted, warn
    from hpcml.cli.terminal import console, show
    from hpcml.operations.backends import Backends
    from hpcml.operations.machine import look_around
    from hpcml.operations.standing import poll_interval_s, standings
    from hpcml.report import standing_table as report

    if is_watched and form is not None:
        raise click.UsageError("--watch is for people: leave out --json, or ask again and again without --watch")
    interval_s = poll_interval_s(os.environ)
    backends = Backends(places=places, machine=look_around(os.environ))
    if is_watched:
        from hpcml.cli import standing_display

        return standing_display.watch_to_the_end(places, references, backends, interval_s)
    found, problems = standings(places, references, backends, interval_s)
    for line in problems:
        warn(f"{line}; what is shown is what was known before")
    rows = [report.Row(record=one.record, word=one.known, said_at=one.said_at) for one in found]
    if form == "json":
        click.echo(report.standing_json(rows), nl=False)
    elif rows and not console().is_terminal:
        click.echo(report.standing_text(rows, now=time.time()), nl=False)
    elif rows:
        show(report.standing_table(rows, console=console(), now=time.time()))
    else:
        click.echo("no run is waiting or running", err=True)
    say_interrupted(places)
    return 0
