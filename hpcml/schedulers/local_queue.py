"""The queue of one local batch: starts the agent of each pack of runs as soon as its cores and GPUs are free."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcml.codec import decode, encode
from hpcml.image import without_login
from hpcml.rundir import run_dir_of
from hpcml.schedulers.script import REQUEUE, agent_array_command, requeue_command
from hpcml.schedulers.slots import Claim, Need, Pool, claim

TICKET = "ticket.json"  # in the batch's folder: the queue's id
QUEUE_FOLDER = "HPCML_QUEUE"  # what a job of the queue finds in its environment: the batch's folder, and its number
QUEUE_INDEX = "HPCML_QUEUE_INDEX"
_QUEUE = "queue.json"
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """One run of a batch, or several that one agent runs in turn."""

    sources: list[str]  # their manifests
    script: str  # of the first: what starts the agent of a run that is alone
    need: Need

    @property
    def is_marked(self) -> bool:
        """Whether somebody wanted all of it to stop."""
        return all(run_dir_of(Path(source)).cancel_mark.exists() for source in self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBatch:
    """What a queue needs to know."""

    jobs: list[Queued]
    lock_dir: str
    pool: Pool
    max_parallel: int | None


@dataclass(frozen=True, slots=True)
class _Active:
    """An agent that runs."""

    index: int
    process: subprocess.Popen[bytes]
    held: Claim


def write_batch(folder: Path, batch: LocalBatch) -> None:
    """Leave *batch* in *folder*."""
    (folder / _QUEUE).write_text(json.dumps(encode(batch)), encoding="utf-8")


def pack_file(folder: Path, index: int) -> Path:
    """Return what the agent of job *index* reads where that is several runs."""
    return folder / f"pack-{index}.json"


def again_mark(folder: Path, index: int) -> Path:
    """Return the file by which a job asks to be started once more after its end."""
    return folder / f"again-{index}"


def drain(folder: str) -> None:
    """Run the whole batch; each agent is in a session of its own, which outlives this queue if need be."""
    place = Path(folder)
    batch: LocalBatch = decode(LocalBatch, json.loads((place / _QUEUE).read_text(encoding="utf-8")))
    waiting = deque(range(len(batch.jobs)))
    active: list[_Active] = []
    limit = batch.max_parallel or len(waiting)
    while waiting or active:
        for entry in [entry for entry in active if entry.process.poll() is not None]:
            entry.held.release()
            active.remove(entry)
            if again_mark(place, entry.index).exists():
                again_mark(place, entry.index).unlink()
                waiting.append(entry.index)
        while waiting and batch.jobs[waiting[0]].is_marked:
            waiting.popleft()
        if waiting and len(active) < limit:
            need = batch.jobs[waiting[0]].need
            if held := claim(need, batch.pool, Path(batch.lock_dir)):
                index = waiting.popleft()
                active.append(_Active(index, _start_agent(place, index, batch.jobs[index], held, os.environ), held))
                continue
        time.sleep(_POLL_S)


def _start_agent(
    folder: Path, index: int, job: Queued, held: Claim, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    # submitit empties CUDA_VISIBLE_DEVICES and marks its own job; a run gets the GPUs that it claimed and no marks,
    # nor those of a job array that somebody works in: they would tell the agent which runs of its file are its own
    foreign = ("SUBMITIT_", "SLURM_ARRAY_", "PBS_ARRAY_")
    inherited = {name: value for name, value in without_login(environ).items() if not name.startswith(foreign)}
    own = {
        "CUDA_VISIBLE_DEVICES": ",".join(held.gpus),
        REQUEUE: shlex.join(requeue_command("local", is_shared=False)),
        QUEUE_FOLDER: str(folder),
        QUEUE_INDEX: str(index),
    }
    is_alone = len(job.sources) == 1
    argv = ["/bin/bash", job.script] if is_alone else agent_array_command(str(pack_file(folder, index)))
    with (run_dir_of(Path(job.sources[0])).path / "queue.log").open("ab") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**inherited, **own},
            start_new_session=True,
        )
