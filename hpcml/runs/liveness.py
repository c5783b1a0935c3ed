"""Whether a process is still alive: the one answer for agents, local queues, submissions, locks and image builds.

A process that others may ask about writes down its `ProcessIdentity`. A process id is meaningful only in one table of
processes: that of one PID namespace, in one boot of one machine (pid_namespaces(7)). `liveness_of` says `DEAD` only
where that table can be seen from here, or cannot exist any more; else it says `UNKNOWN`, and its callers leave things
as they are, or wait until the owner's heartbeat has been silent for as long as is said below.

============================================  ==================================================================
where the process was, seen from here         answer
============================================  ==================================================================
a host of another name                        unknown
the same PID namespace                        alive or dead: its id and start time are looked up
any other PID namespace of this boot          unknown
another boot of a host of this name           dead if it began before this machine was started; unknown if it began
                                              later, for then that is another machine with the same name
============================================  ==================================================================
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

# After how many seconds of silence who cannot be seen counts as dead, by what it touches as long as it lives.
AGENT_SILENCE_S = 70.0  # three heartbeats, and what a network file system takes to show one
FORGOTTEN_SILENCE_S = 120.0  # the journals of a run whose job its scheduler has forgotten: another one may run it
LOCK_SILENCE_S = 300.0
SUBMISSION_SILENCE_S = 3600.0  # each batch touches its file
_PROC = Path("/proc")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SHORT = 8  # digits of a boot id: enough to tell the boots of one machine, or machines of one name, from each other
_MOST_PID = 2**31
_LATEST_S = 1e12
_BOOT_TOLERANCE_S = 60.0  # a start is told by the wall clock, which is set now and then, just after the boot above all
_UNSAFE = re.compile(r"[^A-Za-z0-9-]")
_PLACE = re.compile(r"(?P<host>[^@]*)@(?P<boot>[0-9a-f]*)@(?P<namespace>\d*)")


class Liveness(Enum):
    """Whether a process is alive, as far as this process can see."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "cannot tell from here"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """What identifies one process among those of all machines; what a record does not contain is empty or None."""

    host: str
    boot_id: str = ""  # or its first digits
    pid_namespace: str = ""  # as /proc/PID/ns/pid says it: pid:[4026531836]
    pid: int  # in that namespace
    start_ticks: int | None = None  # clock ticks from the machine's start to the process's: tells a recycled id
    created_at: float | None = None  # unix seconds: when it began, or a later time at which it lived

    @classmethod
    def of_this_process(cls) -> ProcessIdentity:
        """Return the identity of the calling process."""
        return _identify("self", os.getpid())

    @classmethod
    def of_process(cls, pid: int) -> ProcessIdentity:
        """Return the identity of the living process *pid* of our PID namespace, or raise `ProcessLookupError`."""
        found = _identify(str(pid), pid)
        if found.start_ticks is None and found.boot_id:
            raise ProcessLookupError(f"there is no process {pid}")
        return found

    @classmethod
    def from_details(cls, details: Mapping[str, object]) -> ProcessIdentity | None:
        """Return the identity that the *details* of an event (`as_details`) hold; None where they name no process."""
        host, pid = details.get("hostname"), details.get("pid")
        if not isinstance(host, str) or not isinstance(pid, int) or not 0 < pid < _MOST_PID:
            return None  # 0 and -1 would mean many processes to whoever signals them
        ticks, told = details.get("start_ticks"), details.get("create_time")
        return cls(
            host=host,
            boot_id=str(details.get("boot_id") or ""),
            pid_namespace=str(details.get("pid_namespace") or ""),
            pid=pid,
            start_ticks=ticks if isinstance(ticks, int) else None,
            created_at=float(told) if isinstance(told, int | float) and abs(told) < _LATEST_S else None,
        )

    def as_details(self) -> dict[str, object]:
        """Return the identity as JSON values, for an event or a file; `from_details` reads it."""
        return {
            "pid": self.pid,
            "create_time": self.created_at,
            "hostname": self.host,
            "boot_id": self.boot_id,
            "pid_namespace": self.pid_namespace,
            "start_ticks": self.start_ticks,
        }

    @property
    def place(self) -> str:
        """The process table in which the id is valid, as a part of file names: ``node7@1e0121cd@4026531836``.

        These are host, first digits of the boot id, and PID namespace.
        """
        boot = self.boot_id.replace("-", "")[:_SHORT]
        return f"{plain(self.host)}@{boot}@{re.sub(r'[^0-9]', '', self.pid_namespace)}"

    @classmethod
    def at(
        cls, place: str, pid: int, *, start_ticks: int | None = None, created_at: float | None = None
    ) -> ProcessIdentity:
        """Return the identity of process *pid* in a `place`; a text of another form is taken for a host."""
        match = _PLACE.fullmatch(place)
        namespace = "" if match is None else match["namespace"]
        return cls(
            host=place if match is None else match["host"],
            boot_id="" if match is None else match["boot"],
            pid_namespace=f"pid:[{namespace}]" if namespace else "",
            pid=pid,
            start_ticks=start_ticks,
            created_at=created_at,
        )


def liveness_of(process: ProcessIdentity, ours: ProcessIdentity | None = None) -> Liveness:
    """Return whether *process* is alive, as far as it can be seen from here (see the table above).

    *ours* is the identity of the calling process, for who asks of many.

    >>> liveness_of(ProcessIdentity.of_this_process())
    <Liveness.ALIVE: 'alive'>
    """
    ours = ours or ProcessIdentity.of_this_process()
    if plain(process.host) != plain(ours.host):
        return Liveness.UNKNOWN
    if process.boot_id and not _is_same_boot(process.boot_id, ours.boot_id):
        return Liveness.DEAD if _is_before_this_boot(process) else Liveness.UNKNOWN
    if process.pid_namespace not in ("", ours.pid_namespace) or not _shows_our_namespace():
        return Liveness.UNKNOWN
    return Liveness.ALIVE if _has_its_start(process) else Liveness.DEAD


def pid_here(process: ProcessIdentity) -> int | None:
    """Return the id by which this process can signal *process*; None where it is dead or not visible from here."""
    return process.pid if liveness_of(process) is Liveness.ALIVE else None


def is_of_our_namespace(process: ProcessIdentity) -> bool:
    """Tell whether the recorded id of *process* means the same process here: same host, boot and PID namespace."""
    ours = ProcessIdentity.of_this_process()
    return (
        plain(process.host) == plain(ours.host)
        and (not process.boot_id or _is_same_boot(process.boot_id, ours.boot_id))
        and process.pid_namespace in ("", ours.pid_namespace)
    )


def plain(host: str) -> str:
    """Return the name of a host with characters that file names should not have replaced by ``_``."""
    return _UNSAFE.sub("_", host)


def boot_id() -> str:
    """Return the kernel's id of this boot (random/boot_id of proc(5)), which containers share; empty without it."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _identify(name: str, pid: int) -> ProcessIdentity:
    ticks = _start_of(name)
    return ProcessIdentity(
        host=os.uname().nodename,
        boot_id=boot_id(),
        pid_namespace=_namespace(),
        pid=pid,
        start_ticks=ticks,
        created_at=_wall_clock(ticks),
    )


