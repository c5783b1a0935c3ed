"""What the local queue keeps in a home: a file for each batch that is not finished, and which jobs of it have ended.

`HOME/submissions/queues/<arrival>-<token>@<host>.json` appears whole, with all that the queue needs, and goes when the
last job has ended; so a reboot loses nothing. In the batch's own folder, `HOME/submissions/<token>`, are the numbers of
the jobs that have ended, and a mark for each run that asked to be started again.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcml.codec import decode, encode
from hpcml.errors import ConfigError, HpcmlError, SubmissionError
from hpcml.runs.atomic import write_text
from hpcml.runs.cancellation import is_cancelled
from hpcml.runs.files import parse_json
from hpcml.runs.layout import home_of, queues_of, run_dir_of
from hpcml.runs.liveness import plain
from hpcml.runs.private import make_folder, read
from hpcml.runs.run_json import read_own
from hpcml.schedulers.contract import Job, Ticket
from hpcml.schedulers.local.runtime import Pool

QUEUE_FOLDER = "HPCML_QUEUE"  # what a job of the queue finds in its environment: the batch's folder, and its number
QUEUE_INDEX = "HPCML_QUEUE_INDEX"
ENDED = "ended.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """One run of a batch, or several that one agent runs in turn."""

    sources: list[str]  # their manifests
    command: list[str]  # starts the agent
    cores: int
    gpus: int
    dependency: str | None  # what it waits for, by the whole ids of runs
    begun: dict[str, list[str]]  # by manifest: the logs of agents that were there when it was submitted

    @property
    def run_dirs(self) -> list[str]:
        """The directories of its runs."""
        return [str(run_dir_of(Path(source)).path) for source in self.sources]

    @property
    def is_unwanted(self) -> bool:
        """Whether somebody wanted all of it to stop, or removed it."""
        return not any(_is_wanted(source) for source in self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedBatch:
    """What the queue has to know of a batch.

    `environ` is that of whoever submitted it; it holds no registry logins. `max_parallel` None: no limit but `pool`.
    """

    jobs: list[QueuedJob]
    max_parallel: int | None
    pool: Pool
    runtime: str  # the folder of the queue that serves it
    environ: dict[str, str]


def _is_wanted(source: str) -> bool:
    return Path(source).exists() and not is_cancelled(run_dir_of(Path(source)))


def new_file(submissions: Path, token: str) -> Path:
    """Return where a batch that comes now waits for the queue of this machine."""
    return queues_of(submissions) / f"{time.time():.6f}-{token}{_of_this_host()}"


def write_batch(path: Path, batch: QueuedBatch) -> None:
    """Leave *batch* in *path*, which appears whole. Raises `OSError`."""
    make_folder(path.parent, parents=True)
    write_text(path, json.dumps(encode(batch)))


def read_batch(path: Path) -> QueuedBatch:
    """Return what `write_batch` left in *path*; raise `NotPrivateError` where it may be another user's.

    Raises `HpcmlError` where it cannot be read.
    """
    try:
        batch: QueuedBatch = decode(QueuedBatch, read_own(path))
    except ConfigError as error:
        raise HpcmlError(f"{path} is damaged: {error}") from error
    return batch


def batch_files(submissions: Path) -> list[Path]:
    """Return the files of the batches of this machine that are not finished, in their order of arrival.

    Raises `OSError` where they cannot be listed, as where nothing was submitted yet.
    """
    with os.scandir(queues_of(submissions)) as entries:
        names = sorted(entry.name for entry in entries)
    return [queues_of(submissions) / name for name in names if name.endswith(_of_this_host()) and name[0] != "."]


def find_batch(submissions: Path, token: str) -> Path | None:
    """Return the file of the batch *token* of this or another machine; None where it has ended, or never was there."""
    return next(queues_of(submissions).glob(f"[0-9]*-{token}@*.json"), None)


def _of_this_host() -> str:
    return f"@{plain(socket.gethostname())}.json"


def arrived_at(path: Path) -> float:
    """Return when the batch whose file is *path* came, in unix seconds."""
    return float(path.name.partition("-")[0])


def token_of(path: Path) -> str:
    """Return the token of the batch whose file is *path*."""
    return path.name.partition("-")[2].rpartition("@")[0]


def folder_of(path: Path) -> Path:
    """Return the folder of the batch whose file is *path*."""
    return path.parent.parent / token_of(path)


def why_not_here(path: Path, batch: QueuedBatch) -> str | None:
    """Return in one line why the runs of *batch* cannot be started in the home of *path*; None where they can."""
    home = home_of(path)
    for made_in in {home_of(Path(source)) for job in batch.jobs for source in job.sources}:
        with suppress(OSError):
            if made_in.samefile(home):
                continue
        return f"its runs were made in {made_in}, which their plans name: hpcml run submits them anew"
    return None


def write_ended(folder: Path, ended: set[int]) -> None:
    """Note which jobs of the batch in *folder* have ended. Raises `OSError`."""
    write_text(folder / ENDED, json.dumps(sorted(ended)))


def read_ended(folder: Path) -> set[int]:
    """Return which jobs of the batch in *folder* have ended.

    Raises `HpcmlError` where that cannot be read, and `NotPrivateError` where another user may have written it.
    """
    return {index for index in _read_list(folder / ENDED, []) if isinstance(index, int)}


def _read_list(path: Path, otherwise: list[Any]) -> list[Any]:
    """Return the list in the file *path*; *otherwise* where there is none."""
    try:
        found = parse_json(read(path, top=home_of(path))) if path.exists() else otherwise
    except (OSError, ValueError) as error:
        raise HpcmlError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, list):
        raise HpcmlError(f"{path} is damaged: it has no list")
    return found


def is_queued(submissions: Path, token: str, index: int) -> bool:
    """Tell whether job *index* of the batch *token* waits, or its agent is at work. Raises as `read_ended` does."""
    path = find_batch(submissions, token)
    return path is not None and index not in read_ended(folder_of(path))


def agent_logs(source: str) -> list[str]:
    """Return the names of the logs of a run's agents: each is made when an attempt begins."""
    return sorted(path.name for path in run_dir_of(Path(source)).agent_logs())


