"""What a scheduler must be able to do for hpcml: the contract that every backend keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hpcml.manifest import Manifest
from hpcml.records import Known
from hpcml.rundir import RunDir

__all__ = ["Answers", "Batch", "Job", "Known", "Preview", "Submitter", "Ticket"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What the scheduler calls the job of a submitted run."""

    scheduler: str
    job_id: str
    array_index: int | None = None
    job_name: str | None = None  # ends with the batch's token: a job of another name under this id is not ours
    is_shared: bool = False  # the job runs others too: to end it would end them


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run ready to be queued: its directory is complete."""

    run_dir: RunDir
    manifest: Manifest
    retry: int = 0  # 0: as run.json says; k: as its k-th retry says

    @property
    def source(self) -> Path:
        """The manifest that the agent reads."""
        return self.run_dir.retry_manifest(self.retry) if self.retry else self.run_dir.manifest

    @property
    def script(self) -> Path:
        """The script that starts this run alone."""
        return self.run_dir.retry_script(self.retry) if self.retry else self.run_dir.script


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Runs that go out together: each pack is a job, or an element of one job array, and runs one after the other.

    All ask for equal resources. *token* is unique for ever; the job's name in the queue ends with it, so that the job
    is found again whatever happened to the answer.
    """

    token: str
    packs: Sequence[Sequence[Job]]

    @property
    def jobs(self) -> list[Job]:
        """All runs in their order."""
        return [job for pack in self.packs for job in pack]

    @property
    def is_single(self) -> bool:
        """Whether this is one run, which has a script of its own."""
        return len(self.packs) == 1 and len(self.packs[0]) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Exactly what a submission sends: the command's words and the script it names."""

    command: Sequence[str]
    script: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a scheduler said when it was asked. A ticket in neither mapping is one that it has forgotten."""

    known: Mapping[Ticket, Known]
    unanswered: Mapping[Ticket, str] = field(default_factory=dict)  # why nothing was learned of them
    calls: int = 0  # of the scheduler's programs: what the question cost it


class Submitter(Protocol):
    """A scheduler, or this machine in its place."""

    def script_for(self, job: Job) -> str:
        """Return the run's own script, which can be submitted again by hand."""
        ...

    def preview(self, batch: Batch) -> Preview:
        """Return what `submit` would send for *batch*, without sending it; its directories need not exist."""
        ...

    def submit(self, batch: Batch) -> list[Ticket]:
        """Queue *batch* and return the tickets of its runs in their order.

        One pack is a plain job, several are one array; the runs of a pack have equal tickets. Raises `SubmissionError`
        with the scheduler's own words if nothing was queued; it is all or nothing.
        """
        ...

    def find(self, batch: Batch) -> list[Ticket] | None:
        """Return the tickets of *batch* if it was submitted before, looked up by its token; None if it surely was not.

        To be asked some seconds after the submitting process has died: what is on its way may not be seen yet. Raises
        `NoAnswerError` (commands) where that cannot be known now.
        """
        ...

    def query(self, tickets: Collection[Ticket]) -> Answers:
        """Ask for the states of *tickets* in as few calls as possible; silence of the scheduler is no error here."""
        ...

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Take the jobs out of the queue or end them; one that has ended already is left as it is.

        A ticket without an index stands for a whole array, which costs one call where its elements cost one each on
        PBS. To tell a job again does no harm, and PBS needs it of one that still runs after some fifteen seconds.
        """
        ...
