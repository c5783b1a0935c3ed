"""``hpcml cancel``: stop runs, whether they run or wait."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import pass_places, selecting
from hpcml.cli.say import say
from hpcml.paths import Places

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection

_TROUBLES = {  # by what became of the request
    "not cancelled": "{of_runs} of them could not be marked, and go on: {trouble}",
    "cancelling": (
        "{of_runs} of them could not be told to end: {trouble}; they are marked, and hpcml sync tells again"
    ),
}


@click.command()
@selecting
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_places
def cancel(places: Places, /, *, yes: bool, selection: Selection) -> int:
    """Stop runs, by id (4 characters of its end are enough if it is unique), name or selection; asks before."""
    from hpcml.cli.terminal import confirm, warn
    from hpcml.commands.cancel import cancel_planned, plan_cancel
    from hpcml.commands.submit.backends import Backends
    from hpcml.report.status import open_line

    if selection.is_empty:
        raise click.UsageError("say what is to be stopped: RUN..., --experiment, --state, --where or --submission")
    backends = Backends.here(places, os.environ)
    plan = plan_cancel(places, selection)
    count = f"{len(plan.wanted)} run{'s' if len(plan.wanted) != 1 else ''}"
    if plan.wanted and not yes:
        for record in plan.wanted:
            say(open_line(record), err=True)
        if not confirm(f"Cancel {count}?", otherwise="-y cancels without a question"):
            say("nothing was cancelled", err=True)
            return 1
    troubles: Counter[tuple[str, str]] = Counter()
    for stopped in cancel_planned(plan, backends):
        say(f"{stopped.uid}  {stopped.word}")
        if stopped.trouble is not None:
            troubles[stopped.trouble, stopped.word] += 1
    for (trouble, word), of_runs in troubles.items():
        warn(_TROUBLES[word].format(of_runs=of_runs, trouble=trouble))
    if not (plan.wanted or plan.ended):
        say("no run that waits or runs matches", err=True)
    return 3 if troubles else 0
