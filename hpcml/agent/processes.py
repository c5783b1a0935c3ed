"""The processes of a workload, found in /proc: those of its ranks' sessions, and those that have left these.

A rank's session has also what leads a group of its own (as `timeout` makes) and what is in a container (Apptainer
starts nothing in a session of its own). A process that made a session of its own (a daemon, `setsid`, a worker of
torchrun whose launcher was killed) is found by its environment, which names the run (proc(5)). hpcml's own are none of
it, nor is what has another job of a scheduler in its environment: a program in a run may submit runs and jobs, which
inherit that environment and may be at work on this node.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.model.secrets import masked

_PROC = Path("/proc")
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")  # variables in which schedulers say which job it is
# Commands, agents, queues and guards of ours by their command lines, words and a zero behind each: what Python was told
# to run, and not any word that may name a folder called hpcml.
_OURS = re.compile(
    rb"\0(-m\0hpcml[.\0]|-c\0(from|import) hpcml\.|guard/hpcml\0)"
    rb"|^[^\0]*python[^\0/]*\0(-[XW]\0[^\0]*\0|-[^\0]*\0)*[^\0]*/hpcml\0"
)
_MOST_SHOWN = 80  # characters of a command line
_MOST_ROUNDS = 20  # of looks for what is to be killed
_ROUND_S = 0.01
_ENDED = (b"Z", b"X")  # states of a process that nobody has waited for yet
# Apptainer's and Singularity's own processes catch every signal and pass it on to the program, whether that catches it
# or would die of it.
_RELAYS = frozenset({"starter", "starter-suid", "appinit", "sinit"})


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a session; the start time (clock ticks since boot) tells it from a later one with the same id."""

    pid: int
    started: int


def members(sessions: Collection[int]) -> Iterator[Member]:
    """Yield the processes of *sessions* (ids of their leaders), without those of Apptainer itself (proc(5))."""
    for name in os.listdir(_PROC):  # noqa: PTH208 - a node has thousands: names will do
        if not name.isdecimal():
            continue
        with suppress(OSError):  # it has ended
            before, _, after = (_PROC / name / "stat").read_bytes().rpartition(b")")
            fields = after.split()  # state, parent, group, session, ...: proc(5), from the third field on
            if int(fields[3]) in sessions and before.partition(b"(")[2].decode("ascii", "replace") not in _RELAYS:
                yield Member(int(name), int(fields[19]))


def catches(pid: int, number: signal.Signals) -> bool:
    """Tell whether the process has a handler for the signal (SigCgt of proc(5)), so that it survives SIGUSR1."""
    try:
        status = (_PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def tell_catchers(sessions: Collection[int], number: signal.Signals, told: Collection[Member] = ()) -> set[Member]:
    """Send the signal to those processes of *sessions* that catch it and are not in *told*; return them."""
    found = set()
    for member in members(sessions):
        if member not in told and catches(member.pid, number):
            with suppress(OSError):  # it has ended, or become another user's
                os.kill(member.pid, number)
                found.add(member)
    return found


@dataclass(frozen=True, slots=True)
class Remnant:
    """A process that is alive; `words` is the beginning of its command line, made printable."""

    pid: int
    words: str


def left_behind(sessions: Collection[int], marks: Collection[str] = ()) -> list[Remnant]:
    """Return the living processes of *sessions* (ids of their leaders), and those whose environment has all *marks*.

    A mark of one of `JOBS` may be lacking, as in a container, but the variable must not have another value.
    """
    return list(_found(sessions, [mark.encode() for mark in marks]))


def _found(sessions: Collection[int], marks: Collection[bytes]) -> Iterator[Remnant]:
    for name in os.listdir(_PROC):  # noqa: PTH208 - a node has thousands: names will do
        if not name.isdecimal():
            continue
        with suppress(OSError):  # it has ended, or is another user's
            before, _, after = (_PROC / name / "stat").read_bytes().rpartition(b")")
            fields = after.split()
            if fields[0] in _ENDED or before.partition(b"(")[2].decode("ascii", "replace") in _RELAYS:
                continue
            words = (_PROC / name / "cmdline").read_bytes()
            if int(fields[3]) in sessions or (marks and _carries(_PROC / name, marks, words)):
                yield Remnant(int(name), _printable(words))


def _carries(process: Path, marks: Collection[bytes], words: bytes) -> bool:
    if _OURS.search(words):
        return False
    environ = dict(pair.partition(b"=")[::2] for pair in (process / "environ").read_bytes().split(b"\0"))
    for mark in marks:
        name, _, value = mark.partition(b"=")
        if environ.get(name, value if name.decode() in JOBS else None) != value:
            return False
    return True


def _printable(command_line: bytes) -> str:
    text = " ".join(masked(command_line.rstrip(b"\0").decode("utf-8", "replace").split("\0")))
    return "".join(c if c.isprintable() else " " for c in text)[:_MOST_SHOWN]


def kill(sessions: Collection[int], marks: Collection[str] = ()) -> list[Remnant]:
    """Send SIGKILL to all that `left_behind` finds, and what these start meanwhile; return them."""
    killed: dict[int, Remnant] = {}
    for _ in range(_MOST_ROUNDS):
        found = left_behind(sessions, marks)
        for remnant in found:
            with suppress(OSError):  # it has ended meanwhile
                os.kill(remnant.pid, signal.SIGKILL)
        killed |= {remnant.pid: remnant for remnant in found}
        if not found:
            break
        time.sleep(_ROUND_S)
    return list(killed.values())


if __name__ == "__main__":  # of a `Guard` whose agent has died: marks and the ids of sessions
    _words = sys.argv[1:]
    kill({int(word) for word in _words if word.isdecimal()}, [word for word in _words if not word.isdecimal()])
