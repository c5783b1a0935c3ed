"""A batch as every scheduler sees it: its folder, its name in the queue, what its agents are told, and its tickets."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from hpcml.errors import SubmissionError
from hpcml.schedulers.script import agent_array_command, agent_command
from hpcml.schedulers.submitter import Batch, Job, Ticket

_FORMAT = 1


def label_of(batch: Batch) -> str:
    """Return what people call the batch: a run's name, or the experiment."""
    run = batch.jobs[0].manifest.run
    return run.name or run.experiment if batch.is_single else run.experiment


def token_of(job: Job) -> str:
    """Return what the name of a run's own job ends with: no other submission has it."""
    return f"{job.run_dir.uid}-r{job.retry}" if job.retry else job.run_dir.uid


def name_of(label: str, token: str) -> str:
    """Return a job's name, which ends with *token*: so it is found again whatever happened to the answer."""
    return f"{label[:40]}.{token}"


def own_batch(job: Job) -> Batch:
    """Return the batch that submits *job* alone, by its own script."""
    return Batch(token=token_of(job), packs=[[job]])


def folder_of(submissions: Path, batch: Batch) -> Path:
    """Return the folder of the files that belong to no single run."""
    return submissions / batch.token


def script_of(submissions: Path, batch: Batch) -> Path:
    """Return the script that is submitted: the run's own, or that of the whole batch."""
    return batch.jobs[0].script if batch.is_single else folder_of(submissions, batch) / "job.sh"


def agent_of(submissions: Path, batch: Batch) -> list[str]:
    """Return what starts the agent of a job of the batch."""
    if not batch.is_single:
        return agent_array_command(str(_batch_file(folder_of(submissions, batch))))
    (job,) = batch.jobs
    return agent_command(str(job.source if job.retry else job.run_dir.path))


def size_of(batch: Batch) -> int | None:
    """Return the number of elements of the job array, or None for a plain job."""
    return len(batch.packs) if len(batch.packs) > 1 else None


def is_shared(batch: Batch) -> bool:
    """Tell whether any job of the batch runs several runs."""
    return any(len(pack) > 1 for pack in batch.packs)


def write_down(submissions: Path, batch: Batch, script: str) -> None:
    """Leave *script* and batch.json in the batch's folder; a single run, which has a script of its own, needs neither.

    Doing it again changes nothing: a submission that died half-way is repeated under its token.
    """
    assert batch.jobs, "nothing to submit"
    if batch.is_single:
        return
    folder = folder_of(submissions, batch)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_packs(_batch_file(folder), batch.packs)
        _replace(script_of(submissions, batch), script)
    except OSError as error:
        raise SubmissionError(f"{folder} cannot be written: {error.strerror}") from error


def write_packs(path: Path, packs: Sequence[Sequence[Job]]) -> None:
    """Leave in *path* what ``hpcml.agent.main --batch`` reads: the manifests of each job, or element of an array."""
    listed = {"format": _FORMAT, "jobs": [[str(job.source) for job in pack] for pack in packs]}
    _replace(path, json.dumps(listed))


def tickets_of(scheduler: str, batch: Batch, *, job_id: str, job_name: str | None) -> list[Ticket]:
    """Return the tickets of the runs of *batch*, in their order, once it is the job *job_id*."""
    return [
        Ticket(
            scheduler=scheduler,
            job_id=job_id,
            array_index=None if size_of(batch) is None else index,
            job_name=job_name,
            is_shared=len(pack) > 1,
        )
        for index, pack in enumerate(batch.packs)
        for _ in pack
    ]


def _batch_file(folder: Path) -> Path:
    return folder / "batch.json"


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)  # whole or not at all: a job may read it at any time
