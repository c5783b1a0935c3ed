"""Hands a batch to submitit's local executor and returns: ``python -m hpcml.schedulers.local_start FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
from submitit import LocalExecutor

from hpcml.schedulers.local_queue import TICKET, drain

_NO_TIMEOUT_MIN = 60 * 24 * 365  # walltime is the agent's business


def start(folder: Path) -> None:
    """Submit `drain` for the batch in *folder* and leave its id, ``pid-starttime``, in ticket.json."""
    executor = LocalExecutor(folder / "submitit")
    executor.update_parameters(timeout_min=_NO_TIMEOUT_MIN)
    job = executor.submit(drain, str(folder))
    started = psutil.Process(int(job.job_id)).create_time()
    fresh = folder / f"{TICKET}.new"
    fresh.write_text(json.dumps({"job_id": f"{job.job_id}-{started:.2f}"}), encoding="utf-8")
    fresh.replace(folder / TICKET)  # whole or not at all: it tells that the queue was started


if __name__ == "__main__":
    start(Path(sys.argv[1]))
