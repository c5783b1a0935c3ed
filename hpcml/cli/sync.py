"""``hpcml sync``: finish what was interrupted, and bring the run directories into the store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from hpcml.cli.main import pass_places
from hpcml.cli.say import complain, say
from hpcml.paths import Places

if TYPE_CHECKING:
    from hpcml.commands.sync import Synchronised


@click.command()
@click.option("--all", "is_anew", is_flag=True, help="Read every journal again, from its beginning.")
@click.option("--watch", "is_watched", is_flag=True, help="Go on doing so every few seconds; Ctrl-C ends it.")
@pass_places
def sync(places: Places, is_anew: bool, is_watched: bool) -> int:  # noqa: FBT001 - click's way
    """Finish interrupted submissions, ask the schedulers, retry what schedule.retry allows, read all run folders.

    The exit code is 1 if a run or a journal cannot be read, and 3 if a submission waits for its scheduler's answer.
    """
    from hpcml.commands.status import poll_interval_s
    from hpcml.commands.submit.backends import Backends
    from hpcml.commands.sync import keep_synchronised

    interval_s = poll_interval_s(os.environ)
    backends = Backends.here(places, os.environ)
    told: set[str] = set()
    for done in keep_synchronised(places, backends, interval_s, is_anew=is_anew):
        is_first = not told
        told = _tell(done, told, is_brief=not is_first)
        if not is_watched:
            break
    return 3 if done.waiting else 1 if done.report.problems else 0


def _tell(done: Synchronised, told: set[str], *, is_brief: bool) -> set[str]:
    """Print what was done; briefly: only what is new and was not among what was *told*. Return what was told now."""
    from hpcml.cli.terminal import warn

    report = done.report
    for line in done.lines:
        say(line)
    if not is_brief or report.new_points or report.bad_lines or report.lost_records:
        missing = f"{report.bad_lines} unreadable lines, {report.lost_records} lost records"
        say(f"{report.runs} runs, {report.new_points} new points, {missing}")
    for problem in report.problems:
        if problem not in told:
            complain(problem)
    for warning in done.warnings:
        if warning not in told:
            warn(warning)
    return {"", *report.problems, *done.warnings}
