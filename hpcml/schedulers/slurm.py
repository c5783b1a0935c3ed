"""Runs as Slurm jobs: one pack of runs is a plain job, several are one job array."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import SubmissionError
from hpcml.schedulers import batches
from hpcml.schedulers.commands import call
from hpcml.schedulers.request import request_for_pack
from hpcml.schedulers.script import requeue_command
from hpcml.schedulers.slurm_query import find_job, one_line, query
from hpcml.schedulers.slurm_sbatch import Sbatch
from hpcml.schedulers.slurm_script import Titles, render
from hpcml.schedulers.submitter import Answers, Batch, Job, Preview, Ticket

log = logging.getLogger(__name__)

_SCHEDULER = "slurm"
_GONE = ("already completing or completed", "Invalid job id")
_IDS_IN_A_CALL = 1000  # Linux takes 2 MiB of words


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSubmitter:
    """Slurm by its own commands; *submissions* is on a file system that the nodes share."""

    submissions: Path
    patience_s: float = 120.0  # for one command: sites raise MessageTimeout (10 s) up to 100 s
    pause_s: float = 5.0  # before the one repetition

    def script_for(self, job: Job) -> str:
        """Return the run's own script; ``sbatch job.sh`` submits it again."""
        return self._render(batches.own_batch(job))

    def preview(self, batch: Batch) -> Preview:
        """Return the sbatch command and its script."""
        return Preview(command=["sbatch", str(self._script(batch))], script=self._render(batch))

    def submit(self, batch: Batch) -> list[Ticket]:
        """Submit the script of a single run, or one job array of all packs."""
        batches.write_down(self.submissions, batch, self._render(batch))
        script, name = self._script(batch), titles_of(batch).name
        job_id = sbatch(script, batch, patience_s=self.patience_s, pause_s=self.pause_s)
        log.info("submitted %s as job %s", script, job_id)
        return batches.tickets_of(_SCHEDULER, batch, job_id=job_id, job_name=name)

    def find(self, batch: Batch) -> list[Ticket] | None:
        """Look for a job of the batch's name in queue and accounting: see `find_job` for what proves what."""
        name = titles_of(batch).name
        job_id = find_job(name, token=batch.token, patience_s=self.patience_s)
        return None if job_id is None else batches.tickets_of(_SCHEDULER, batch, job_id=job_id, job_name=name)

    def query(self, tickets: Collection[Ticket]) -> Answers:
        """Return what squeue knows of *tickets*, and sacct of those that squeue does not show."""
        return query(tickets, patience_s=self.patience_s)

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Take the jobs, or elements of arrays, out of the queue or end them; without an index, a whole array.

        Slurm sends SIGTERM, and SIGKILL after its KillWait.
        """
        ids = sorted({_element(ticket) for ticket in tickets})
        for first in range(0, len(ids), _IDS_IN_A_CALL):
            chunk = ids[first : first + _IDS_IN_A_CALL]
            answer = call(["scancel", *chunk], timeout_s=self.patience_s)
            words = one_line(answer)
            refusals = [part for part in words.split("; ") if not any(gone in part for gone in _GONE)]
            if answer.returncode != 0 and refusals:
                which = f"job {chunk[0]}" if len(chunk) == 1 else f"some of {len(chunk)} jobs"
                raise SubmissionError(f"scancel refused to cancel {which}: {refusals[0]}")
            log.info("cancelled %s", ", ".join(chunk))

    def _script(self, batch: Batch) -> Path:
        return batches.script_of(self.submissions, batch)

    def _render(self, batch: Batch) -> str:
        return render(
            request_for_pack(batch.packs[0]),
            titles=titles_of(batch),
            folder=batch.jobs[0].run_dir.path if batch.is_single else batches.folder_of(self.submissions, batch),
            command=batches.agent_of(self.submissions, batch),
            requeue=requeue_command(_SCHEDULER, is_shared=batches.is_shared(batch)),
            array_size=batches.size_of(batch),
        )


def sbatch(script: Path, batch: Batch, *, patience_s: float, pause_s: float, more: Collection[str] = ()) -> str:
    """Submit *script* of *batch*, with *more* options, and return the job's id."""
    request = request_for_pack(batch.packs[0])
    try:
        executor = Sbatch(
            script, name=titles_of(batch).name, request=request, patience_s=patience_s, pause_s=pause_s, more=more
        )
    except RuntimeError as error:  # submitit's word for a machine without srun
        raise SubmissionError("there is no Slurm on this machine: srun is not on PATH") from error
    return executor.submit_script()


def _element(ticket: Ticket) -> str:
    return ticket.job_id if ticket.array_index is None else f"{ticket.job_id}_{ticket.array_index}"


def titles_of(batch: Batch) -> Titles:
    """Return what the job of *batch* is called."""
    name = batches.name_of(batches.label_of(batch), batch.token)
    if not batch.is_single:
        remark = f"hpcml submission {batch.token} of {len(batch.jobs)} runs, listed in batch.json"
        return Titles(name=name, comment=f"hpcml:{batch.token}", remark=remark)
    (job,) = batch.jobs
    what = f"retry {job.retry} of hpcml run" if job.retry else "hpcml run"
    return Titles(
        name=name,
        comment=f"hpcml:{batch.token}",
        remark=f"{what} {job.run_dir.uid}; may be submitted again by hand: sbatch {job.script.name}",
    )
