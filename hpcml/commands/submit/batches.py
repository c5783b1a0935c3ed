"""Sending batches of jobs to their schedulers one after the other, each recorded before the next is sent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.commands.submit.arrays import divide
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.submission_log import Intent, OpenIntent, PlannedBatch, TakenOverError
from hpcml.errors import HpcmlError, SubmissionError
from hpcml.model.cluster import SchedulerName
from hpcml.runs.atomic import have_on_disk
from hpcml.runs.layout import RunDir
from hpcml.runs.state import EventName
from hpcml.schedulers.batches import token_of
from hpcml.schedulers.commands import NoAnswerError
from hpcml.schedulers.contract import Batch, Job, Preview, Submitter, Ticket
from hpcml.schedulers.registry import backend_of
from hpcml.schedulers.request import Request, request_for_pack
from hpcml_client.journal import JournalWriter

NONE_SUBMITTED = "none of these runs was submitted"  # a job that builds their image may have been


class UnrecordedError(HpcmlError):
    """A job was queued, but its ticket could not be written into the run's journal.

    The submission stays open, so that `hpcml sync` can find the job at its scheduler and write the ticket then.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A batch and the submitter that it goes to; *after* is the token of the batch that has to end before."""

    submitter: Submitter
    batch: Batch
    after: str | None = None

    @property
    def planned(self) -> PlannedBatch:
        """The batch as the submission's file records it: its token, and the path of each run's manifest by pack."""
        packs = [[str(job.source) for job in pack] for pack in self.batch.packs]
        return PlannedBatch(token=self.batch.token, packs=packs, at_once=self.batch.at_once, after=self.after)

    @property
    def shown(self) -> Preview:
        """What a dry run shows: the job that it comes after has no id yet, so its batch stands there."""
        return self.submitter.preview(replace(self.batch, after_job=None if self.after is None else f"<{self.after}>"))


def batches_of(packs: Sequence[Sequence[Job]], backends: Backends, submission: str) -> list[Outgoing]:
    """Return the batches that *packs* go out in: one for each distinct request, or several where `arrays` divides them.

    Each of *packs* becomes one element of an array: its runs share that job and run one after the other. Packs with
    equal requests keep their order; the queue of this machine takes unequal ones too. Of the runs on one cluster that
    name the same `resources.array_parallelism`, no more than that run at once, in however many batches they are. A
    batch of one run has that run's own token; every other has *submission* with a running number, and a scheduler can
    be asked by that token whether it has the batch.
    """
    groups: list[_Group] = []
    for pack in packs:
        request = request_for_pack(pack)
        group = next((known for known in groups if _may_share(known.request, request)), None)
        if group is None:
            groups.append(_Group(request, [pack]))
        else:
            group.packs.append(pack)
    limited: dict[object, list[_Group]] = {}
    for group in groups:
        site = group.request.cluster
        key = (site.name, site.max_array_size, site.max_parallel, group.request.array_parallelism)
        limited.setdefault(key, []).append(group)
    outgoing: list[Outgoing] = []
    for together in limited.values():
        outgoing += _divided(together, backends, submission, len(outgoing))
    return outgoing


@dataclass(frozen=True, slots=True)
class _Group:
    """Packs that may share an array, and what is asked for them."""

    request: Request
    packs: list[Sequence[Job]]


def _may_share(one: Request, other: Request) -> bool:
    """Tell whether jobs may be in one batch: in an array all are equal, the queue of this machine takes any."""
    if one.cluster.scheduler is not SchedulerName.local or other.cluster.scheduler is not SchedulerName.local:
        return one == other
    limits = [(each.cluster.name, each.cluster.max_parallel, each.array_parallelism) for each in (one, other)]
    return limits[0] == limits[1]


def _divided(groups: Sequence[_Group], backends: Backends, submission: str, number: int) -> list[Outgoing]:
    """Return the batches of *groups*, which share one limit; those with a number of their own count from *number*."""
    request = groups[0].request
    divided = divide(
        [len(group.packs) for group in groups],
        largest=_largest(request),
        at_once=request.array_parallelism,
    )
    outgoing: list[Outgoing] = []
    for group, parts in zip(groups, divided, strict=True):
        first = 0
        for part in parts:
            packs = group.packs[first : first + part.count]
            first += part.count
            alone = len(packs) == len(packs[0]) == 1
            token = token_of(packs[0][0]) if alone else f"{submission}-{number + len(outgoing)}"
            outgoing.append(
                Outgoing(
                    submitter=backends.submitter_for(group.request.cluster),
                    batch=Batch(token=token, packs=packs, at_once=part.at_once),
                    after=None if part.after is None else outgoing[part.after].batch.token,
                )
            )
    return outgoing


def _largest(request: Request) -> int | None:
    """Return how many elements an array may have; without one that can be limited, each run is a job of its own."""
    if request.cluster.scheduler is SchedulerName.local:
        return None
    is_limited = request.array_parallelism is not None
    return (
        1
        if is_limited and not backend_of(request.cluster.scheduler.name).limits_arrays
        else (request.cluster.max_array_size)
    )


def submit_all(outgoing: Sequence[Outgoing], opened: OpenIntent) -> list[Ticket]:
    """Submit every batch and record its tickets; return those in the order of the batches' runs.

    Tickets are journalled right after each batch, and synced to the disk together at the end. What happens on trouble:

    - The scheduler refuses a batch (`SubmissionError`), or Ctrl-C comes: what was queued before stays queued, the rest
      is journalled as `submission_failed`, and *opened* is closed. What is raised says how many these are.
    - It is not known whether a batch was queued (`NoAnswerError`), or a ticket could not be recorded
      (`UnrecordedError`): everything that is left stays open, and `hpcml sync` finishes it.
    - Another process has taken the submission over (`TakenOverError`): nothing more is written.
    """
    total = sum(len(item.batch.jobs) for item in outgoing)
    tickets: list[Ticket] = []
    written: list[Path] = []
    jobs: dict[str, str] = {}  # ids by token
    try:
        for item in outgoing:
            opened.touch()
            with _sigint_deferred():
                given = item.submitter.submit(replace(item.batch, after_job=jobs.get(item.after or "")))
                jobs[item.batch.token] = given[0].job_id
                tickets += given
                written += record(item.batch, given, opened.intent)
    except TakenOverError:
        raise
    except (NoAnswerError, UnrecordedError) as error:
        opened.leave_to_sync()
        done = f"{len(tickets)} of {total} runs are known to be queued; hpcml sync finishes this submission"
        raise type(error)(f"{error} ({done})") from error
    except (HpcmlError, KeyboardInterrupt) as error:
        with suppress(KeyboardInterrupt), _sigint_deferred():
            for job in [job for item in outgoing for job in item.batch.jobs][len(tickets) :]:
                why = str(error) or "interrupted before it was submitted"
                tell(job.run_dir, opened.intent, EventName.SUBMISSION_FAILED, reason=why)
            have_on_disk(written)
            opened.close()
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(_interrupted(len(tickets), total, opened.intent)) from error
        if tickets:
            done = f"{len(tickets)} of {total} runs were submitted before; hpcml run --missing ... submits the rest"
            raise SubmissionError(f"{error} ({done})") from error
        raise
    try:
        with _sigint_deferred():
            have_on_disk(written)
            opened.close()
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(_interrupted(total, total, opened.intent)) from error
    return tickets


def _interrupted(count: int, total: int, intent: Intent) -> str:
    """Return what Ctrl-C has left of a submission of *total* runs, *count* of which are queued."""
    if not count:
        return NONE_SUBMITTED
    if intent.attempt:
        return f"{count} of {total} runs were queued again: hpcml status shows them"
    ended = f"hpcml cancel --submission {intent.submission} ends {'it' if count == 1 else 'them'}"
    rest = "" if count == total else ", hpcml run --missing ... submits the rest"
    return f"{count} of {total} runs {'was' if count == 1 else 'were'} submitted: {ended}{rest}"


def record(
    batch: Batch, tickets: Sequence[Ticket], intent: Intent, *, known: frozenset[str] = frozenset()
) -> list[Path]:
    """Journal the tickets of *batch*, one per run and in the order of its runs; return the journals that were written.

    Runs whose uid is in *known* are left out, since their journals have the ticket already. The journals are not synced
    yet: `have_on_disk` is for the caller. Raises `UnrecordedError` for the first ticket that cannot be written.
    """
    written: list[Path] = []
    remaining = iter(tickets)
    for index, pack in enumerate(batch.packs):
        shared = f"{batch.token}/{index}" if len(pack) > 1 else None
        for job in pack:
            ticket = next(remaining)
            if job.run_dir.uid not in known:
                written.append(tell_submitted(job.run_dir, intent, ticket, shared))
    return written


def tell_submitted(run_dir: RunDir, intent: Intent, ticket: Ticket, pack: str | None) -> Path:
    """Journal that the run is the job of *ticket*, in *pack* if it shares that job; return the journal.

    Raises `UnrecordedError` where it cannot be written.
    """
    journal = tell(
        run_dir,
        intent,
        EventName.SUBMITTED,
        scheduler=ticket.scheduler,
        job_id=ticket.job_id,
        array_index=ticket.array_index,
        job_name=ticket.job_name,
        pack=pack,
        **({} if ticket.job_cluster is None else {"job_cluster": ticket.job_cluster}),
        **({} if ticket.queue is None else {"queue": ticket.queue.as_details()}),
    )
    if journal is None:
        raise UnrecordedError(
            f"{ticket.scheduler} has run {run_dir.uid} as job {ticket.spelled}, which cannot be recorded"
        )
    return journal


def tell(run_dir: RunDir, intent: Intent, name: str, **details: object) -> Path | None:
    """Append an event of the submission to the run's journal; return that journal, or None where it was not written.

    The event carries *details* and what the intent says of it (`why`, `by`); it belongs to the intent's attempt.
    """
    writer = JournalWriter.open(str(run_dir.journals), run=run_dir.uid, attempt=intent.attempt, writer="launch")
    writer.event(name, {**details, **intent.said})
    writer.close(sync=False)  # a sweep has thousands: they are synced together
    return Path(writer.path) if writer.path and not writer.dropped else None


@contextmanager
def _sigint_deferred() -> Iterator[None]:
    """Let Ctrl-C take effect after the block: between queueing and writing the ticket down it would lose jobs.

    It only ever interrupts the main thread, so others have nothing to defer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived:
        raise KeyboardInterrupt
