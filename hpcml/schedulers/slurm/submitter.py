"""Runs as Slurm jobs: one pack of runs is a plain job, several are one job array.

`script` renders what is submitted, `submission` hands it to sbatch through submitit, `query` asks squeue and sacct.
Sources: the man pages of sbatch, scancel and scontrol; what they leave open was tried on Slurm 22.05.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.schedulers import batches
from hpcml.schedulers.commands import call
from hpcml.schedulers.contract import Answers, Batch, Job, Preview, Ticket
from hpcml.schedulers.request import request_for_batch
from hpcml.schedulers.script import requeue_command, time_limit_command
from hpcml.schedulers.slurm.query import ask_cluster, find_job, one_line, query
from hpcml.schedulers.slurm.script import Titles, clusters_in, clusters_of, render

log = logging.getLogger(__name__)

_SCHEDULER = "slurm"
_IDS_IN_A_CALL = 1000  # Linux takes 2 MiB of words
_REQUEUE_PATIENCE_S = 60.0
_GONE = ("already completing or completed", "Invalid job id")  # what scancel says of a job that has ended
# What the script and Slurm told a job of itself: sbatch would hand it on to the next
_OF_THIS_JOB = (
    *("HPCML_REQUEUE", "HPCML_MASTER_ADDR", "HPCML_NODE_RANK", "HPCML_JOB_START", "TMPDIR"),
    *("HPCML_JOB_ID", "HPCML_JOB_NAME", "HPCML_ARRAY_INDEX", "HPCML_PACK"),  # of a job of LSF or Flux
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSubmitter:
    """Slurm by its own commands; *submissions* is on a file system that the nodes share."""

    submissions: Path
    patience_s: float = 120.0  # for one command: sites raise MessageTimeout (10 s) up to 100 s
    pause_s: float = 5.0  # before the one repetition
    scripts: batches.OwnScripts = field(default_factory=batches.OwnScripts, compare=False)

    def script_for(self, job: Job) -> str:
        """Return the run's own script; ``sbatch job.sh`` submits it again."""
        return self.scripts.script_for(job, self._render)

    def preview(self, batch: Batch) -> Preview:
        """Return the sbatch command and its script."""
        return Preview(command=["sbatch", str(self._script(batch))], script=self._render(batch))

    def submit(self, batch: Batch) -> list[Ticket]:
        """Submit the script of a single run, or one job array of all packs.

        Raises `SubmissionError` with Slurm's words where nothing was queued, and `UncertainSubmissionError` where that
        cannot be known now: then `find` has to be asked before this is done again.
        """
        batches.write_down(self.submissions, batch, self._render(batch))
        from hpcml.schedulers.slurm import submission  # noqa: PLC0415 - submitit loads in 0.2 s

        script, name = self._script(batch), titles_of(batch).name
        job_id = submission.submit(
            script,
            name=name,
            request=request_for_batch(batch),
            patience_s=self.patience_s,
            pause_s=self.pause_s,
            clusters=_clusters(script),
        )
        log.info("submitted %s as job %s", script, job_id)
        return _tickets(batch, job_id, name)

    def find(self, batch: Batch) -> list[Ticket] | None:
        """Look for a job of the batch's name in queue and accounting: see `find_job` for what proves what.

        None where Slurm surely has no such job. Raises `NoAnswerError` where that cannot be known now.
        """
        name, script = titles_of(batch).name, self._script(batch)
        try:
            clusters = _clusters(script)
        except FileNotFoundError:  # it died before
            return None
        job_id = find_job(name, clusters=clusters, token=batch.token, patience_s=self.patience_s)
        return None if job_id is None else _tickets(batch, job_id, name)

    def query(self, tickets: Collection[Ticket]) -> Answers:
        """Return what squeue knows of *tickets*, and sacct of those that squeue does not show."""
        return query(tickets, patience_s=self.patience_s)

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Take the jobs, or elements of arrays, out of the queue or end them; without an index, a whole array.

        Slurm sends SIGTERM, and SIGKILL after its KillWait, 30 s unless the site says otherwise (man slurm.conf).
        Raises `SubmissionError` with the first refusal of a call; that a job has ended already is none.
        """
        for cluster in dict.fromkeys(ticket.job_cluster for ticket in tickets):
            ids = sorted({ticket.spelled for ticket in tickets if ticket.job_cluster == cluster})
            for first in range(0, len(ids), _IDS_IN_A_CALL):
                _cancel(ids[first : first + _IDS_IN_A_CALL], cluster=cluster, patience_s=self.patience_s)

    def _script(self, batch: Batch) -> Path:
        return batches.script_of(self.submissions, batch)

    def _render(self, batch: Batch) -> str:
        return render(
            request_for_batch(batch),
            titles=titles_of(batch),
            folder=batch.jobs[0].run_dir.path if batch.is_single else batches.folder_of(self.submissions, batch),
            command=batches.agent_of(self.submissions, batch),
            requeue=requeue_command(_SCHEDULER, is_shared=batches.is_shared(batch)),
            time_limit=time_limit_command(_SCHEDULER),
            array_size=batches.size_of(batch),
            clusters=clusters_of(os.environ),
        )


def _cancel(ids: Sequence[str], *, cluster: str | None, patience_s: float) -> None:
    """Cancel jobs, whole arrays or elements of one cluster by one call (man scancel)."""
    answer = ask_cluster(["scancel", *ids], cluster, patience_s=patience_s)
    refusals = [part for part in one_line(answer).split("; ") if not any(gone in part for gone in _GONE)]
    if answer.returncode != 0 and refusals:
        which = f"job {ids[0]}" if len(ids) == 1 else f"some of {len(ids)} jobs"
        raise SubmissionError(f"scancel refused to cancel {which}: {refusals[0]}")
    log.info("cancelled %s", ", ".join(ids))


def put_back(job: Job, environ: Mapping[str, str], *, is_alone: bool) -> Ticket | None:
    """Put the run of *job* back into the queue from inside its job, whose variables are *environ*.

    Slurm runs this job, or element of an array, once more (man scontrol, requeue): it keeps its id, is killed at once,
    and None is returned. Where the job runs others too, *is_alone*, the run's own script is submitted instead, and the
    ticket of that job returned. Raises `HpcmlError` outside of a job, and `SubmissionError` where Slurm refuses.
    """
    if is_alone:
        return _submit_alone(job)
    array, index = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    job_id = f"{array}_{index}" if array and index else environ.get("SLURM_JOB_ID")
    if not job_id:
        raise HpcmlError("this is no job of Slurm: SLURM_JOB_ID is not set")
    answer = call(["scontrol", "requeue", job_id], timeout_s=_REQUEUE_PATIENCE_S)
    if answer.returncode != 0:
        raise SubmissionError(f"scontrol did not requeue job {job_id}: {one_line(answer)}")
    return None


def _submit_alone(job: Job) -> Ticket:
    from hpcml.schedulers.slurm import submission  # noqa: PLC0415 - as above

    for name in _OF_THIS_JOB:
        os.environ.pop(name, None)
    batch = batches.own_batch(job)
    job_name = titles_of(batch).name
    job_id = submission.submit(
        job.script,
        name=job_name,
        request=request_for_batch(batch),
        patience_s=_REQUEUE_PATIENCE_S,
        pause_s=5.0,
        clusters=_clusters(job.script),
        # What the first submission waited for has come true, or is forgotten, which newer Slurms refuse
        more=["--dependency="] if job.manifest.run.resources.dependency else [],
    )
    return _tickets(batch, job_id, job_name)[0]


def _clusters(script: Path) -> str | None:
    return clusters_in(script.read_text(encoding="utf-8"))


def _tickets(batch: Batch, spelled: str, job_name: str) -> list[Ticket]:
    """Return the tickets of *batch*, whose job is *spelled* as ``sbatch --parsable`` does."""
    job_id, _, cluster = spelled.partition(";")
    return batches.tickets_of(_SCHEDULER, batch, job_id=job_id, job_name=job_name, job_cluster=cluster)


def titles_of(batch: Batch) -> Titles:
    """Return what the job of *batch* is called.

    The comment, which the accounting keeps where the site wants it to, names the batch.
    """
    return Titles(
        name=batches.name_of(batches.label_of(batch), batch.token),
        comment=f"hpcml:{batch.token}",
        remark=batches.remark_of(batch, by="sbatch"),
    )
