"""Cancelling runs, waiting or running, on this machine or with a scheduler, for ``hpcml cancel``."""

from __future__ import annotations

import os
import shlex
import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.commands.collect import claim, collect, opened
from hpcml.commands.ends.write import tell_of_end
from hpcml.commands.follow import Watcher
from hpcml.commands.selection import Selection, select
from hpcml.commands.status import ticket_of
from hpcml.commands.submit.backends import Backends
from hpcml.errors import ConfigError, HpcmlError
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.cancellation import mark_cancelled
from hpcml.runs.layout import RunDir
from hpcml.runs.liveness import ProcessIdentity, pid_here
from hpcml.runs.manifest import home_of_original
from hpcml.runs.private import check
from hpcml.runs.state import EventName, read_fold
from hpcml.schedulers.contract import Submitter, Ticket
from hpcml.store.missing import runs_below
from hpcml.store.query import open_runs
from hpcml_client.journal import JournalWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelPlan:
    """The runs that would be stopped, and the jobs that must go on for the sake of others.

    `shared` are jobs that also hold runs which are not to be stopped, so that the job itself cannot be cancelled;
    `broken` are job arrays, by scheduler and job id, of which only some elements are to be cancelled.
    """

    wanted: Sequence[RunRecord]
    ended: Sequence[RunRecord]  # named, but had ended already
    shared: frozenset[Ticket]
    broken: frozenset[tuple[str, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What became of the request to one run.

    `trouble` is one line if it could not be marked ("not cancelled": it goes on), or its scheduler could not be told:
    it is marked as cancelled all the same, and `hpcml sync` repeats the request.
    """

    uid: str
    word: str  # cancelling, had ended already, not cancelled
    trouble: str | None = None


def plan_cancel(places: Places, selection: Selection) -> CancelPlan:
    """Return what stopping the selected runs would mean; nothing has happened yet.

    Raises `ConfigError` if a run that was named has not ended and belongs to another HPCML_HOME, and if one is a copy
    of a run that is there, too: the job and the processes that it names are that one's. Raises `StoreError` for names
    that mean no run and for a store that is read-only, and `NotPrivateError` where another user could have written what
    says which jobs and processes these are.
    """
    claim(places)
    with opened(places, to_write=True) as store:
        collect(store, places)
        chosen = select(store, selection)
        unended = open_runs(store, places.runs)
        ours = runs_below(store, places.runs)
    is_named = bool(selection.references)
    if is_named:
        _refuse_others([record for record in chosen if record.uid not in ours], places)
    open_uids = {record.uid for record in unended}
    wanted = [record for record in chosen if record.uid in open_uids]
    wanted_uids = {record.uid for record in wanted}
    for record in wanted:
        _check_directory(record, places)
    others = [record for record in unended if record.uid not in wanted_uids and record.job_id is not None]
    ended = [record for record in chosen if record.uid not in open_uids]
    shared = {_job(record) for record in wanted if record.is_shared} & {_job(record) for record in others}
    return CancelPlan(
        wanted=wanted,
        ended=ended if is_named else [],
        shared=frozenset(shared),
        broken=frozenset((record.scheduler, record.job_id) for record in others),
    )


def _refuse_others(records: Sequence[RunRecord], places: Places) -> None:
    """Raise `ConfigError` where one of *records*, which are not of this home, has not ended."""
    for record in records:
        if not record.state.is_final or not record.is_settled:
            raise ConfigError(f"run {record.uid} is not below {places.runs}: whoever submitted it can cancel it")


def _check_directory(record: RunRecord, places: Places) -> None:
    """Raise `NotPrivateError` where another could have written in its directory, `ConfigError` where it is a copy."""
    run_dir = RunDir(Path(record.path))
    if run_dir.path.exists():  # its journals say which process is told to end
        check(run_dir.path, top=places.home)
    if (home := home_of_original(run_dir)) is not None:
        raise ConfigError(f"run {record.uid} is a copy, whose job is that of: hpcml --home {shlex.quote(str(home))}")


def cancel_planned(plan: CancelPlan, backends: Backends) -> Iterator[Stopped]:
    """Ask every run of *plan* to stop; yield what became of each, those last that had ended before.

    Schedulers are told after all runs have been marked, each by as few calls as it takes: an array whose runs are all
    unwanted is cancelled as a whole. A job that others share goes on: its agent sees the mark of the run that is not
    wanted any more. A scheduler that cannot be told is reported in `Stopped.trouble`, not raised.
    """
    tickets: defaultdict[str, dict[str, Ticket]] = defaultdict(dict)
    outcome: dict[str, Stopped] = {}
    for record in plan.wanted:
        run_dir, is_local = RunDir(Path(record.path)), record.scheduler == "local"
        is_part = record.job_id is not None and _job(record) in plan.shared
        try:
            was_open = cancel_run(run_dir, is_local=is_local, is_shared=is_part or (record.is_shared and not is_local))
        except HpcmlError as error:
            outcome[record.uid] = Stopped(uid=record.uid, word="not cancelled", trouble=str(error))
            continue
        outcome[record.uid] = Stopped(uid=record.uid, word="cancelling" if was_open else "had ended already")
        if was_open and is_local and record.state is State.PENDING:
            _tell_webhook(record)
        if was_open and not is_local and not is_part and record.job_id is not None:
            tickets[record.scheduler][record.uid] = ticket_of(record)
    for scheduler, by_uid in tickets.items():
        try:
            troubles = _cancel_jobs(plan, backends.by_name(scheduler), by_uid)
        except HpcmlError as error:
            troubles = dict.fromkeys(by_uid, str(error))
        outcome |= {uid: replace(outcome[uid], trouble=why) for uid, why in troubles.items()}
    yield from outcome.values()
    yield from (Stopped(uid=record.uid, word="had ended already") for record in plan.ended)


def _cancel_jobs(plan: CancelPlan, backend: Submitter, tickets: Mapping[str, Ticket]) -> dict[str, str]:
    """Cancel the jobs of *tickets* that the scheduler has; return, by uid, why it said nothing of others.

    One that it does not have any more is left alone: its id may be another job's by now, where ids were counted anew.
    A scheduler that does not answer is not asked a second time: `hpcml sync` repeats the wish.
    """
    answers = backend.query(list(dict.fromkeys(tickets.values())))
    whole = [
        ticket
        if (ticket.scheduler, ticket.job_id) in plan.broken
        else replace(ticket, array_index=None, is_shared=False)  # the array as a whole, by one call
        for ticket in tickets.values()
        if ticket in answers.known
    ]
    if whole:
        backend.cancel(list(dict.fromkeys(whole)))
    return {uid: answers.unanswered[ticket] for uid, ticket in tickets.items() if ticket in answers.unanswered}


def cancel_run(run_dir: RunDir, *, is_local: bool = True, is_shared: bool = False) -> bool:
    """Ask a run to stop, whether it runs or waits; return False if it had ended already.

    Raises `HpcmlError` where the mark cannot be made; nobody has been told then.

    The mark comes first: a queue or an agent that is just starting the run sees it, and the agent of a job that is
    shared looks for it every few seconds. Else an agent that runs on this machine is told by SIGTERM, passes it on and
    kills what is left after the run's grace; one on a node of a cluster is told by its scheduler. A run that waits in
    a queue of this machine will be passed over, so it has ended.
    """
    seen = Watcher(run_dir).look()
    if seen.is_over:
        return False
    mark_cancelled(run_dir)
    if is_shared:
        return True
    starts = [start for attempt in read_fold(run_dir) for start in attempt.starts]
    agents = filter(None, (ProcessIdentity.from_details(start.details) for start in starts))
    pids = {pid for agent in agents if (pid := pid_here(agent)) is not None}  # who cannot be seen sees the mark
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    if is_local and not pids and seen.state is State.PENDING:
        with JournalWriter.open(
            str(run_dir.journals), run=run_dir.uid, attempt=seen.attempt, writer="cancel"
        ) as journal:
            journal.event(EventName.CANCELLED, {"reason": "cancelled before it started"})
    return True


def _tell_webhook(record: RunRecord) -> None:
    """Tell the webhook of a run that ended by being passed over: no agent will."""
    run_dir = RunDir(Path(record.path))
    if record.params.get("schedule.notify") in (None, "never") or not Watcher(run_dir).look().is_over:
        return
    with JournalWriter.open(str(run_dir.journals), run=record.uid, attempt=record.attempt, writer="cancel") as journal:
        tell_of_end(record, run_dir, journal, State.CANCELLED, reason="cancelled before it started", cause=None)


def _job(record: RunRecord) -> Ticket:
    """Return what runs of one job have in common."""
    return Ticket(
        scheduler=record.scheduler,
        job_id=record.job_id or "",
        array_index=record.array_index,
        job_cluster=record.job_cluster,
    )
