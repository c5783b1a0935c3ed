"""Runs as Slurm jobs: one run is a plain job, several are one job array."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import SubmissionError
from hpcml.schedulers.commands import call
from hpcml.schedulers.request import request_for
from hpcml.schedulers.script import agent_array_command, agent_command
from hpcml.schedulers.slurm_query import one_line, query
from hpcml.schedulers.slurm_sbatch import Sbatch
from hpcml.schedulers.slurm_script import Titles, job_name, render
from hpcml.schedulers.submitter import Job, Known, Preview, Ticket

log = logging.getLogger(__name__)

_GONE = ("already completing or completed", "Invalid job id")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSubmitter:
    """Slurm by its own commands; *submissions* is on a file system that the nodes share."""

    submissions: Path
    patience_s: float = 120.0  # for one command: sites raise MessageTimeout (10 s) up to 100 s
    pause_s: float = 5.0  # before the one repetition

    def script_for(self, job: Job) -> str:
        """Return the run's own job.sh; ``sbatch job.sh`` submits it again."""
        titles = _run_titles(job)
        return render(
            request_for(job.manifest),
            titles=titles,
            folder=job.run_dir.path,
            command=agent_command(str(job.run_dir.path)),
        )

    def preview(self, jobs: Sequence[Job]) -> Preview:
        """Return the sbatch command and its script for *jobs*."""
        if len(jobs) == 1:
            return Preview(command=["sbatch", str(jobs[0].run_dir.script)], script=self.script_for(jobs[0]))
        folder = self._new_folder()
        return Preview(command=["sbatch", str(folder / "array.sh")], script=_array_script(jobs, folder))

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Submit the job.sh of a single run, or one array of all *jobs*."""
        if len(jobs) == 1:
            job_id = self._sbatch(jobs[0].run_dir.script, _run_titles(jobs[0]), jobs[0])
            return [Ticket(scheduler="slurm", job_id=job_id)]
        folder = self._new_folder()
        script, batch = folder / "array.sh", {"run_dirs": [str(job.run_dir.path) for job in jobs]}
        try:
            folder.mkdir(parents=True)
            (folder / "batch.json").write_text(json.dumps(batch), encoding="utf-8")
            script.write_text(_array_script(jobs, folder), encoding="utf-8")
        except OSError as error:
            raise SubmissionError(f"{folder} cannot be written: {error.strerror}") from error
        job_id = self._sbatch(script, _array_titles(jobs, folder), jobs[0])
        return [Ticket(scheduler="slurm", job_id=job_id, array_index=index) for index in range(len(jobs))]

    def query(self, tickets: Collection[Ticket]) -> dict[Ticket, Known]:
        """Return what squeue and sacct know of *tickets*."""
        return query(tickets, patience_s=self.patience_s)

    def cancel(self, ticket: Ticket) -> None:
        """Take the job, or the one element of an array, out of the queue or end it."""
        element = ticket.job_id if ticket.array_index is None else f"{ticket.job_id}_{ticket.array_index}"
        answer = call(["scancel", element], timeout_s=self.patience_s)
        if answer.returncode != 0 and not any(words in answer.stderr for words in _GONE):
            raise SubmissionError(f"scancel refused to cancel job {element}: {one_line(answer)}")
        log.info("cancelled job %s", element)

    def _sbatch(self, script: Path, titles: Titles, job: Job) -> str:
        request = request_for(job.manifest)
        try:
            executor = Sbatch(
                script, name=titles.name, request=request, patience_s=self.patience_s, pause_s=self.pause_s
            )
        except RuntimeError as error:  # submitit's word for a machine without srun
            raise SubmissionError("there is no Slurm on this machine: srun is not on PATH") from error
        job_id = executor.submit_script()
        log.info("submitted %s as job %s", script, job_id)
        return job_id

    def _new_folder(self) -> Path:
        return self.submissions / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def _run_titles(job: Job) -> Titles:
    run, uid = job.manifest.run, job.run_dir.uid
    return Titles(
        name=job_name(run.name or run.experiment, uid),
        comment=f"hpcml:{uid}",
        remark=f"hpcml run {uid}; may be submitted again by hand: sbatch {job.run_dir.script.name}",
    )


def _array_titles(jobs: Sequence[Job], folder: Path) -> Titles:
    return Titles(
        name=job_name(jobs[0].manifest.run.experiment, folder.name),
        comment=f"hpcml:{folder.name}",
        remark=f"hpcml submission {folder.name} of {len(jobs)} runs, listed in batch.json",
    )


def _array_script(jobs: Sequence[Job], folder: Path) -> str:
    request = request_for(jobs[0].manifest)
    return render(
        request,
        titles=_array_titles(jobs, folder),
        folder=folder,
        command=agent_array_command(str(folder / "batch.json")),
        array_size=len(jobs),
    )
