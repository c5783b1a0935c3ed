"""The inside of a submitit job on PBS: who it is, its warning before walltime, and its way back into the queue.

submitit finds this class by the entry point ``job_environment`` of the group ``submitit``. What it reads was exported
by the script that `submitit_executor` wrote.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from submitit.core import job_environment, logger

from hpcml.codec import decode
from hpcml.runs.private import open_file, write_file
from hpcml.schedulers.description import JobDraft
from hpcml.schedulers.driver import Driver
from hpcml.schedulers.pbs.scheduler import PBS

JOB_ID = "SUBMITIT_PBS_JOB_ID"  # submitit's id: that of the first of a chain, 12 or 12_3
DRAFT = "SUBMITIT_PBS_DRAFT"  # what a resubmission of this one job asks for, as JSON
SCRIPT = "SUBMITIT_PBS_SCRIPT"
WALLTIME_S = "SUBMITIT_PBS_WALLTIME_S"
STARTED_S = "SUBMITIT_PBS_STARTED_S"  # when the script began, in seconds since 1970
SIGNAL_DELAY_S = "SUBMITIT_PBS_SIGNAL_DELAY_S"


class PbsJobEnvironment(job_environment.JobEnvironment):
    """A job of one process; on several nodes it runs on the first, and may reach the others by pbs_tmrsh.

    submitit makes it inside a job, and asks it for the job's id and nodes; the rest is read from the environment.
    """

    _env: ClassVar[dict[str, str]] = {
        "job_id": JOB_ID,
        "num_nodes": "SUBMITIT_PBS_NUM_NODES",
        "node": "SUBMITIT_PBS_NODE",
        "num_tasks": "SUBMITIT_PBS_NUM_TASKS",  # these are never set: one process
        "global_rank": "SUBMITIT_PBS_GLOBAL_RANK",
        "local_rank": "SUBMITIT_PBS_LOCAL_RANK",
    }

    @property
    def array_job_id(self) -> str | None:
        """The array's number."""
        number, _, index = self.raw_job_id.partition("_")
        return number if index else None

    @property
    def array_task_id(self) -> str | None:
        """The index in the array."""
        return self.raw_job_id.partition("_")[2] or None

    @property
    def hostnames(self) -> Sequence[str]:
        """The job's nodes, this one first; PBS names a node once for each of its MPI slots."""
        nodefile = os.environ.get("PBS_NODEFILE")
        if not nodefile or not Path(nodefile).exists():
            return [self.hostname]
        return list(dict.fromkeys(Path(nodefile).read_text(encoding="utf-8").split()))

    def _handle_signals(self, paths: Any, submission: Any) -> None:  # noqa: ANN401 - submitit's, without types
        super()._handle_signals(paths, submission)
        if os.environ.get(WALLTIME_S):
            threading.Thread(target=self._warn_before_walltime, daemon=True).start()

    def _warn_before_walltime(self) -> None:
        """Send the signal that Slurm would send: PBS has none, and kills up to 17 s late, on which nobody can count."""
        walltime_s = float(os.environ[WALLTIME_S])
        warning_s = min(float(os.environ[SIGNAL_DELAY_S]), walltime_s / 2)  # a short job shall not be warned at once
        time.sleep(max(0.0, float(os.environ[STARTED_S]) + walltime_s - warning_s - time.time()))
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, self._usr_sig())  # to the main thread: it may sleep, and would not be woken else

    def _requeue(self, countdown: int) -> None:
        """Submit the job once more from inside: no exit status requeues a job, and qrerun is for operators."""
        chain = chain_file(self.paths.folder, self.job_id)
        turn = len(read_chain(self.paths.folder, self.job_id)) + 1
        script = self.paths.folder / f"{self.job_id}_requeue_{turn}.sh"
        again = f"export {JOB_ID}={shlex.quote(self.job_id)}\nexec /bin/bash {shlex.quote(os.environ[SCRIPT])}\n"
        text = f"#!/bin/bash\n{again}"
        write_file(script, text)
        index = self.array_task_id
        before = decode(JobDraft, json.loads(os.environ[DRAFT]))
        draft = replace(
            before,
            name=f"{before.name}.{f'{index}.' if index else ''}r{turn}",  # both are there for a while
            request=replace(before.request, dependency=None),
            script=script,
        )
        (full,) = Driver(scheduler=PBS, submissions=Path("none")).send(draft, text, os.environ)
        with open_file(chain, "a", encoding="utf-8") as file:
            file.write(f"{PBS.number_of(full)}\n")
        logger.get_logger().info(f"Requeued job {self.job_id} as {full} ({countdown} remaining timeouts)")


def chain_file(folder: Path, job_id: str) -> Path:
    """Return the file with the numbers of the jobs that carried on *job_id*, one a line."""
    return folder / f"{job_id}_chain.txt"


def read_chain(folder: Path, job_id: str) -> list[int]:
    """Return those numbers in their order; the last is the job that lives, if any does."""
    try:
        return [int(line) for line in chain_file(folder, job_id).read_text(encoding="utf-8").split()]
    except FileNotFoundError:
        return []
