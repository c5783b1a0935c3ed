"""The inside of a submitit job on PBS: who it is, and on which nodes.

submitit finds this class by the entry point ``job_environment`` of the group ``submitit``. What it reads was exported
by the script that `submitit_executor` wrote.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from submitit.core import job_environment


class PbsJobEnvironment(job_environment.JobEnvironment):
    """A job of one process; on several nodes it runs on the first, and may reach the others by pbs_tmrsh.

    submitit makes it inside a job, and asks it for the job's id and nodes. PBS warns nobody before walltime, and lets
    no user requeue a job: so nothing calls `_requeue`.
    """

    _env: ClassVar[dict[str, str]] = {
        "job_id": "SUBMITIT_PBS_JOB_ID",  # 12 or 12_3
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
