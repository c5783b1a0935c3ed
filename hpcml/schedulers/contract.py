"""What a scheduler must be able to do for hpcml: the contract that every backend keeps.

Who submits goes through it in this order, with a `Submitter` of `registry.open_submitter`:

    preview = submitter.preview(batch)  # what --dry-run shows
    tickets = submitter.submit(batch)  # or, where an earlier attempt has died: submitter.find(batch)
    answers = submitter.query(tickets)
    submitter.cancel(tickets)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hpcml.model.records import JobUsage, Known, spell_job
from hpcml.runs.layout import RunDir

if TYPE_CHECKING:
    from hpcml.runs.manifest import Manifest

__all__ = [
    "Answers",
    "Batch",
    "Job",
    "JobUsage",
    "Known",
    "Preview",
    "Submitter",
    "Ticket",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What the scheduler calls the job of a submitted run: Slurm's 4711, PBS's 4711.server, here the batch's token.

    Tickets are keys of what `Submitter.query` answers; the runs of one pack have equal ones.
    """

    scheduler: str
    job_id: str
    array_index: int | None = None
    job_name: str | None = None  # ends with the batch's token: a job of another name under this id is not ours
    # Slurm: which of the site's clusters it was sent to; empty: the submitting machine's own; None: not known
    job_cluster: str | None = None
    is_shared: bool = False  # the job runs others too: to end it would end them

    @property
    def spelled(self) -> str:
        """The id as the scheduler prints and takes it: Slurm's 4711_3, PBS's 4711[3].server."""
        return spell_job(self.job_id, self.array_index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run ready to be queued: its directory is complete.

    `script` and `source` are paths in its directory; the retry of a run has its own.
    """

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
    at_once: int | None = None  # so many packs of it run at once; None: as many as their requests say
    after_job: str | None = None  # the id of a job of this scheduler that has to end before, in whatever way

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
    """Exactly what a submission sends: the command's words and the script it names.

    `hpcml run --dry-run` prints it; it equals what `Submitter.submit` would send then.
    """

    command: Sequence[str]
    script: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a scheduler said when it was asked. A ticket in neither mapping is one that it has forgotten.

    `known` may say more than the journals of a run or less: `hpcml.commands.status` decides what it means. A ticket in
    `unanswered` is to be asked for again, and nothing follows for its run.
    """

    known: Mapping[Ticket, Known]
    unanswered: Mapping[Ticket, str] = field(default_factory=dict)  # why nothing was learned of them
    calls: int = 0  # of the scheduler's programs: what the question cost it
    has_queue: bool = False  # where tickets are unanswered: the queue itself did answer, and jobs can be submitted
    silence: str = ""  # why the queue told nothing, where the accounting, which is late, told of all tickets

    @property
    def trouble(self) -> str:
        """What went wrong with the question, in one line; empty where nothing did."""
        return "; ".join(dict.fromkeys(self.unanswered.values())) or self.silence


class Submitter(Protocol):
    """A scheduler, or this machine in its place.

    `registry.open_submitter` makes one for a cluster; this machine's is `local.submitter.LocalSubmitter`. Methods that
    call programs raise `SubmissionError` where a program is not there.
    """

    def script_for(self, job: Job) -> str:
        """Return the run's own script, which can be submitted again by hand.

        It is written into the run's directory. Raises `ConfigError` where the scheduler has no word for a resource that
        was asked for.
        """
        ...

    def preview(self, batch: Batch) -> Preview:
        """Return what `submit` would send for *batch*, without sending it; its directories need not exist.

        Raises `ConfigError` as `script_for` does.
        """
        ...

    def submit(self, batch: Batch) -> list[Ticket]:
        """Queue *batch* and return the tickets of its runs in their order.

        One pack is a plain job, several are one array; the runs of a pack have equal tickets. Raises `SubmissionError`
        with the scheduler's own words if nothing was queued; it is all or nothing. `UncertainSubmissionError`
        (commands) means that it cannot be known now whether something was queued: ask `find` before doing it again.
        """
        ...

    def find(self, batch: Batch) -> list[Ticket] | None:
        """Return the tickets of *batch* if it was submitted before, looked up by its token; None if it surely was not.

        To be asked some seconds after the submitting process has died: what is on its way may not be seen yet. Raises
        `NoAnswerError` (commands) where that cannot be known now.
        """
        ...

    def query(self, tickets: Collection[Ticket]) -> Answers:
        """Ask for the states of *tickets* in as few calls as possible; silence of the scheduler is no error here.

        Ended jobs are known for as long as the scheduler remembers them.
        """
        ...

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Take the jobs out of the queue or end them; one that has ended already is left as it is.

        A ticket without an index stands for a whole array, which costs one call where its elements cost one each on
        PBS. To tell a job again does no harm, and PBS needs it of one that still runs after some fifteen seconds.
        Returns as soon as the scheduler was told: that a job has ended is to be seen by `query`. Raises `HpcmlError`
        with the scheduler's words where it refuses, and `NoAnswerError` (commands) where it does not answer.
        """
        ...
