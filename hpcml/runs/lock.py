"""A lock without flock: one holder among all processes on all hosts that share a file system.

The lock is a folder that is moved into place with its owner's file inside: `rename` of a folder onto one that is not
empty fails on every file system, so that one of several processes wins. The owner updates the file's time as a
heartbeat. An owner counts as dead if its process is gone from this host, or if its heartbeat has been silent for
minutes on another host. Only one of the processes that conclude this may remove the lock, and the owner checks that it
still holds the lock before it makes any result visible. Used for building images, for exports, and for the published
copy of the SQLite store.

A folder of locks is as open as the folder that it lies in, whatever the umask: in a home it is its owner's alone, and
where others may build images or replace a store, they may take locks. A lock itself only its owner may write.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcml.runs.files import read_json
from hpcml.runs.liveness import LOCK_SILENCE_S, Liveness, ProcessIdentity, liveness_of
from hpcml.runs.private import FOLDER

_OWNER = "owner.json"
_FORGOTTEN_S = 3600
_GONE = ".gone-"  # what nobody holds any more and somebody is removing
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
_HANDED_ON = 0o3777  # of the mode of the folder above, with the group and the sticky bit that it hands on
_ENTERED = 0o755
_READABLE = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that holds a lock, as the lock's file says."""

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    start: int  # in clock ticks since boot: tells a process from a later one with its number
    token: str

    @classmethod
    def ourselves(cls) -> Owner:
        """Return this process, with a new random token."""
        process = ProcessIdentity.of_this_process()
        return cls(
            host=process.host,
            boot_id=process.boot_id,
            pid_namespace=process.pid_namespace,
            pid=process.pid,
            start=process.start_ticks or 0,
            token=secrets.token_hex(8),
        )

    @property
    def liveness(self) -> Liveness:
        """Whether the owner's process is alive, as far as that can be seen from here."""
        return liveness_of(
            ProcessIdentity(
                host=self.host,
                boot_id=self.boot_id,
                pid_namespace=self.pid_namespace,
                pid=self.pid,
                start_ticks=self.start or None,
            )
        )

    @property
    def is_gone(self) -> bool:
        """Whether the owner's process is certainly dead; False where that is unknown."""
        return self.liveness is Liveness.DEAD

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


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
                os.utime(self._path / _OWNER)

    def release(self) -> None:
        """Remove the lock, if it is still ours."""
        if self.is_ours:
            _discard(self._path)


def read_owner(path: Path) -> Owner | None:
    """Return the holder of the lock at *path*; None where there is no lock, or its file is damaged."""
    try:
        return Owner(**read_json(path / _OWNER))
    except (OSError, ValueError, TypeError):
        return None


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
    for path in folder.glob(".*"):  # of a process that died while it took or cleared a lock
        if path.name.startswith(_GONE) or time.time() - _mtime(path) > _FORGOTTEN_S:
            _discard(path)


def try_lock(folder: Path, name: str, *, patience: Patience | None = None) -> Lock | Owner:
    """Take the lock if it is free or its owner is certainly dead, and return it; else return the present owner.

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
    """Yield the present owner, once per poll, until the lock could be taken; then yield the lock and stop.

    Raises `OSError` where *folder* cannot be written.

        for found in wait_for(folder, "image"):
            if isinstance(found, Lock):
                break
            print(f"waiting for {found}")
    """
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
        is_silent = stands_still and now[1] > patience.silence_s
        if is_silent and found.liveness is Liveness.UNKNOWN and _clear(folder, name, found):
            continue
        yield found
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


def _take(folder: Path, name: str, owner: Owner) -> bool:
    ready = folder / f".{name}-{owner.token}"
    try:
        mode = _mode_of_locks(folder)
        ready.mkdir(mode=FOLDER)
        (ready / _OWNER).write_text(json.dumps(asdict(owner)), encoding="utf-8")
        (ready / _OWNER).chmod(mode & _READABLE)
        ready.chmod(mode & _ENTERED)
        ready.rename(folder / name)
    except OSError as error:
        shutil.rmtree(ready, ignore_errors=True)
        if error.errno in _TAKEN:
            return False
        raise
    return True


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
