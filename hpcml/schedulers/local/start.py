"""Begins the queue of this machine in a process of its own: ``python -m hpcml.schedulers.local.start RUNTIME LOCK``."""

import os
import sys
from typing import NoReturn

from hpcml.search_path import standard_library_first


def start(runtime: str, lock: int) -> None:
    """Fork a process that serves the queue of *runtime*, whose lock is the descriptor *lock*; return once it does.

    So the queue is no child of `hpcml run`, which need not wait for its end. What it prints, and its traceback where it
    dies of one, go where this process writes. Exits with 1 where it could not begin.
    """
    heard, told = os.pipe()
    if os.fork() == 0:
        os.close(heard)
        _be_the_queue(runtime, lock, told)
    os.close(told)
    os.close(lock)
    if not os.read(heard, 1):
        sys.exit(1)


def _be_the_queue(runtime: str, lock: int, told: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        from hpcml.schedulers.local.queue import serve  # noqa: PLC0415 - not before it is known where modules are found

        serve(runtime, lock, on_ready=lambda: os.write(told, b"1"))
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
    start(sys.argv[1], int(sys.argv[2]))
