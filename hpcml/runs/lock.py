"""A lock without flock: one holder among all processes on all hosts that share a file system.

The lock is a file that its owner creates exclusively, which is atomic on NFS, too, and whose time it updates as a
heartbeat. An owner counts as dead if its process is gone from this host, or if its heartbeat has stood still for
minutes. Only one of the processes that conclude this may remove the lock, and the owner checks that it still holds the
lock before it makes any result visible. Used for building images, for exports, and for the published copy of the SQLite
store.

A folder of locks is as open as the folder that it lies in, whatever the umask: in a home it is its owner's alone, and
where others may build images or replace a store, they may take locks. A lock itself only its owner may write.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.runs.atomic import creating
from hpcml.runs.files import read_json
from hpcml.runs.liveness import LOCK_SILENCE_S, Liveness, ProcessIdentity, liveness_of
from hpcml.runs.private import FOLDER, open_file

_HANDED_ON = 0o3777  # of the mode of the folder above, with the group and the sticky bit that it hands on
_READABLE = 0o644
_CLEARED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that holds a lock, as the lock's file says."""

    process: ProcessIdentity
    token: str

    @classmethod
    def ourselves(cls) -> Owner:
        """Return this process, with a new random token."""
        return cls(process=ProcessIdentity.of_this_process(), token=secrets.token_hex(8))

    @property
    def liveness(self) -> Liveness:
        """Whether the owner's process is alive, as far as that can be seen from here."""
        return liveness_of(self.process)

    @property
    def is_gone(self) -> bool:
        """Whether the owner's process is certainly dead; False where that is unknown."""
        return self.liveness is Liveness.DEAD

    def __str__(self) -> str:
        return f"process {self.process.pid} on {self.process.host}" if self.token else "another process"


_UNNAMED = Owner(process=ProcessIdentity(host="", pid=0), token="")  # its file is still empty, or was cut by a crash


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Times of locks: the owner's heartbeat, the silence after which it counts as dead, the interval of polling."""

    heartbeat_s: float = 10.0
    silence_s: float = LOCK_SILENCE_S
    poll_s: float = 1.0


class Lock:
    """A lock that this process holds: *name* in *folder*."""

    def __init__(self, folder: Path, name: str, owner: Owner) -> None:
        self._path = folder / name
        self._owner = owner

    @property
    def is_ours(self) -> bool:
        """Whether we still hold it; False once another process has declared us dead."""
        return read_owner(self._path) == self._owner

    def touch(self) -> None:
        """Write a heartbeat."""
        if self.is_ours:
            with suppress(OSError):  # said again in some seconds
                os.utime(self._path)

    def release(self) -> None:
        """Remove the lock, if it is still ours."""
        if self.is_ours:
            self._path.unlink(missing_ok=True)


def read_owner(path: Path) -> Owner | None:
    """Return the holder of the lock at *path*; None where there is no lock."""
    try:
        told = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return _UNNAMED
    process = ProcessIdentity.from_details(told) if isinstance(told, dict) else None
    return _UNNAMED if process is None else Owner(process=process, token=str(told.get("token")))


def owners(folder: Path) -> dict[str, Owner]:
    """Return the holders of all locks in *folder*, dead or alive, by name of the lock; none where it is no folder."""
    with suppress(FileNotFoundError, NotADirectoryError):
        found = {path.name: read_owner(path) for path in folder.iterdir() if not path.name.startswith(".")}
        return {name: owner for name, owner in found.items() if owner is not None}
    return {}


def clear_dead(folder: Path) -> None:
    """Remove the locks in *folder* whose processes have certainly died."""
    for name, owner in owners(folder).items():
        if owner.is_gone:
            _clear(folder, name, owner)


def try_lock(folder: Path, name: str) -> Lock | Owner:
    """Take the lock if it is free or its owner is certainly dead, and return it; else return the present owner.

    Raises `OSError` where *folder* cannot be written.
    """
    owner, mode = Owner.ourselves(), _mode_of_locks(folder) & _READABLE
    while True:
        with suppress(FileExistsError):
            _create(folder / name, owner, mode)
            return Lock(folder, name, owner)
        holder = read_owner(folder / name)
        if holder is not None and not (holder.is_gone and _clear(folder, name, holder)):
            return holder


def wait_for(folder: Path, name: str, *, patience: Patience | None = None) -> Iterator[Lock | Owner]:
    """Yield the present owner, once per poll, until the lock could be taken; then yield the lock and stop.

    Raises `OSError` where *folder* cannot be written.

        for found in wait_for(folder, "image"):
            if isinstance(found, Lock):
                break
            print(f"waiting for {found}")
    """
    patience = patience or Patience()
    seen: tuple[str, float | None] | None = None
    seen_at = time.monotonic()
    while True:
        found = try_lock(folder, name)
        yield found
        if isinstance(found, Lock):
            return
        if (beat := (found.token, _mtime(folder / name))) != seen:
            seen, seen_at = beat, time.monotonic()  # by our clock alone: those of hosts differ
        is_silent = time.monotonic() - seen_at > patience.silence_s
        if not (is_silent and found.liveness is Liveness.UNKNOWN and _clear(folder, name, found)):
            time.sleep(patience.poll_s)


@contextmanager
def kept_alive(lock: Lock, patience: Patience | None = None) -> Iterator[Lock]:
    """Write heartbeats from a thread within the block, and release the lock at its end."""
    interval_s = (patience or Patience()).heartbeat_s
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(interval_s):
            lock.touch()

    thread = threading.Thread(target=beat, name="lock", daemon=True)
    thread.start()
    try:
        yield lock
    finally:
        ended.set()
        thread.join()
        lock.release()


def _create(path: Path, owner: Owner, mode: int) -> None:
    """Make the lock, which appears whole: a crash, or a full disk, leaves no lock of nobody."""
    with creating(path, durable=True) as draft, open_file(draft, "x", encoding="utf-8") as file:
        file.write(json.dumps({**owner.process.as_details(), "token": owner.token}))
        file.flush()
        os.fchmod(file.fileno(), mode)


def _mode_of_locks(folder: Path) -> int:
    """Make *folder*, with the mode of the one above it, unless it exists; return its mode."""
    try:
        return stat.S_IMODE(folder.stat().st_mode)
    except FileNotFoundError:
        folder.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(folder.parent.stat().st_mode) & _HANDED_ON
        with suppress(FileExistsError):  # made by another process in this moment
            folder.mkdir(mode=FOLDER)
            folder.chmod(mode)
        return mode


def _clear(folder: Path, name: str, dead: Owner) -> bool:
    """Remove the lock of *dead*; False if somebody else is doing that."""
    mark = folder / f".clearing-{name}-{dead.token}"
    try:
        mark.mkdir()
    except FileExistsError:
        if time.time() - (_mtime(mark) or time.time()) > _CLEARED_WITHIN_S:  # who began that is dead, too
            with suppress(OSError):
                mark.rmdir()
        return False
    try:
        is_there = read_owner(folder / name) == dead
        if is_there:  # nobody but us may remove it now, and nobody can take it before
            (folder / name).unlink(missing_ok=True)
        return is_there
    finally:
        mark.rmdir()


def _mtime(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
