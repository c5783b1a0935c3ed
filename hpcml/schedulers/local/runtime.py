"""The runtime folder of this machine: the lock of the queue's process, the homes that it serves, and what runs.

Nothing in it outlives a reboot, or has to: what waits is in the homes. The locks are flocks, which the kernel keeps
until the last process that has them open has ended, in whatever way (man 2 flock). An agent inherits the lock on the
file of its job, so that it keeps its cores and GPUs when the queue is killed. All of them lock the folder, too:
systemd, which removes what has been in /tmp for ten days, spares it and what is in it then (man tmpfiles.d).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.codec import decode, encode
from hpcml.errors import ConfigError, NotPrivateError
from hpcml.runs.files import read_json
from hpcml.runs.private import FILE, check, make_folder

_LOCK = "queue.lock"
_START = "start.lock"  # held for a moment by whoever takes or looks at the queue's lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What this machine has. `gpus` are UUIDs."""

    cores: int
    gpus: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedJob:
    """A job whose agent was started, and what it has of the machine."""

    batch: str  # its file in the home
    index: int
    run_dir: str  # of the first of its runs
    cores: int
    gpus: list[str]
    begun: dict[str, list[str]]  # by manifest: the logs of agents that were there before

    @property
    def key(self) -> tuple[Path, int]:
        """The file of its batch, and its number there."""
        return Path(self.batch), self.index


@dataclass(frozen=True, slots=True)
class RuntimeFolder:
    """The folder *path*, on a disk of this machine alone."""

    path: Path

    def make(self) -> None:
        """Make the folder, for its owner only, unless it exists.

        Raises `OSError`, and `NotPrivateError` for one that others may write to: in a folder for all, such as /tmp,
        somebody may have been there before.
        """
        make_folder(self.path, parents=True)
        try:
            check(self.path, top=self.path)
        except NotPrivateError as error:
            raise NotPrivateError(f"{error}; XDG_RUNTIME_DIR says where else it may be") from error
        make_folder(self._homes)
        make_folder(self._jobs)

    @property
    def log(self) -> Path:
        """What the queue's process prints."""
        return self.path / "queue.log"

    @property
    def _homes(self) -> Path:
        return self.path / "homes"

    @property
    def _jobs(self) -> Path:
        return self.path / "jobs"

    def try_lock(self) -> int | None:
        """Return a descriptor that holds the queue's lock; None where a queue is at work. Raises `OSError`."""
        with self._alone():
            return self._lock()

    @property
    def is_at_work(self) -> bool:
        """Whether a queue is at work here, or is being started."""
        try:
            with self._alone():
                lock = self._lock()
                if lock is not None:
                    os.close(lock)
                return lock is None
        except FileNotFoundError:  # there is no folder
            return False

    def serves(self, submissions: Path) -> bool:
        """Tell whether a queue is at work that looks for batches in *submissions*."""
        return submissions in self.homes() and self.is_at_work

    @contextmanager
    def _alone(self) -> Iterator[None]:
        start = _open(self.path / _START)
        try:
            fcntl.flock(start, fcntl.LOCK_EX)
            yield
        finally:
            os.close(start)

    def _lock(self) -> int | None:
        lock = _open(self.path / _LOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def keep(self) -> int:
        """Return a descriptor that spares the folder from whoever clears /tmp, for as long as it is open."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(BlockingIOError):  # somebody looks at its age in this moment
            fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return folder

    def add_home(self, submissions: Path) -> None:
        """Have the queue look for batches in *submissions*, the folder of a home. Raises `OSError`."""
        name = hashlib.sha256(os.fsencode(submissions)).hexdigest()[:16]
        with suppress(FileExistsError):
            (self._homes / name).symlink_to(submissions)

    def forget_home(self, submissions: Path) -> None:
        """Look there no more."""
        for link in self._homes.iterdir():
            if link.readlink() == submissions:
                link.unlink()

    def homes(self) -> list[Path]:
        """Return the folders of submissions that were added; [] where there is no runtime folder."""
        with suppress(FileNotFoundError):
            return sorted(link.readlink() for link in self._homes.iterdir())
        return []

    @contextmanager
    def noted(self, job: StartedJob) -> Iterator[int]:
        """Note that *job* starts; give a descriptor that locks its file, for its agent. Raises `OSError`.

        After an error in the block, the note is removed.
        """
        lock = _open(self._file(job))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.ftruncate(lock, 0)
            os.write(lock, json.dumps(encode(job)).encode())
            yield lock
        except BaseException:
            self.forget_started(job)
            raise
        finally:
            os.close(lock)

    def forget_started(self, job: StartedJob) -> None:
        """Remove the note of *job*."""
        self._file(job).unlink(missing_ok=True)

    def started(self) -> list[StartedJob]:
        """Return the jobs that were started and whose end the queue has not seen yet."""
        found = []
        with suppress(FileNotFoundError):
            for path in self._jobs.glob("[!.]*"):
                with suppress(OSError, ValueError, ConfigError):
                    found.append(decode(StartedJob, read_json(path)))
        return found

    def lives(self, job: StartedJob) -> bool:
        """Tell whether the agent of *job*, or what it is about to be, has its file locked."""
        try:
            with self._file(job).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def _file(self, job: StartedJob) -> Path:
        return self._jobs / f"{Path(job.batch).stem}.{job.index}"


def free_of(pool: Pool, started: Collection[StartedJob]) -> tuple[int, list[str]]:
    """Return how many cores of *pool*, and which GPUs, the jobs that were *started* leave."""
    taken = {gpu for job in started for gpu in job.gpus}
    return pool.cores - sum(job.cores for job in started), [gpu for gpu in pool.gpus if gpu not in taken]


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE)
