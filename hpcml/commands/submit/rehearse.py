"""Asking the scheduler, before anything is written, whether it would take what is about to be submitted."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcml.commands.submit import launch
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.planned import Planned
from hpcml.errors import SubmissionError
from hpcml.paths import Places
from hpcml.schedulers.registry import backend_of, find_programs
from hpcml.schedulers.rehearsal import Rehearsal
from hpcml.schedulers.request import ACCOUNT_PLACEHOLDER, request_for_pack
from hpcml.units import spell_walltime

_MOST = 10  # questions of one submission: each is a call of the scheduler
_SOON_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What the scheduler said of all jobs of a submission, for people."""

    refusals: Sequence[str] = ()
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()


def rehearse(planned: Sequence[Planned], places: Places, backends: Backends) -> Rehearsed:
    """Ask about each distinct request of *planned* once; nothing is written or queued, and silence refuses nothing.

    Not asked are runs of this machine, those with ``schedule.preflight=false``, and schedulers that are not here.
    """
    can_ask = functools.cache(_can_ask)
    asked = [item for item in planned if item.run.schedule.preflight and _is_asked(item, can_ask)]
    if not asked:
        return Rehearsed()
    seen: list[object] = []
    found: list[Rehearsal] = []
    for each in launch.draft(asked, places, backends):
        request = request_for_pack(each.batch.packs[0])
        ask = backend_of(request.cluster.scheduler.name).rehearse
        if ask is None or request in seen:
            continue
        seen.append(request)
        if len(found) < _MOST:
            found.append(ask(each.batch, each.shown.script))
    left = len(seen) - len(found)
    more = [f"the scheduler was asked about {_MOST} of {len(seen)} kinds of jobs before submission"] if left else []
    return Rehearsed(
        refusals=list(dict.fromkeys(answer.refused for answer in found if answer.refused is not None)),
        warnings=list(dict.fromkeys([*(text for answer in found for text in answer.warnings), *more])),
        notes=_starts(found, time.time()),
    )


def refuse(rehearsed: Rehearsed) -> None:
    """Raise `SubmissionError` with the scheduler's first refusal."""
    if rehearsed.refusals:
        more = len(rehearsed.refusals) - 1
        others = f" (and {more} more)" if more else ""
        raise SubmissionError(f"{rehearsed.refusals[0]}{others}; nothing was written or queued")


def _is_asked(item: Planned, can_ask: Callable[[str], bool]) -> bool:
    return item.run.resources.account != ACCOUNT_PLACEHOLDER and can_ask(item.run.cluster.scheduler.name)


def _can_ask(scheduler: str) -> bool:
    return backend_of(scheduler).rehearse is not None and None not in find_programs(scheduler).values()


def _starts(found: Sequence[Rehearsal], now: float) -> list[str]:
    """Return a line for when the jobs are expected to start; none where that is at once."""
    waits = sorted(max(0.0, answer.starts_at - now) for answer in found if answer.starts_at is not None)
    if not waits or waits[-1] < _SOON_S:
        return []
    first, last = (spell_walltime(round(wait / 60) * 60) for wait in (waits[0], waits[-1]))
    when = f"in {first}" if first == last else f"in {first} to {last}"
    return [f"the scheduler expects the start {when}, as the queue stands now"]
