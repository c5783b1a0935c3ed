"""``hpcml read``: read metrics of ended runs, from what they printed and wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import narrowing, pass_places
from hpcml.cli.program import reading_metrics
from hpcml.cli.say import complain, say
from hpcml.paths import Places

if TYPE_CHECKING:
    from hpcml.commands.read import WasRead
    from hpcml.commands.selection import Selection


@click.command()
@click.argument("words", metavar="[RUN]... [workload.metrics=RULES] [workload.metrics_from=FILES]", nargs=-1)
@click.option("--forget", "is_forgotten", is_flag=True, help="Take back what was read afterwards of these runs.")
@reading_metrics
@narrowing
@pass_places
def read(
    places: Places, /, *, words: tuple[str, ...], metrics: tuple[str, ...], is_forgotten: bool, selection: Selection
) -> int:
    """Read metrics of ended runs, from what they printed and from files that they wrote.

    In the words that `hpcml run` takes, of which nobody had thought before:

    \b
    hpcml read --experiment lr --metric loss
    hpcml read 222k7wz9 workload.metrics='[{pattern: "loss (?P<loss>\\S+)"}]'
    hpcml read 222k7wz9 workload.metrics_from=results/history.csv

    A metric that a run has already stays as it is; when each value was printed is not known any more. The exit code is
    1 where nothing was read.
    """  # noqa: D301 - a real backspace, at which click wraps no lines
    from hpcml.commands import read as reading

    asked = [word for word in words if word.startswith((f"{reading.RULES}=", f"{reading.FILES}="))]
    wanted = replace(selection, references=[word for word in words if word not in asked])
    if wanted.is_empty or bool(asked or metrics) is is_forgotten:
        raise click.UsageError("say which runs, and either what is read or --forget: hpcml read RUN... --metric loss")
    if is_forgotten:
        uids = reading.forget(places, wanted)
        for uid in uids:
            say(f"{uid}  what was read afterwards is taken back")
        if not uids:
            complain("nothing was read afterwards of any run that matches")
        return 0 if uids else 1
    found = reading.read(places, wanted, reading.Sources.of(asked, metrics))
    return _tell(found)


def _tell(found: Sequence[WasRead]) -> int:
    from hpcml.report.runs import short_uid

    values = sum((one.values for one in found), Counter[str]())
    of_each = ", ".join(f"{count} values of {name}" for name, count in sorted(values.items()))
    say(f"{sum(bool(one.values) for one in found)} of {len(found)} runs{f': {of_each}' if values else ''}")
    problems: dict[str, list[str]] = {}
    for one in found:
        for problem in one.problems:
            problems.setdefault(problem, []).append(one.uid)
    for problem, uids in problems.items():
        complain(f"{len(uids)} of {len(found)} runs, as {short_uid(uids[0])}: {problem}")
    return 0 if values else 1
