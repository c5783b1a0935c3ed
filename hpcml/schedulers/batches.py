"""A batch as every scheduler sees it: its folder, its name in the queue, what its agents are told, and its tickets.

A single run needs nothing but its own directory. Several have a folder named by their token among the submissions,
with `job.sh`, which is submitted, and `batch.json`, which tells each job or element of the array what its runs are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from hpcml.errors import SubmissionError
from hpcml.runs.atomic import write_text
from hpcml.runs.layout import home_of
from hpcml.runs.private import check, make_folder
from hpcml.schedulers.contract import Batch, Job
from hpcml.schedulers.script import agent_array_command, agent_command

TOKEN = re.compile(r"\d{8}-\d{6}-[0-9a-z]+")  # what begins every token, and the name of the folder of its files
_FORMAT = 1
_OTHERS = re.compile(r"[^A-Za-z0-9_.+-]")


def label_of(batch: Batch) -> str:
    """Return what people call the batch: a run's name, or the experiment.

    It need not be unique: the name of the job ends with the token (`name_of`).
    """
    run = batch.jobs[0].manifest.run
    return run.name or run.experiment if batch.is_single else run.experiment


def remark_of(batch: Batch, *, by: str) -> str:
    """Return one line for who opens the script of *batch*; *by* is the program that submits one by hand, as qsub."""
    if not batch.is_single:
        return f"hpcml submission {batch.token} of {len(batch.jobs)} runs, listed in batch.json"
    (job,) = batch.jobs
    what = f"retry {job.retry} of hpcml run" if job.retry else "hpcml run"
    return f"{what} {job.run_dir.uid}; may be submitted again by hand: {by} {job.script.name}"


def token_of(job: Job) -> str:
    """Return what the name of a run's own job ends with: no other submission has it."""
    return f"{job.run_dir.uid}-r{job.retry}" if job.retry else job.run_dir.uid


def name_of(label: str, token: str) -> str:
    """Return a job's name, which ends with *token*: so it is found again whatever happened to the answer.

    Of a label 40 characters are kept.

    >>> name_of("resnet", "20261121-083015-222abcde")
    'resnet.20261121-083015-222abcde'
    """
    return f"{label[:40]}.{token}"


def plain_label(label: str) -> str:
    """Return *label* of letters, digits and ``_.+-`` alone, for schedulers that read more into others.

    Brackets would make an array of LSF's, and braces be filled in by Flux.
    """
    return _OTHERS.sub("_", label)


def own_batch(job: Job) -> Batch:
    """Return the batch that submits *job* alone, by its own script.

    A backend uses it for the run's own script, and to put the run back into the queue.
    """
    return Batch(token=token_of(job), packs=[[job]])


def folder_of(submissions: Path, batch: Batch) -> Path:
    """Return the folder of the files that belong to no single run.

    It need not exist yet: `write_down` makes it. A single run has no such folder.
    """
    return submissions / batch.token


def script_of(submissions: Path, batch: Batch) -> Path:
    """Return the script that is submitted: the run's own, or that of the whole batch.

    The file need not exist yet.
    """
    return batch.jobs[0].script if batch.is_single else folder_of(submissions, batch) / "job.sh"


def agent_of(submissions: Path, batch: Batch) -> list[str]:
    """Return what starts the agent of a job of the batch.

    A list of words, to be quoted by who writes it into a script. Of a batch, the agent learns from the job's variables
    which of the packs is its own.
    """
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

    Doing it again changes nothing: a submission that died half-way is repeated under its token. Raises
    `SubmissionError` where the folder cannot be written, and `NotPrivateError` where a run's own script could be
    another user's.
    """
    assert batch.jobs, "nothing to submit"
    if batch.is_single:
        check(batch.jobs[0].script, top=home_of(batch.jobs[0].source))
        return
    folder = folder_of(submissions, batch)
    try:
        make_folder(folder, parents=True)
        write_packs(_batch_file(folder), batch.packs)
        write_text(script_of(submissions, batch), script)
    except OSError as error:
        raise SubmissionError(f"{folder} cannot be written: {error.strerror}") from error


def write_packs(path: Path, packs: Sequence[Sequence[Job]]) -> None:
    """Leave *packs* in *path* for the agents, as `write_sources` does."""
    write_sources(path, [[str(job.source) for job in pack] for pack in packs])


def write_sources(path: Path, packs: Sequence[Sequence[str]]) -> None:
    """Leave in *path* what ``hpcml.agent.main --batch`` reads: the manifests of each job, or element of an array.

    The format is ``{"format": 1, "jobs": [[MANIFEST, ...], ...]}``, the position in the outer list being the index in
    the array. The file appears whole. Raises `OSError`.
    """
    write_text(path, json.dumps({"format": _FORMAT, "jobs": packs}))


def _batch_file(folder: Path) -> Path:
    return folder / "batch.json"
