"""Batches handed to their schedulers one after the other, each recorded before the next is sent."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.operations.backends import Backends
from hpcml.operations.intent import Intent, OpenIntent, PlannedBatch, TakenOverError, have_on_disk
from hpcml.rundir import RunDir
from hpcml.schedulers.batches import token_of
from hpcml.schedulers.commands import NoAnswerError
from hpcml.schedulers.request import Request, request_for_pack
from hpcml.schedulers.submitter import Batch, Job, Submitter, Ticket
from hpcml_client.journal import JournalWriter


class UnrecordedError(HpcmlError):
    """A job was queued and this could not be written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A batch and who takes it."""

    submitter: Submitter
    batch: Batch

    @property
    def planned(self) -> PlannedBatch:
        """The batch as it is written down."""
        packs = [[str(job.source) for job in pack] for pack in self.batch.packs]
        return PlannedBatch(token=self.batch.token, packs=packs)


def batches_of(packs: Sequence[Sequence[Job]], backends: Backends, submission: str) -> list[Outgoing]:
    """Return one batch for each distinct request, split at the site's limit; a run alone keeps its own token."""
    groups: list[tuple[Request, list[Sequence[Job]]]] = []
    for pack in packs:
        request = request_for_pack(pack)
        members = next((members for known, members in groups if known == request), None)
        if members is None:
            groups.append((request, [pack]))
        else:
            members.append(pack)
    outgoing: list[Outgoing] = []
    for request, members in groups:
        limit = request.cluster.max_array_size or len(members)
        for first in range(0, len(members), limit):
            chunk = members[first : first + limit]
            alone = len(chunk) == len(chunk[0]) == 1
            token = token_of(chunk[0][0]) if alone else f"{submission}-{len(outgoing)}"
            batch = Batch(token=token, packs=chunk)
            outgoing.append(Outgoing(submitter=backends.submitter_for(request.cluster), batch=batch))
    return outgoing


def submit_all(outgoing: Sequence[Outgoing], opened: OpenIntent) -> list[Ticket]:
    """Submit every batch and record its tickets; return those in the order of the batches' runs.

    If a scheduler refuses or Ctrl-C comes, what was queued before stays queued and the rest is recorded as not
    submitted. If it is not known whether a batch was queued, all that is left stays open: `hpcml sync` finishes it.
    """
    total = sum(len(item.batch.jobs) for item in outgoing)
    tickets: list[Ticket] = []
    written: list[Path] = []
    try:
        for item in outgoing:
            opened.touch()
            with _sigint_deferred():
                given = item.submitter.submit(item.batch)
                tickets += given
                written += record(item.batch, given, opened.intent)
    except TakenOverError:
        raise
    except (NoAnswerError, UnrecordedError) as error:
        opened.leave_to_sync()
        done = f"{len(tickets)} of {total} runs are known to be queued; hpcml sync finishes this submission"
        raise type(error)(f"{error} ({done})") from error
    except (HpcmlError, KeyboardInterrupt) as error:
        for job in [job for item in outgoing for job in item.batch.jobs][len(tickets) :]:
            why = str(error) or "interrupted before it was submitted"
            tell(job.run_dir, opened.intent, "submission_failed", reason=why)
        opened.close()
        if tickets and isinstance(error, HpcmlError):
            done = f"{len(tickets)} of {total} runs were submitted before; hpcml run --missing ... submits the rest"
            raise SubmissionError(f"{error} ({done})") from error
        raise
    have_on_disk(written)
    opened.close()
    return tickets


def record(
    batch: Batch, tickets: Sequence[Ticket], intent: Intent, *, known: frozenset[str] = frozenset()
) -> list[Path]:
    """Journal the tickets of *batch*, but for the runs in *known*, whose journals have them; return the journals."""
    written: list[Path] = []
    remaining = iter(tickets)
    for index, pack in enumerate(batch.packs):
        shared = f"{batch.token}/{index}" if len(pack) > 1 else None
        for job in pack:
            ticket = next(remaining)
            if job.run_dir.uid not in known:
                written.append(_tell_submitted(job.run_dir, intent, ticket, shared))
    return written


def _tell_submitted(run_dir: RunDir, intent: Intent, ticket: Ticket, pack: str | None) -> Path:
    journal = tell(
        run_dir,
        intent,
        "submitted",
        scheduler=ticket.scheduler,
        job_id=ticket.job_id,
        array_index=ticket.array_index,
        job_name=ticket.job_name,
        pack=pack,
    )
    if journal is None:
        raise UnrecordedError(
            f"{ticket.scheduler} has run {run_dir.uid} as job {ticket.job_id}, which cannot be recorded"
        )
    return journal


def tell(run_dir: RunDir, intent: Intent, name: str, **details: object) -> Path | None:
    """Journal an event of the submission; None where it could not be written."""
    writer = JournalWriter.open(str(run_dir.journals), run=run_dir.uid, attempt=intent.attempt, writer="launch")
    writer.event(name, {**details, **intent.said})
    writer.close(sync=False)  # a sweep has thousands: they are synced together
    return Path(writer.path) if writer.path and not writer.dropped else None


@contextmanager
def _sigint_deferred() -> Iterator[None]:
    """Let Ctrl-C take effect after the block: between queueing and writing the ticket down it would lose jobs."""
    arrived: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived:
        raise KeyboardInterrupt
