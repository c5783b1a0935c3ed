"""``hpcml rm``: remove runs, and what nothing needs any more; asks before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcml.cli.options import pass_places, selecting
from hpcml.cli.say import say
from hpcml.paths import Places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcml.commands.rm import Copy, Doomed
    from hpcml.commands.selection import Selection


@click.command()
@selecting
@click.option("--gone", is_flag=True, help="Only runs whose directories are gone: the store forgets them.")
@click.option("--forget", is_flag=True, help="The store alone: leave the files of runs that lie elsewhere.")
@click.option("--unused-code", is_flag=True, help="Copies of code, too, that no run needs and nobody wanted for a day.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would go.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_places
def rm(
    places: Places, /, *, gone: bool, forget: bool, unused_code: bool, dry_run: bool, yes: bool, selection: Selection
) -> int:
    """Remove runs that have ended, with all their files; lists them and asks before."""
    from hpcml.cli.terminal import warn
    from hpcml.commands import rm as act
    from hpcml.commands.rm import find_unused, remove_unused

    if selection.is_empty and not gone and not unused_code:
        raise click.UsageError("say what goes: RUN..., --experiment, --state, --where, --submission or --gone")
    if gone and forget:
        raise click.UsageError("--gone and --forget exclude each other: what is gone is forgotten")
    chooses = gone or not selection.is_empty
    doomed = act.plan_removal(places, selection, gone=gone, forget=forget) if chooses else []
    copies = find_unused(places, without={item.record.uid for item in doomed}) if unused_code else []
    _list(doomed, copies)
    if dry_run or not (doomed or copies):
        return 0
    if not yes and not _confirmed(len(doomed), len(copies)):
        say("nothing was removed", err=True)
        return 1
    troubles: list[str] = []
    for removed in act.remove(places, doomed):
        if removed.trouble is None:
            say(f"{removed.uid}  {'removed' if removed.was_deleted else 'forgotten'}")
        troubles += [removed.trouble] if removed.trouble else []
    for copy, trouble in remove_unused(copies):
        if trouble is None:
            say(f"{copy.path}  removed")
        troubles += [trouble] if trouble else []
    for trouble in troubles:
        warn(trouble)
    return 1 if troubles else 0


def _list(doomed: Sequence[Doomed], copies: Sequence[Copy]) -> None:
    from hpcml.report.store import code_line, run_line

    for item in doomed:
        say(run_line(item.record, item.size_bytes, is_gone=item.is_gone), err=True)
    for copy in copies:
        say(code_line(str(copy.path), copy.size_bytes), err=True)
    if not doomed and not copies:
        say("nothing to remove", err=True)


def _confirmed(runs: int, copies: int) -> bool:
    from hpcml.cli.terminal import confirm

    counted = [f"{runs} run{'s' if runs != 1 else ''}"] if runs else []
    counted += [f"{copies} cop{'ies' if copies != 1 else 'y'} of code"] if copies else []
    return confirm(f"Remove {' and '.join(counted)}?", otherwise="-y removes without a question")
