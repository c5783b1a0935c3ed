"""Begins the queue of a batch in a process of its own: ``python -m hpcml.schedulers.local.start FOLDER``."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from hpcml.paths import begin_in_utf8
from hpcml.schedulers.local.queue import drain


def start(folder: Path) -> None:
    """Fork a process that drains the batch in *folder*; return once that has left its ticket, or was not needed.

    So the queue is no child of `hpcml run`, which need not wait for its end. What it prints, and its traceback where it
    dies of one, go where this process writes: into the batch's queue.log.
    """
    heard, told = os.pipe()
    if os.fork() == 0:
        os.close(heard)
        _be_the_queue(folder, told)
    os.close(told)
    os.read(heard, 1)  # which ends with the ticket, or with the queue


def _be_the_queue(folder: Path, told: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        drain(str(folder), on_ticket=lambda: os.close(told))
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, nothing of the process that was copied is to be done twice
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    begin_in_utf8()
    start(Path(sys.argv[1]))
