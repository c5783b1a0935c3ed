"""``hpcml wait``."""

from __future__ import annotations

import os

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import selecting
from hpcml.places import Places

_TIME_IS_UP = 124  # as timeout(1) has it
_INTERRUPTED = 130


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@selecting
@click.option("--timeout", metavar="T", help="Wait no longer than this: HH:MM:SS or 2h30m; exit code 124.")
@pass_places
def wait(places: Places, /, timeout: str | None, **selection: object) -> int:
    """Wait until runs have ended: those named or selected, or all that have not. Exit code 0 if all completed."""
    from hpcml.cli.hints import warn
    from hpcml.operations.backends import Backends
    from hpcml.operations.collect import opened
    from hpcml.operations.consult import Selection
    from hpcml.operations.machine import look_around
    from hpcml.operations.retry import Retried
    from hpcml.operations.standing import poll_interval_s
    from hpcml.operations.wait import Ended, Silent, TimeIsUpError, Waiting
    from hpcml.operations.wait import wait as wait_for
    from hpcml.quantities import parse_walltime_s
    from hpcml.report.standing_table import end_line
    from hpcml.states import State

    timeout_s = None if timeout is None else parse_walltime_s(timeout, field="--timeout")
    interval_s = poll_interval_s(os.environ)
    backends = Backends(places=places, machine=look_around(os.environ))
    wanted = Selection(**selection)  # type: ignore[arg-type] # click's own types
    ends: list[State] = []
    try:
        with opened(places) as store:
            waiting = Waiting(store=store, places=places, backends=backends, interval_s=interval_s)
            for news in wait_for(waiting, wanted, timeout_s=timeout_s):
                if isinstance(news, Ended):
                    ends.append(news.record.state)
                    click.echo(end_line(news.record))
                elif isinstance(news, Retried):
                    click.echo(f"hpcml: {news.uid} {news.why}; now {news.job}", err=True)
                elif isinstance(news, Silent):
                    warn(news.problem)
    except TimeIsUpError as error:
        click.echo(f"hpcml: {error} within {timeout}; they go on", err=True)
        return _TIME_IS_UP
    except KeyboardInterrupt:
        click.echo("\nhpcml: stopped waiting; the runs go on: hpcml wait waits again", err=True)
        return _INTERRUPTED
    if not ends:
        click.echo("no run is waiting or running" if wanted.is_empty else "no runs match", err=True)
    return int(any(state is not State.COMPLETED for state in ends))
