"""Hands a batch to submitit's local executor and returns: ``python -m hpcml.schedulers.local.start FOLDER``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from submitit import LocalExecutor

from hpcml.runs.layout import home_of
from hpcml.runs.private import check, make_folder
from hpcml.schedulers.local.queue import drain, read_ticket

_NO_TIMEOUT_MIN = 60 * 24 * 365  # walltime is the agent's business
_POLL_S = 0.02
_ONLY_OURS = 0o077


def start(folder: Path) -> None:
    """Submit `drain` for the batch in *folder*, and return once that has left its ticket, or was not needed.

    It runs in a process of its own because submitit takes a second to load, and because the queue is to be no child of
    `hpcml run`.
    """
    before, place = read_ticket(folder), folder / "submitit"
    make_folder(place)
    check(place, top=home_of(place))
    umask = os.umask(_ONLY_OURS)  # its pickle is executed; what programs write is their users' to decide again
    executor = LocalExecutor(place)
    executor.update_parameters(timeout_min=_NO_TIMEOUT_MIN)
    job = executor.submit(drain, str(folder), umask=umask)
    while read_ticket(folder) == before and not job.done():
        time.sleep(_POLL_S)


if __name__ == "__main__":
    start(Path(sys.argv[1]))
