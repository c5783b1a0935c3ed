"""The file that records a submission before it is made, and the lock of those who submit what is missing.

``submissions/open/<submission>.<phase>.<place>.<pid>.<start>.json``: its name tells the phase and the process that owns
it, the place as in runs/liveness. Everything about it is one `rename`: it appears whole, it goes on to the next phase,
another process takes it over, and of several that want to, one wins. (Hence no lock of runs/lock: that would be a
second file, which could disagree with this one.)
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from hpcml.codec import decode, encode
from hpcml.errors import ConfigError, HpcmlError, SubmissionError, why_not
from hpcml.paths import Places
from hpcml.runs.atomic import create_text, sync
from hpcml.runs.files import parse_json
from hpcml.runs.layout import home_of
from hpcml.runs.liveness import SUBMISSION_SILENCE_S, Liveness, ProcessIdentity, liveness_of, plain
from hpcml.runs.lock import Lock, Patience, kept_alive, wait_for
from hpcml.runs.private import make_folder, read

_NOBODY = ("-", 0, 0)
_LOCK = "deciding"
_PATIENCE = Patience(poll_s=0.3)


class TakenOverError(SubmissionError):
    """Another process has taken this submission over and finishes it; this one must write nothing more of it."""


class Phase(StrEnum):
    """How far a submission is; it decides whether an interrupted one is undone or finished."""

    PLANNING = "planning"  # its run directories are being written: nothing was sent
    SUBMITTING = "submitting"  # they are complete: any of its batches may have been sent


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBatch:
    """A batch by its token, with the paths of the manifests of its runs, pack by pack; the rest is as in `Batch`."""

    token: str
    packs: list[list[str]]
    at_once: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What is about to be submitted, as it stands in the submission's file.

    *attempt* is the attempt that each run's `submitted` event belongs to (0 for new runs), and *details* are what that
    event gets besides, such as why a run is retried.
    """

    submission: str
    host: str  # where it was typed: runs on that machine can be started nowhere else
    batches: list[RecordedBatch]
    attempt: int = 0
    details: dict[str, str] = field(default_factory=dict)
    run_dirs: list[str] = field(default_factory=list)  # that this submission makes; none for a retry


@dataclass(slots=True)
class OpenSubmission:
    """The file of a submission that this process owns; it must not be used any more after `TakenOverError`."""

    submission: Submission
    path: Path

    def touch(self) -> None:
        """Set the file's time to now, which shows other hosts that this process is at work.

        To be called before each batch. Raises `TakenOverError` where another process has taken the submission over.
        """
        try:
            os.utime(self.path)
        except FileNotFoundError as error:
            raise self._taken_over() from error

    def begin_submitting(self) -> None:
        """Record that all run directories are complete; from now on an interruption is finished, not undone.

        Raises `TakenOverError` where another process has taken the submission over.
        """
        self._rename(replace(_Name.of(self.path), phase=Phase.SUBMITTING))

    def leave_to_sync(self) -> None:
        """Give the submission up, so that the next `hpcml sync` finishes it although this process may live on.

        It raises nothing where another process has it already.
        """
        with suppress(HpcmlError):
            self._rename(_Name.of(self.path).with_owner(_NOBODY))

    def close(self) -> None:
        """Delete the file: all is recorded in the runs' journals. A file that is gone is no error."""
        self.path.unlink(missing_ok=True)

    def _rename(self, name: _Name) -> None:
        before, self.path = self.path, self.path.with_name(str(name))  # in this order: Ctrl-C may come in between
        try:
            before.rename(self.path)
        except FileNotFoundError as error:
            raise self._taken_over() from error

    def _taken_over(self) -> TakenOverError:
        return TakenOverError(
            f"submission {self.submission.submission} was taken over by another hpcml, which finishes it: hpcml status"
        )


@dataclass(frozen=True, slots=True)
class _Name:
    submission: str
    phase: Phase
    place: str
    pid: int
    start: int  # of the process, in clock ticks since boot: tells it from another with a recycled id

    def __str__(self) -> str:
        return f"{self.submission}.{self.phase.value}.{self.place}.{self.pid}.{self.start}.json"

    @classmethod
    def of(cls, path: Path) -> _Name:
        """Return what the name of *path* says; raise `ValueError` for a file that is none of ours."""
        submission, phase, place, pid, start, suffix = path.name.split(".")
        if suffix != "json":
            raise ValueError(path)
        return cls(submission, Phase(phase), place, int(pid), int(start))

    def with_owner(self, owner: tuple[str, int, int]) -> _Name:
        place, pid, start = owner
        return replace(self, place=place, pid=pid, start=start)

    def is_dead(self, path: Path, now: float) -> bool:
        """Tell whether the process that owns the file *path* of this name is dead."""
        if (self.place, self.pid, self.start) == _NOBODY:
            return True
        try:
            touched_at = path.stat().st_mtime
        except FileNotFoundError:
            return False  # finished at this moment
        match liveness_of(ProcessIdentity.at(self.place, self.pid, start_ticks=self.start, created_at=touched_at)):
            case Liveness.ALIVE:
                return False
            case Liveness.DEAD:
                return True
        return now - touched_at > SUBMISSION_SILENCE_S


