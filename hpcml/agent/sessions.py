"""The processes of sessions, found by the session's id: those too that lead a group, as `timeout` makes one.

A container's processes are among them: Apptainer starts none in a session of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# Apptainer's and Singularity's own processes catch every signal and pass it on to the program, whether that catches it
# or would die of it.
_RELAYS = frozenset({"starter", "starter-suid", "appinit", "sinit"})


@dataclass(frozen=True, slots=True)
class Member:
    """A process, which with its start (in clock ticks since boot) is no other one under a recycled id."""

    pid: int
    started: int


def members(sessions: Collection[int]) -> Iterator[Member]:
    """Yield the processes of *sessions*, each of which is named by its leader's id."""
    for name in os.listdir(_PROC):  # noqa: PTH208 - a node has thousands: names will do
        if not name.isdecimal():
            continue
        with suppress(OSError):  # it has ended
            before, _, after = (_PROC / name / "stat").read_bytes().rpartition(b")")
            fields = after.split()  # state, parent, group, session, ...: proc(5), from the third field on
            if int(fields[3]) in sessions and before.partition(b"(")[2].decode("ascii", "replace") not in _RELAYS:
                yield Member(int(name), int(fields[19]))


def catches(pid: int, number: signal.Signals) -> bool:
    """Tell whether the process has a handler for the signal, which would end it otherwise."""
    try:
        status = (_PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def tell_catchers(sessions: Collection[int], number: signal.Signals, told: Collection[Member] = ()) -> set[Member]:
    """Send the signal to those of *sessions* that catch it and are not in *told*; return whom it was sent to."""
    found = set()
    for member in members(sessions):
        if member not in told and catches(member.pid, number):
            with suppress(OSError):  # it has ended, or become another user's
                os.kill(member.pid, number)
                found.add(member)
    return found


def kill(sessions: Collection[int]) -> None:
    """Kill what is left of *sessions*."""
    for member in members(sessions):
        with suppress(OSError):
            os.kill(member.pid, signal.SIGKILL)
