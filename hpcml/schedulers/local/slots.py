"""Cores and GPUs of this machine, claimed by name so that several `hpcml run` at once do not share them."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import NotPrivateError
from hpcml.runs.private import check, make_folder

_MOST_LABEL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What this machine has. `gpus` are UUIDs."""

    cores: int
    gpus: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one run takes of it.

    Of one node: GPUs are counted whole.
    """

    cores: int
    gpus: int


_NOTHING = Need(cores=0, gpus=0)


@dataclass(frozen=True, slots=True)
class Claim:
    """Cores and GPUs that are ours until `release`, or until this process and all that it gave `files` to have ended.

    The locks are files, which the kernel lets go of with the last process that has them open (man 2 flock): an agent
    that inherits them keeps its cores and GPUs when the queue that claimed them is killed. `gpus` is what
    CUDA_VISIBLE_DEVICES is set to. The folder is locked, too, by all together: systemd, which removes what has been in
    /tmp for ten days, spares it and what is in it then (man tmpfiles.d).
    """

    gpus: Sequence[str]
    locks: Sequence[int]
    folder: int

    @property
    def files(self) -> Sequence[int]:
        """The descriptors of all locks."""
        return [*self.locks, self.folder]

    def label(self, run_dir: Path) -> None:
        """Leave in the locks which run holds them, for `holders`; raises `OSError`, as on a full disk."""
        words = json.dumps({"run_dir": str(run_dir), "since_s": time.time()}).encode()
        for lock in self.locks:
            os.pwrite(lock, words, 0)

    def release(self) -> None:
        """Give everything back, whoever has the locks open; to be called once."""
        for file in self.files:
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a core or a GPU: the folder of the run, and since when, in seconds of the epoch."""

    run_dir: Path
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """How many cores and GPUs are missing for a need, and which runs hold such; one that does not say who is left out.

    The one that has held for the longest time is first.
    """

    cores: int
    gpus: int
    holders: Sequence[Holder]


def find_shortage(need: Need, pool: Pool, lock_dir: Path) -> Shortage | None:
    """Return what is missing at this moment for *need* and who holds it; None where enough is free.

    Each lock that is free is taken for an instant (shared, so that several may look).
    """
    missing: dict[str, int] = {}
    holders: dict[Path, Holder] = {}
    kinds = (("cores", _cores(pool), need.cores), ("gpus", list(pool.gpus), need.gpus))
    for kind, names, wanted in kinds:
        taken = [name for name in names if not _is_free(lock_dir / f"{name}.lock")]
        missing[kind] = max(0, wanted - (len(names) - len(taken)))
        if missing[kind]:
            found = (_read_label(lock_dir / f"{name}.lock") for name in taken)
            holders |= {holder.run_dir: holder for holder in found if holder is not None}
    if not any(missing.values()):
        return None
    return Shortage(**missing, holders=sorted(holders.values(), key=lambda holder: holder.since_s))


def _is_free(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:  # nobody has ever claimed it
        return True
    except BlockingIOError:
        return False
    return True


def _read_label(lock: Path) -> Holder | None:
    try:
        with lock.open("rb") as file:
            told = json.loads(file.read(_MOST_LABEL_BYTES))
        return Holder(Path(told["run_dir"]), float(told["since_s"]))
    except (OSError, ValueError, KeyError, TypeError):  # claimed a moment ago, or by an older hpcml, which says nothing
        return None


class QueuePlace:
    """The place of a queue among those of this machine: what its next job needs, those behind it leave free.

    Places are in the order of *name*. Each is a file beside the locks of the cores, locked by the queue: one that was
    killed holds up nobody.
    """

    def __init__(self, lock_dir: Path, name: str) -> None:
        self._path = lock_dir / f"{name}.waits"
        self._file: int | None = None

    def take(self, need: Need) -> None:
        """Wait for *need*; where that cannot be told now, as on a full disk, it is in the next call."""
        with suppress(OSError):
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self._file, f"{need.cores} {need.gpus}".ljust(32).encode(), 0)

    def leave(self) -> None:
        """Wait for nothing any more."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None

    def needed_before(self, pool: Pool) -> Need:
        """Return what those before this place need together; what *pool* does not have holds up nobody."""
        cores = gpus = 0
        for path in self._path.parent.glob("*.waits"):
            with suppress(OSError, ValueError):
                if path.name < self._path.name and not _is_free(path):
                    wanted = [int(word) for word in path.read_text(encoding="utf-8").split()]
                    if wanted[0] <= pool.cores and wanted[1] <= len(pool.gpus):
                        cores, gpus = cores + wanted[0], gpus + wanted[1]
        return Need(cores=cores, gpus=gpus)


def claim(need: Need, pool: Pool, lock_dir: Path, *, left: Need = _NOTHING) -> Claim | None:
    """Return a claim on all that *need* asks for, or None, with nothing held, where that much is not free.

    Of the cores and of the GPUs, where it takes any, as many as *left* says must stay free besides.

    The locks are advisory and of this machine alone, which is right for cores and GPUs: *lock_dir* must be local. It
    does not wait: the queue asks again after a while. *lock_dir* is made where it is absent, for its owner only. Raises
    `OSError` where that fails, and `NotPrivateError` where it is another user's.
    """
    make_lock_dir(lock_dir)
    folder = os.open(lock_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(BlockingIOError):  # somebody looks at its age in this moment
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
    cores = _take(_cores(pool), need.cores, lock_dir, left=left.cores)
    gpus = _take(list(pool.gpus), need.gpus, lock_dir, left=left.gpus)
    held = Claim([name for name, _ in gpus], [lock for _, lock in (*cores, *gpus)], folder)
    if len(cores) == need.cores and len(gpus) == need.gpus:
        return held
    held.release()
    return None


def _cores(pool: Pool) -> list[str]:
    return [f"core-{number}" for number in range(pool.cores)]


def make_lock_dir(lock_dir: Path) -> None:
    """Make the folder of the locks, for its owner only, unless it exists.

    Raises `OSError`, and `NotPrivateError` for one that others may write to: in a folder for all, such as /tmp,
    somebody may have been there before.
    """
    make_folder(lock_dir, parents=True)
    try:
        check(lock_dir, top=lock_dir)
    except NotPrivateError as error:
        raise NotPrivateError(f"{error}; XDG_RUNTIME_DIR says where else it may be") from error


def _take(names: Sequence[str], count: int, lock_dir: Path, *, left: int) -> list[tuple[str, int]]:
    """Lock *count* of *names*, or as many as are free but for *left*."""
    taken: list[tuple[str, int]] = []
    for name in names:
        if not count or len(taken) == count + left:
            break
        file = os.open(lock_dir / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        os.ftruncate(file, 0)  # whoever held it before
        taken.append((name, file))
    wanted = max(0, min(count, len(taken) - left))
    for _, file in taken[wanted:]:
        os.close(file)
    return taken[:wanted]