def _is_before_this_boot(process: ProcessIdentity) -> bool:
    return process.created_at is not None and process.created_at < _booted_at() - _BOOT_TOLERANCE_S


def _has_its_start(process: ProcessIdentity) -> bool:
    """Tell whether the process of this id lives and began when *process* did; nothing but its id may be known."""
    ticks = _start_of(str(process.pid))
    return ticks is not None and process.start_ticks in (None, ticks)


def _is_same_boot(one: str, other: str) -> bool:
    first, second = one.replace("-", ""), other.replace("-", "")
    return first.startswith(second) or second.startswith(first)


def _shows_our_namespace() -> bool:
    """Tell whether the numbers in /proc are those of our PID namespace: it may be mounted for the one above."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115 - a `Path` takes longer than the question
    except OSError:
        return False


def _namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _start_of(name: str) -> int | None:
    """Return when a process began, in clock ticks since boot; None if there is none, or none that still runs."""
    try:
        with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - as above
            words = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    fields = words.rpartition(")")[2].split()  # the name before may hold anything
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _wall_clock(ticks: int | None) -> float | None:
    return None if ticks is None else _booted_at() + ticks / os.sysconf("SC_CLK_TCK")


def _booted_at() -> float:
    """Return when this machine was started, in unix seconds: ``btime`` of /proc/stat, as psutil counts from."""
    for line in (_PROC / "stat").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0