def left_of(job: QueuedJob, folder: Path) -> list[str]:
    """Return the manifests of those runs of *job* that are wanted, and that no agent has begun.

    Counted is from when they were queued, or asked to be started again. One that was submitted anew since is the other
    batch's. Raises `HpcmlError` and `OSError` where that cannot be seen.
    """
    left = []
    for source in filter(_is_wanted, job.sources):
        before = _read_list(_again_mark(folder, source), job.begun.get(source, []))
        if set(agent_logs(source)) <= set(map(str, before)) and not _next_retry(Path(source)).exists():
            left.append(source)
    return left


def _next_retry(source: Path) -> Path:
    """Return the manifest with which the run of *source* would be submitted anew."""
    run_dir = run_dir_of(source)
    return run_dir.retry_manifest(1 if source == run_dir.manifest else int(source.stem) + 1)


def pack_file(folder: Path, index: int) -> Path:
    """Return what the agent of job *index* reads where that is several runs."""
    return folder / f"pack-{index}.json"


def _again_mark(folder: Path, source: str) -> Path:
    """Return the file by which a run asks to be started once more; it lists the logs of its agents until then."""
    return folder / f"again-{run_dir_of(Path(source)).uid}.json"


def put_back(job: Job, environ: Mapping[str, str], *, is_alone: bool) -> Ticket:  # noqa: ARG001 - it keeps its place
    """Leave the mark that the queue looks for when the agent has ended, and return the ticket that the run has.

    *environ* is that of the agent. Called by `hpcml.schedulers.requeue`. Raises `HpcmlError` where no queue started
    this run, and `SubmissionError` where the mark cannot be written.
    """
    folder, index = environ.get(QUEUE_FOLDER), environ.get(QUEUE_INDEX)
    if not folder or not index:
        raise HpcmlError("no queue of this machine started this run")
    source = str(job.source)
    try:
        write_text(_again_mark(Path(folder), source), json.dumps(agent_logs(source)))
    except OSError as error:
        raise SubmissionError(f"the queue in {folder} cannot be told: {error.strerror}") from error
    return Ticket(scheduler="local", job_id=Path(folder).name, array_index=int(index))
