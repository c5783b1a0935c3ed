"""A lock that needs no flock: one holder among all processes on all hosts that share a file system.

It is a folder, moved into place with its owner written inside: `rename` of a folder onto one that is not empty fails
everywhere, so one of several comes first. The owner touches it as long as it lives. An owner is dead if its process is
gone from this host, or if it was not heard of for minutes on another one; only one of those who think so may clear it
away, and the owner looks whether it is still the owner before it makes anything visible.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

_OWNER = "owner.json"
_FORGOTTEN_S = 3600
_GONE = ".gone-"  # what nobody holds any more and somebody is removing
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds a lock."""

    host: str
    namespace: str  # of process ids: the same number means another process in a container
    pid: int
    start: int  # in clock ticks since boot: tells a process from a later one with its number
    token: str

    @classmethod
    def ourselves(cls) -> Owner:
        """Return this process, under a name that it has never had before."""
        return cls(
            host=socket.gethostname(),
            namespace=_namespace(),
            pid=os.getpid(),
            start=_start_of(os.getpid()) or 0,
            token=secrets.token_hex(8),
        )

    @property
    def is_gone(self) -> bool:
        """Whether the process is certainly dead; False too where that cannot be known from here."""
        return self.is_visible and _start_of(self.pid) != self.start

    @property
    def is_visible(self) -> bool:
        """Whether this process can see that one, if it lives."""
        return (self.host, self.namespace) == (socket.gethostname(), _namespace())

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often an owner says that it lives, and when others stop believing it."""

    heartbeat_s: float = 10.0
    silence_s: float = 300.0
    poll_s: float = 1.0


class Lock:
    """The lock on *name* in *folder*, held by this process."""

    def __init__(self, folder: Path, name: str, owner: Owner) -> None:
        self._path = folder / name
        self._owner = owner

    @property
    def is_ours(self) -> bool:
        """Whether nobody has declared us dead."""
        return read_owner(self._path) == self._owner

    def touch(self) -> None:
        """Say that we live."""
        if self.is_ours:
            with suppress(OSError):  # said again in some seconds
                os.utime(self._path / _OWNER)

    def release(self) -> None:
        """Let others have it."""
        if self.is_ours:
            _discard(self._path)


def read_owner(path: Path) -> Owner | None:
    """Return who holds the lock at *path*, None if nobody does."""
    try:
        return Owner(**json.loads((path / _OWNER).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def owners(folder: Path) -> dict[str, Owner]:
    """Return the holders of all locks in *folder*, dead or alive, by name."""
    with suppress(FileNotFoundError):
        found = {path.name: read_owner(path) for path in folder.iterdir() if not path.name.startswith(".")}
        return {name: owner for name, owner in found.items() if owner is not None}
    return {}


def clear_dead(folder: Path) -> None:
    """Remove the locks of processes that have certainly died."""
    for name, owner in owners(folder).items():
        if owner.is_gone:
            _clear(folder, name, owner)
    for path in folder.glob(".*"):  # of a process that died while it took or cleared a lock
        if path.name.startswith(_GONE) or time.time() - _mtime(path) > _FORGOTTEN_S:
            _discard(path)


def try_lock(folder: Path, name: str, *, patience: Patience | None = None) -> Lock | Owner:
    """Take the lock if it is free or its owner is certainly dead; else return the owner.

    Raises `OSError` where *folder* cannot be written.
    """
    owner = Owner.ourselves()
    while True:
        if _take(folder, name, owner):
            return Lock(folder, name, owner)
        holder = read_owner(folder / name)
        if holder is None:
            if _has_no_owner_for_long(folder / name, patience or Patience()):
                _discard(folder / name)
            continue  # released in this moment
        if not (holder.is_gone and _clear(folder, name, holder)):
            return holder


def wait_for(folder: Path, name: str, *, patience: Patience | None = None) -> Iterator[Lock | Owner]:
    """Yield the owner for as long as there is another one, then the lock."""
    patience = patience or Patience()
    seen: tuple[str, float] | None = None
    seen_at = time.monotonic()
    while True:
        found = try_lock(folder, name, patience=patience)
        if isinstance(found, Lock):
            yield found
            return
        now = (found.token, _age_of(folder, name))
        beat = (found.token, _mtime(folder / name / _OWNER))
        if beat != seen:
            seen, seen_at = beat, time.monotonic()
        # Clocks of hosts differ: besides its age, the heartbeat has to be seen standing still.
        stands_still = time.monotonic() - seen_at > 2.5 * patience.heartbeat_s
        if not found.is_visible and stands_still and now[1] > patience.silence_s and _clear(folder, name, found):
            continue
        yield found
        time.sleep(patience.poll_s)


@contextmanager
def kept_alive(lock: Lock, patience: Patience | None = None) -> Iterator[Lock]:
    """Say regularly that the owner lives, and release the lock at the end."""
    interval_s = (patience or Patience()).heartbeat_s
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(interval_s):
            lock.touch()

    thread = threading.Thread(target=beat, name="lease", daemon=True)
    thread.start()
    try:
        yield lock
    finally:
        ended.set()
        thread.join()
        lock.release()


def _take(folder: Path, name: str, owner: Owner) -> bool:
    ready = folder / f".{name}-{owner.token}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ready.mkdir()
        (ready / _OWNER).write_text(json.dumps(asdict(owner)), encoding="utf-8")
        ready.rename(folder / name)
    except OSError as error:
        shutil.rmtree(ready, ignore_errors=True)
        if error.errno in _TAKEN:
            return False
        raise
    return True


def _clear(folder: Path, name: str, dead: Owner) -> bool:
    """Remove the lock of *dead*; False if somebody else is doing that."""
    mark = folder / f".clearing-{dead.token}"
    try:
        mark.mkdir()
    except FileExistsError:
        if time.time() - _mtime(mark) > 60:  # who began that is dead, too
            with suppress(OSError):
                mark.rmdir()
        return False
    try:
        if read_owner(folder / name) == dead:  # nobody but us may remove it now, and nobody can take it before
            _discard(folder / name)
            return True
        return False
    finally:
        mark.rmdir()


def _discard(path: Path) -> None:
    """Remove a lock so that it is gone at once and whole."""
    away = path.parent / f"{_GONE}{secrets.token_hex(8)}"
    with suppress(FileNotFoundError):
        path.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def _has_no_owner_for_long(path: Path, patience: Patience) -> bool:
    """Whether a lock is damaged: an owner is written before the lock appears, and a lock goes whole."""
    time.sleep(0.05)
    return path.is_dir() and read_owner(path) is None and time.time() - _mtime(path) > patience.silence_s


def _age_of(folder: Path, name: str) -> float:
    """Return for how long the owner has said nothing, by the clock of the file system and not by ours."""
    probe = folder / f".clock-{secrets.token_hex(8)}"
    try:
        probe.touch()
        return _mtime(probe) - _mtime(folder / name / _OWNER)
    finally:
        probe.unlink(missing_ok=True)


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _start_of(pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot; None if there is none."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = words.rpartition(")")[2].split()  # the name before may hold anything
    return None if fields[0] in ("Z", "X") else int(fields[19])
