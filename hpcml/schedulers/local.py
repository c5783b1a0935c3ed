"""Runs on this machine as a scheduler would: a batch of runs handed to a queue that outlives the terminal."""

from __future__ import annotations

import json
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpcml.errors import SubmissionError
from hpcml.schedulers.local_queue import Batch, Queued, write_batch
from hpcml.schedulers.script import agent_command
from hpcml.schedulers.slots import Need, Pool
from hpcml.schedulers.submitter import Job, Known, Preview, Ticket
from hpcml.states import State

_START_TIMEOUT_S = 60


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
            f"# hpcml run {job.run_dir.uid}; may be started again by hand: bash {job.run_dir.script.name}\n"
            f"exec {shlex.join(agent_command(str(job.run_dir.path)))}\n"
        )

    def preview(self, jobs: Sequence[Job]) -> Preview:
        """Return the script of the first of *jobs*: the queue starts each of them by itself."""
        return Preview(command=["bash", str(jobs[0].run_dir.script)], script=self.script_for(jobs[0]))

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Start a queue for *jobs*; it is in a session of its own, so neither Ctrl-C nor a logout reaches it."""
        folder = self.submissions / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        try:
            folder.mkdir(parents=True)
            write_batch(
                folder,
                Batch(
                    jobs=[Queued(run_dir=str(job.run_dir.path), need=_need(job)) for job in jobs],
                    lock_dir=str(self.lock_dir),
                    pool=self.pool,
                    max_parallel=self.max_parallel,
                ),
            )
            job_id = self._start_queue(folder)
        except (OSError, subprocess.SubprocessError) as error:
            raise SubmissionError(f"the local queue did not start: {error} (its log is in {folder})") from error
        return [Ticket(scheduler="local", job_id=job_id, array_index=index) for index in range(len(jobs))]

    def _start_queue(self, folder: Path) -> str:
        with (folder / "queue.log").open("wb") as log:
            subprocess.run(
                [sys.executable, "-m", "hpcml.schedulers.local_start", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                timeout=_START_TIMEOUT_S,
                check=True,
            )
        return str(json.loads((folder / "ticket.json").read_text(encoding="utf-8"))["job_id"])

    def query(self, tickets: Collection[Ticket]) -> dict[Ticket, Known]:
        """Return the jobs whose queue still lives: what they do stands in their journals."""
        alive = {job_id for job_id in {ticket.job_id for ticket in tickets} if is_queue_alive(job_id)}
        return {ticket: Known(state=State.PENDING, raw="queued") for ticket in tickets if ticket.job_id in alive}

    def cancel(self, ticket: Ticket) -> None:
        """Do nothing: the queue passes over a run that is marked, and its agent is told directly."""


def is_queue_alive(job_id: str) -> bool:
    """Tell whether the queue of *job_id* still lives; the id holds its start time, so a recycled pid is not it."""
    pid, _, started = job_id.partition("-")
    try:
        return abs(psutil.Process(int(pid)).create_time() - float(started)) < 1.0
    except (psutil.Error, ValueError):
        return False


def _need(job: Job) -> Need:
    plan = job.manifest.plan
    return Need(cores=(plan.cpus_per_task or 1) * plan.processes_per_node, gpus=plan.gpus_per_node)
