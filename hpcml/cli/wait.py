"""``hpcml wait``: wait until runs have ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import pass_places, selecting
from hpcml.cli.say import complain, say
from hpcml.paths import Places

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection

_TIME_IS_UP = 124  # as timeout(1) has it
_INTERRUPTED = 130


@click.command()
@selecting
@click.option("--timeout", metavar="T", help="Wait no longer than this: 200 (seconds), 5m or HH:MM:SS; exit code 124.")
@pass_places
def wait(places: Places, /, timeout: str | None, selection: Selection) -> int:
    """Wait until runs have ended: those named or selected, or all that have not. Exit code 0 if all completed."""
    from hpcml.cli.terminal import warn
    from hpcml.commands.collect import opened
    from hpcml.commands.status import poll_interval_s
    from hpcml.commands.submit.backends import Backends
    from hpcml.commands.wait import TimeIsUpError
    from hpcml.commands.wait import wait as wait_for
    from hpcml.model.state import State
    from hpcml.report.status import end_line
    from hpcml.walltime import parse_wait_s

    timeout_s = None if timeout is None else parse_wait_s(timeout, field="--timeout")
    interval_s = poll_interval_s(os.environ)
    backends = Backends.here(places, os.environ)
    ends: list[State] = []
    try:
        with opened(places) as store:
            for news in wait_for(store, backends, selection, interval_s=interval_s, timeout_s=timeout_s):
                if isinstance(news, str):
                    warn(news)
                else:
                    ends.append(news.state)
                    say(end_line(news))
    except TimeIsUpError as error:
        complain(f"{error} within {timeout_s} s; {error.they} on")
        return _TIME_IS_UP
    except KeyboardInterrupt:
        say("\nhpcml: stopped waiting; the runs go on: hpcml wait waits again", err=True)
        return _INTERRUPTED
    if not ends:
        say("no run is waiting or running" if selection.is_empty else "no runs match", err=True)
    return int(any(state is not State.COMPLETED for state in ends))
