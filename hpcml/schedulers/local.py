"""Runs on this machine as a scheduler would: a batch of runs handed to a queue that outlives the terminal."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpcml.errors import SubmissionError
from hpcml.image import without_login
from hpcml.schedulers import batches
from hpcml.schedulers.commands import NoAnswerError
from hpcml.schedulers.local_queue import TICKET, LocalBatch, Queued, pack_file, write_batch
from hpcml.schedulers.slots import Need, Pool
from hpcml.schedulers.submitter import Answers, Batch, Job, Known, Preview, Ticket
from hpcml.states import State

_START_TIMEOUT_S = 60
_STARTER = "hpcml.schedulers.local_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSubmitter:
    """Runs batches through submitit's local executor, several runs at once as far as cores and GPUs allow."""

    submissions: Path
    lock_dir: Path
    pool: Pool
    max_parallel: int | None

    def script_for(self, job: Job) -> str:
        """Return the script that runs the agent, on this machine."""
        return (
            "#!/bin/bash\n"
            f"# hpcml run {job.run_dir.uid}; may be started again by hand: bash {job.script.name}\n"
            f"exec {shlex.join(batches.agent_of(self.submissions, batches.own_batch(job)))}\n"
        )

    def preview(self, batch: Batch) -> Preview:
        """Return the script of the first of the runs: the queue starts each of them by itself."""
        first = batch.jobs[0]
        return Preview(command=["bash", str(first.script)], script=self.script_for(first))

    def submit(self, batch: Batch) -> list[Ticket]:
        """Start a queue for *batch*; it is in a session of its own, so neither Ctrl-C nor a logout reaches it."""
        folder = batches.folder_of(self.submissions, batch)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for index, pack in enumerate(batch.packs):
                if len(pack) > 1:
                    batches.write_packs(pack_file(folder, index), [pack])
            write_batch(
                folder,
                LocalBatch(
                    jobs=[_queued(pack) for pack in map(list, batch.packs)],
                    lock_dir=str(self.lock_dir),
                    pool=self.pool,
                    max_parallel=self.max_parallel,
                ),
            )
            job_id = _start_queue(folder)
        except (OSError, subprocess.SubprocessError) as error:
            raise SubmissionError(f"the local queue did not start: {error} (its log is in {folder})") from error
        return _tickets(batch, job_id)

    def find(self, batch: Batch) -> list[Ticket] | None:
        """Return the tickets that the start of the queue left; a start that goes on at this moment is waited for."""
        folder = batches.folder_of(self.submissions, batch)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            is_starting = _is_starting(folder)  # looked at first: it leaves the ticket before it ends
            if (folder / TICKET).exists():
                return _tickets(batch, _read_ticket(folder))
            if not is_starting:
                return None
            if time.monotonic() > deadline:
                raise NoAnswerError(f"the local queue of {folder} has been starting for {_START_TIMEOUT_S} s")
            time.sleep(0.1)

    def query(self, tickets: Collection[Ticket]) -> Answers:
        """Return the jobs whose queue still lives: what they do stands in their journals."""
        alive = {job_id for job_id in {ticket.job_id for ticket in tickets} if is_queue_alive(job_id)}
        return Answers(
            known={ticket: Known(state=State.PENDING, raw="queued") for ticket in tickets if ticket.job_id in alive}
        )

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Do nothing: the queue passes over a run that is marked, and its agent is told directly."""


def is_queue_alive(job_id: str) -> bool:
    """Tell whether the queue of *job_id* still lives; the id holds its start time, so a recycled pid is not it."""
    pid, _, started = job_id.partition("-")
    try:
        return abs(psutil.Process(int(pid)).create_time() - float(started)) < 1.0
    except (psutil.Error, ValueError):
        return False


def _start_queue(folder: Path) -> str:
    with (folder / "queue.log").open("ab") as log:
        subprocess.run(  # not by `call`: it finishes its work though we be killed meanwhile
            [sys.executable, "-m", _STARTER, str(folder)],
            env=without_login(os.environ),  # it lives on as a queue
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            timeout=_START_TIMEOUT_S,
            check=True,
        )
    return _read_ticket(folder)


def _is_starting(folder: Path) -> bool:
    words = [_STARTER, str(folder)]
    return any((process.info["cmdline"] or [])[-2:] == words for process in psutil.process_iter(["cmdline"]))


def _read_ticket(folder: Path) -> str:
    return str(json.loads((folder / TICKET).read_text(encoding="utf-8"))["job_id"])


def _tickets(batch: Batch, job_id: str) -> list[Ticket]:
    return [
        Ticket(scheduler="local", job_id=job_id, array_index=index, is_shared=len(pack) > 1)
        for index, pack in enumerate(batch.packs)
        for _ in pack
    ]


def _queued(pack: list[Job]) -> Queued:
    plan = pack[0].manifest.plan
    need = Need(cores=(plan.cpus_per_task or 1) * plan.processes_per_node, gpus=plan.gpus_per_node)
    return Queued(sources=[str(job.source) for job in pack], script=str(pack[0].script), need=need)
