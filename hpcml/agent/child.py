"""A fork of the agent for what may hang (NVML, a file system, a user's regular expression): the agent never waits long.

It has loaded most of what it needs, so that it begins in a fraction of the time that a Python of its own would take.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

SAMPLER, METRICS = "hpcml-sampler", "hpcml-metrics"  # names of processes, of 15 characters at most
CONTROL, SAID = 0, 1  # file descriptors in the child: what it is told, and where it answers
_STANDARD_ERROR = 2
_LONGEST_PAUSE_S = 0.05
TO_DIE_S = 0.5
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # prctl(2)
_NOT_FOR_US = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # they go to whole jobs


@dataclass(slots=True)
class Child:
    """A fork of this process that leads a session of its own, and dies with us."""

    pid: int
    control: int  # file descriptor: its standard input
    said: int  # and its standard output
    code: int | None = None  # exit status, or the negative number of a signal; None while it lives

    @classmethod
    def of_this(cls, act: Callable[[], int], name: str) -> Child:
        """Start a process called *name* that does *act* and ends with what it returns.

        Raises `OSError` where that cannot be.
        """
        control, said, agent = os.pipe(), os.pipe(), os.getpid()
        try:
            pid = os.fork()
        except OSError:
            for end in (*control, *said):
                os.close(end)
            raise
        if pid == 0:
            _be(act, control[0], said[1], agent, name)
        os.close(control[0])
        os.close(said[1])
        return cls(pid, control[1], said[0])

    def poll(self) -> int | None:
        """Return how it ended; None: it has not."""
        if self.code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it; as subprocess has it
                pid, status = self.pid, 0
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def end(self, words: str, *, within_s: float) -> int | None:
        """Tell it *words* and wait for its end; None: it was killed, as it had not ended *within_s* seconds."""
        with suppress(OSError):  # it has ended
            os.write(self.control, words.encode())
        code = self._wait(within_s)
        if code is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait(TO_DIE_S)  # in vain where it hangs in a driver, which not even SIGKILL ends
        return code

    def close(self) -> None:
        """Close the pipes."""
        os.close(self.control)
        os.close(self.said)

    def _wait(self, timeout_s: float) -> int | None:
        until, pause_s = time.monotonic() + timeout_s, 0.0005
        while self.poll() is None and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, pause_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return self.code


def _be(act: Callable[[], int], control: int, said: int, agent: int, name: str) -> NoReturn:
    """Be the forked process: nothing of the agent's is held or heard any more, and nothing of it is done at the end."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        os.dup2(control, CONTROL)
        os.dup2(said, SAID)  # its complaints go where the agent's go
        for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers are enough
            if int(number) > _STANDARD_ERROR:
                with suppress(OSError):  # the folder itself
                    os.close(int(number))
        end_with(agent, name)
        code = act()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - as at the end of any Python
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def end_with(agent: int, name: str) -> None:
    """Have the kernel kill this process when its parent ends, even while it hangs in a call; and give it its *name*.

    Signals to whole jobs are ignored from now on.
    """
    for number in _NOT_FOR_US:
        signal.signal(number, signal.SIG_IGN)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_NAME, name.encode())  # in `ps -o comm` and `top`
    if os.getppid() != agent:  # it has ended meanwhile
        sys.exit(0)
