"""A program that must not outlive its caller, nor what it starts: ``python -I -S guard.py CALLER PROGRAM WORDS``.

A site's sbatch or qsub may be a wrapper, which has the real one as its child. Were hpcml killed, that child would
submit behind the back of whoever looks whether the job is there, and submits it again. The kernel can be asked to end a
child with its parent (prctl, PR_SET_PDEATHSIG), but not a grandchild: hence this process between the two. It leads a
session of its own; when CALLER dies, however that comes, it is told and kills the session, and so it does on SIGTERM,
and where the program failed and left something running. A daemon with another session is spared, such as the one by
which qsub makes the next submissions faster.

Builds have `hpcml.images.guard`, and ranks the shell of `hpcml.agent.supervise`: neither is a wrapper, and this has to
be one. WORDS are the program's, its own name first. This process ends as the program did. `hpcml.schedulers.commands`
starts it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CANNOT_START = 127  # as a shell says it
_ROUNDS = 200  # of looking for what a killed process had just started


def main(arguments: list[str]) -> int:
    """Run the program and wait for it; a negative status is the signal that ended it."""
    caller, program, *words = arguments
    if os.getsid(0) != os.getpid():
        sys.stderr.write("guard.py must lead a session: it would kill all of yours\n")
        return 2
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM.value)
    if os.getppid() != int(caller):  # it died before the kernel was told
        return 1
    this = os.getpid()
    child = os.fork()
    if child == 0:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL.value)
        _become(program, words, parent=this)
    while signal.sigwait({signal.SIGTERM, signal.SIGCHLD}) == signal.SIGCHLD:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if status:
                _kill_session()
            return os.waitstatus_to_exitcode(status)
    _kill_session()
    return -signal.SIGTERM


def _become(program: str, words: list[str], *, parent: int) -> None:
    """Turn this child into the program; it never returns."""
    try:
        if os.getppid() == parent:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})
            os.execv(program, words)  # noqa: S606 - a list of words, and no shell
    except OSError as error:
        os.write(2, f"{program} cannot be started: {error.strerror}\n".encode(errors="replace"))
    os._exit(_CANNOT_START)


def _kill_session() -> None:
    """Kill every process of this session but this one, until none is left that can be killed."""
    for _ in range(_ROUNDS):
        if not [pid for pid in _session() if _kill(pid)]:
            return
        time.sleep(0.01)


def _session() -> list[int]:
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            state, _, _, session, *_ = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except (OSError, ValueError):
            continue  # it ended at this moment
        if int(session) == os.getpid() and state not in "ZX":
            found.append(int(folder.name))
    return found


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:  # it has ended, or belongs to root as PBS's pbs_iff does, which ends by itself
        return False
    return True


def _end_as(status: int) -> None:
    """End with *status*, or by the signal that it stands for."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-status})
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    _end_as(main(sys.argv[1:]))
