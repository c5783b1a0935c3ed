"""What was asked of the scheduler and what was used, in words and as a section: `show`, `estimate`, `report`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hpcml.model.asked_used import AskedUsed, of_run, over_runs
from hpcml.model.records import RunRecord
from hpcml.report.document import Column, Listing, Section
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


def asked_used_section(runs: Sequence[RunRecord]) -> Section | None:
    """Return what the runs of a report asked for and used; None where no run tells."""
    rows = list(over_runs(runs))
    if not rows:
        return None
    columns: list[Column[tuple[str, list[AskedUsed]]]] = [
        Column("resource", "resource", lambda row: row[0]),
        Column("asked", "asked", lambda row: _range(row[0], [each.asked for each in row[1]])),
        Column("used_median", "used, median", lambda row: amount(row[0], median(each.used for each in row[1]))),
        Column("used_most", "used, most", lambda row: amount(row[0], max(each.used for each in row[1]))),
        Column("largest_share", "largest share", lambda row: 100 * max(each.share for each in row[1]), unit="%"),
        Column("runs", "runs", lambda row: len(row[1])),
    ]
    caption = "What was asked of the scheduler, and what runs used of it"
    return Section(heading="Asked and used", parts=[Listing(caption=caption, columns=columns, rows=rows)])


def _range(what: str, values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return amount(what, low) if low == high else f"{amount(what, low)} to {amount(what, high)}"
