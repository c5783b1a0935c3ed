"""Begins the queue of a batch in a process of its own: ``python -m hpcml.schedulers.local.start FOLDER``."""

import os
import sys
from typing import NoReturn

from hpcml.search_path import standard_library_first


def start(folder: str) -> None:
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


def _be_the_queue(folder: str, told: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        from hpcml.schedulers.local.queue import drain  # noqa: PLC0415 - not before it is known where modules are found

        drain(folder, on_ticket=lambda: os.close(told))
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, nothing of the process that was copied is to be done twice
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    standard_library_first()
    from hpcml.paths import begin_in_utf8

    begin_in_utf8()
    start(sys.argv[1])
