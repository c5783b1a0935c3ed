"""``hpcml cancel``: stop runs, whether they run or wait."""

from __future__ import annotations

import os
from collections import Counter

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import selecting
from hpcml.cli.say import say
from hpcml.paths import Places

_TROUBLES = {  # by what became of the request
    "not cancelled": "{of_runs} of them could not be marked, and go on: {trouble}",
    "cancelling": (
        "{of_runs} of them could not be told to end: {trouble}; they are marked, and hpcml sync tells again"
    ),
}


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@selecting
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_places
def cancel(places: Places, /, *, yes: bool, **selection: object) -> int:
    """Stop runs, by id (4 characters of its end are enough if it is unique), name or selection; asks before."""
    from hpcml.cli.terminal import confirm, warn
    from hpcml.commands.cancel import cancel_planned, plan_cancel
    from hpcml.commands.selection import Selection
    from hpcml.commands.submit.backends import Backends
    from hpcml.report.status import open_line

    wanted = Selection(**selection)  # type: ignore[arg-type] # click's own types
    if wanted.is_empty:
        raise click.UsageError("say what is to be stopped: RUN..., --experiment, --state, --where or --submission")
    backends = Backends.here(places, os.environ)
    plan = plan_cancel(places, wanted)
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
