"""What a scheduler must be able to do for hpcml: the contract that every backend keeps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from hpcml.manifest import Manifest
from hpcml.rundir import RunDir
from hpcml.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What the scheduler calls a submitted run."""

    scheduler: str
    job_id: str
    array_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run ready to be queued: its directory is complete."""

    run_dir: RunDir
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Exactly what a submission sends: the command's words and the script it names."""

    command: Sequence[str]
    script: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a scheduler says of a job."""

    state: State
    raw: str  # its own word
    exit_code: str | None = None  # as it writes it: Slurm's 0:15, PBS's Exit_status
    reason: str | None = None  # why it waits or ended
    expected_start: str | None = None  # ISO 8601, local time of the scheduler


class Submitter(Protocol):
    """A scheduler, or this machine in its place."""

    def script_for(self, job: Job) -> str:
        """Return the run's own job.sh, which can be submitted again by hand."""
        ...

    def preview(self, jobs: Sequence[Job]) -> Preview:
        """Return what `submit` would send for *jobs*, without sending it; their directories need not exist."""
        ...

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Queue *jobs*, which ask for equal resources, in this order, and return their tickets in this order.

        One job is a plain job, several are one array. Raises `SubmissionError` with the scheduler's own words if
        nothing was queued; it is all or nothing.
        """
        ...

    def query(self, tickets: Collection[Ticket]) -> dict[Ticket, Known]:
        """Ask for the states of *tickets* in as few calls as possible; a job the scheduler has forgotten is left out.

        Raises `NoAnswerError` (commands) where the scheduler could not be asked.
        """
        ...

    def cancel(self, ticket: Ticket) -> None:
        """Take the job out of the queue or end it; one that has ended already is left as it is."""
        ...
