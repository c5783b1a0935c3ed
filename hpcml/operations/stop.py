"""Runs stopped on request, wherever they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.errors import ConfigError, HpcmlError
from hpcml.operations import follow, notify
from hpcml.operations.backends import Backends
from hpcml.operations.collect import collect, opened
from hpcml.operations.consult import Selection, select
from hpcml.operations.standing import ticket_of
from hpcml.operations.verdicts import Verdict
from hpcml.operations.watcher import Watcher
from hpcml.places import Places
from hpcml.records import RunRecord
from hpcml.rundir import RunDir
from hpcml.schedulers.submitter import Ticket
from hpcml.states import State
from hpcml.store.missing import runs_below
from hpcml.store.queries import open_runs
from hpcml_client.journal import JournalWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The runs that would be stopped, and the jobs that must go on for the sake of others.

    `shared` are jobs of which only a part is wanted to end, `broken` the same of arrays, by scheduler and job id.
    """

    wanted: Sequence[RunRecord]
    ended: Sequence[RunRecord]  # named, but had ended already
    shared: frozenset[Ticket]
    broken: frozenset[tuple[str, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What became of a wish for one run. `trouble`: its scheduler could not be told, in one line."""

    uid: str
    was_open: bool
    trouble: str | None = None


def plan_stop(places: Places, selection: Selection) -> Wish:
    """Return what stopping the selected runs would mean; nothing has happened yet."""
    with opened(places, to_write=True) as store:
        collect(store, places)
        chosen = select(store, selection)
        unended = open_runs(store, places.runs)
        ours = runs_below(store, places.runs)
    for record in chosen:
        if record.uid not in ours and selection.references and _goes_on(record):
            raise ConfigError(f"run {record.uid} is not below {places.runs}: whoever submitted it can cancel it")
    open_uids = {record.uid for record in unended}
    wanted = [record for record in chosen if record.uid in open_uids]
    wanted_uids = {record.uid for record in wanted}
    others = [record for record in unended if record.uid not in wanted_uids and record.job_id is not None]
    shared = {_job(record) for record in wanted if record.is_shared} & {_job(record) for record in others}
    return Wish(
        wanted=wanted,
        ended=[record for record in chosen if record.uid not in open_uids] if selection.references else [],
        shared=frozenset(shared),
        broken=frozenset((record.scheduler, record.job_id) for record in others),
    )


def stop(wish: Wish, backends: Backends) -> Iterator[Stopped]:
    """Ask every run of *wish* to stop; the schedulers are told last, each by as few calls as it takes.

    A job that others share goes on: its agent sees the mark of the run that is not wanted any more.
    """
    tickets: defaultdict[str, dict[Ticket, list[str]]] = defaultdict(dict)
    outcome: dict[str, Stopped] = {}
    for record in wish.wanted:
        is_local = record.scheduler == "local"
        is_part = record.job_id is not None and _job(record) in wish.shared
        was_open = follow.cancel(
            RunDir(Path(record.path)), is_local=is_local, is_shared=is_part or (record.is_shared and not is_local)
        )
        outcome[record.uid] = Stopped(uid=record.uid, was_open=was_open)
        if was_open and is_local and record.state is State.PENDING:
            _tell_of_end(record)
        if was_open and not is_local and not is_part and record.job_id is not None:
            ticket = ticket_of(record)
            if (record.scheduler, record.job_id) not in wish.broken:
                ticket = replace(ticket, array_index=None, is_shared=False)  # the array as a whole, by one call
            tickets[record.scheduler].setdefault(ticket, []).append(record.uid)
    for scheduler, by_ticket in tickets.items():
        try:
            backends.by_name(scheduler).cancel(list(by_ticket))
        except HpcmlError as error:
            for uid in (uid for uids in by_ticket.values() for uid in uids):
                outcome[uid] = Stopped(uid=uid, was_open=True, trouble=str(error))
    yield from outcome.values()
    yield from (Stopped(uid=record.uid, was_open=False) for record in wish.ended)


def _goes_on(record: RunRecord) -> bool:
    return not record.state.is_final or not record.is_settled


def _tell_of_end(record: RunRecord) -> None:
    """Tell the webhook of a run that ended by being passed over: no agent will."""
    run_dir = RunDir(Path(record.path))
    if record.params.get("schedule.notify") in (None, "never") or not Watcher(run_dir).look().is_over:
        return
    with JournalWriter.open(str(run_dir.journals), run=record.uid, attempt=record.attempt, writer="cancel") as journal:
        verdict = Verdict(attempt=record.attempt, name="cancelled", details={"reason": "cancelled before it started"})
        notify.tell_of_end(record, run_dir, verdict, tell=lambda name, **details: journal.event(name, details))


def _job(record: RunRecord) -> Ticket:
    """Return what runs of one job have in common."""
    return Ticket(scheduler=record.scheduler, job_id=record.job_id or "", array_index=record.array_index)
