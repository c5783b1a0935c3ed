"""What was asked of the scheduler and what was used, in words."""

from __future__ import annotations

from hpcml.model.asked_used import AskedUsed, of_run
from hpcml.model.records import RunRecord
from hpcml.report.text import number
from hpcml.walltime import spell_walltime

_SETTINGS = {"walltime": "resources.walltime", "cores": "resources.cpus_per_task", "memory": "resources.mem"}


def amount(what: str, value: float) -> str:
    """Return an amount of a resource with its unit."""
    if what == "walltime":
        return spell_walltime(round(value))
    return number(value, 2) if what == "cores" else f"{number(value, 3)} MiB"


def used_line(run: RunRecord) -> str | None:
    """Return one line for an ended run, ``walltime 40m of 8h (8 %), cores ...``; None where nothing is known."""
    told = [
        f"{each.what} {amount(each.what, each.used)} of {amount(each.what, each.asked)} ({100 * each.share:.0f} %)"
        for each in of_run(run)
    ]
    return ", ".join(told) or None


def expected_line(each: AskedUsed) -> str:
    """Return a line for a run that is planned: what it asks for, and what recorded runs alike used at most."""
    took = "took" if each.what == "walltime" else "kept so many busy:" if each.what == "cores" else "held"
    runs = "such a run" if each.runs == 1 else f"{each.runs} such runs"
    most = "" if each.runs == 1 else " at most"
    return (
        f"{_SETTINGS[each.what]}: asked {amount(each.what, each.asked)}, {runs} {took} "
        f"{amount(each.what, each.used)}{most}"
    )
