"""``hpcml retry``: try failed runs again, as their causes ask for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import pass_places, selecting
from hpcml.cli.say import say
from hpcml.paths import Places

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection


@click.command()
@selecting
@click.option(
    "--cause", metavar="CAUSE", help="Only runs that failed for it: time_limit, host_memory, node_failure ..."
)
@click.option("--walltime", metavar="T", help="As resources.walltime, instead of what the policy says.")
@click.option("--mem", metavar="M", help="As resources.mem, instead of what the policy says.")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_places
def retry(
    places: Places,
    /,
    *,
    cause: str | None,
    walltime: str | None,
    mem: str | None,
    dry_run: bool,
    yes: bool,
    selection: Selection,
) -> int:
    """Try failed runs again as their cause asks for: more time, another node, from the checkpoint, or not at all.

    Without a word of which runs: all that the cluster broke and that were not done again since.
    """
    from hpcml.cli.terminal import confirm
    from hpcml.commands import retry as operation
    from hpcml.commands.submit.backends import Backends
    from hpcml.report.status import left_lines, retry_lines

    overrides = {name: value for name, value in (("walltime", walltime), ("mem", mem)) if value is not None}
    backends = Backends.here(places, os.environ)
    if not dry_run:
        operation.finish_interrupted(places, backends)
    found = operation.candidates(places, selection, cause=cause, overrides=overrides)
    decided = [(one.record, one.cause.value, one.decision.why, one.manifest is not None) for one in found]
    is_about_all = selection.is_empty and cause is None
    for line in retry_lines([entry for entry in decided if entry[-1]] if is_about_all else decided):
        say(line)
    for line in left_lines(decided) if is_about_all else ():
        say(line)
    chosen = [one for one in found if one.manifest is not None]
    if not found:
        say("no failed run matches", err=True)
    if dry_run or not chosen:
        return int(bool(found) and not chosen and not is_about_all)  # nothing to repair is no failure
    count = f"{len(chosen)} run{'s' if len(chosen) != 1 else ''}"
    if not yes and not confirm(f"Retry {count}?", otherwise="-y retries without a question"):
        say("nothing was retried", err=True)
        return 1
    for retried in operation.retry(places, backends, chosen):
        say(f"{retried.uid}  {retried.job}")
    return 0