def open_submission(folder: Path, submission: Submission, phase: Phase) -> OpenSubmission:
    """Write *submission* into a new file in *folder*, whole and synced to the disk, before anything else is done.

    Raises `ConfigError` where it cannot be written: then nothing can be submitted from here.
    """
    path = folder / str(_Name(submission.submission, phase, *_myself()))
    try:
        make_folder(folder, parents=True)
        create_text(path, json.dumps(encode(submission)), durable=True)
        sync(folder)
    except OSError as error:
        raise _nowhere(error, folder) from error
    return OpenSubmission(submission=submission, path=path)


def interrupted(folder: Path, *, now: float) -> list[Path]:
    """Return the files in *folder* whose process is dead, oldest submission first.

    A process that cannot be seen from here (another host, another PID namespace) counts as dead once its file was not
    touched for an hour. *now* is unix seconds.
    """
    return sorted(path for path, name in _files(folder) if name.is_dead(path, now))


def manifests_under_way(folder: Path) -> set[str]:
    """Return the paths of the manifests that open submissions in *folder*, of living processes too, are about."""
    while True:
        try:
            found = [_read(path) for path, _ in _files(folder)]
        except FileNotFoundError:
            continue  # it got another owner, or was finished, at this moment
        return {source for submission in found for each in submission.batches for pack in each.packs for source in pack}


def take_over(path: Path) -> tuple[OpenSubmission, Phase, float] | None:
    """Make the dead process's submission in *path* ours; return it with its phase and its owner's last sign of life.

    That is the file's modification time, in unix seconds. None where another process was quicker, or the submission has
    been finished meanwhile. Raises `HpcmlError` where the file cannot be read, and `NotPrivateError` where another user
    could have written it.
    """
    name = _Name.of(path)
    own = path.with_name(str(name.with_owner(_myself())))
    try:
        path.rename(own)  # the modification time stays
        last_seen = own.stat().st_mtime
        return OpenSubmission(submission=_read(own), path=own), name.phase, last_seen
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HpcmlError(why_not(error, path)) from error


def this_host() -> str:
    """Return this machine's name as a submission's file has it: what a file name should not have is an underscore."""
    return plain(socket.gethostname())


@contextmanager
def deciding_alone(places: Places, tell: Callable[[str], None], *, lock: str = _LOCK) -> Iterator[None]:
    """Hold the lock of this home within the block, for ``hpcml run --missing`` and retries; *lock* is that of a study.

    Two that looked at the same moment for what is not under way would both see nothing, and both submit everything. The
    lock is held until what was submitted is in the journals. *tell* gets a line where another process has to be waited
    for; one that died with the lock is not. Raises `ConfigError` where the home cannot be written.
    """
    with kept_alive(_lock(places, tell, lock)):
        yield


def _lock(places: Places, tell: Callable[[str], None], name: str) -> Lock:
    is_told = False
    try:
        make_folder(places.submission_locks, parents=True)
        for found in wait_for(places.submission_locks, name, patience=_PATIENCE):
            if isinstance(found, Lock):
                return found
            if not is_told:
                tell(f"waiting for {found}, which is submitting runs of this home")
                is_told = True
    except OSError as error:
        raise _nowhere(error, places.submission_locks) from error
    raise AssertionError("the lock is waited for until it is there")


def _nowhere(error: OSError, folder: Path) -> ConfigError:
    why = error.strerror or error  # the file that it names is a hidden one of ours
    return ConfigError(f"{folder}: {why}: nothing can be submitted (set HPCML_HOME to another place)")


def _read(path: Path) -> Submission:
    try:
        submission: Submission = decode(Submission, parse_json(read(path, top=home_of(path))))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, ConfigError) as error:
        raise HpcmlError(f"{path} is no submission that can be read: {error}") from error
    return submission


def _files(folder: Path) -> Iterator[tuple[Path, _Name]]:
    for path in folder.glob("*.json"):
        with suppress(ValueError):
            name = _Name.of(path)
            if not path.is_symlink():  # one that leads nowhere would be read again and again
                yield path, name


def _myself() -> tuple[str, int, int]:
    process = ProcessIdentity.of_this_process()
    return process.place, process.pid, process.start_ticks or 0
