"""The file that records a submission before it is made; its name tells the phase and the process that owns it.

``submissions/open/<submission>.<phase>.<place>.<pid>.<start>.json``, the place as in runs/liveness. Everything about it
is one `rename`: it appears whole, it goes on to the next phase, another process takes it over, and of several that want
to, one wins. (Hence no lock of runs/lock: that would be a second file, which could disagree with this one.)
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from hpcml.codec import decode, encode
from hpcml.errors import ConfigError, HpcmlError, SubmissionError
from hpcml.runs.atomic import create_text, sync
from hpcml.runs.files import parse_json
from hpcml.runs.layout import home_of
from hpcml.runs.liveness import Liveness, ProcessIdentity, liveness_of, plain
from hpcml.runs.private import make_folder, read

_FORMAT = 1
_NOBODY = ("-", 0, 0)
_SILENCE_S = 3600.0  # of a process that cannot be seen, on another host for example: each batch touches the file


class TakenOverError(SubmissionError):
    """Another process has taken this submission over and finishes it; this one must write nothing more of it."""


class Phase(StrEnum):
    """How far a submission is; it decides whether an interrupted one is undone or finished."""

    PLANNING = "planning"  # its run directories are being written: nothing was sent
    SUBMITTING = "submitting"  # they are complete: any of its batches may have been sent


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """A batch by its token, and the paths of the manifests of its runs, pack by pack; the rest is as in `Batch`."""

    token: str
    packs: list[list[str]]
    at_once: int | None = None
    after: str | None = None  # the token of the batch that has to end before


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What is about to be submitted, as it stands in the submission's file.

    *attempt* is the attempt that each run's `submitted` event belongs to (0 for new runs), and *said* are details that
    the event gets, such as why a run is retried.
    """

    submission: str
    host: str  # where it was typed: runs on that machine can be started nowhere else
    batches: list[PlannedBatch]
    attempt: int = 0
    said: dict[str, str] = field(default_factory=dict)
    run_dirs: list[str] = field(default_factory=list)  # that this submission makes; none for a retry


@dataclass(slots=True)
class OpenIntent:
    """The file of a submission that this process owns; it must not be used any more after `TakenOverError`."""

    intent: Intent
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
        name = _Name.parse(self.path)
        assert name is not None
        self._rename(name.with_phase(Phase.SUBMITTING))

    def leave_to_sync(self) -> None:
        """Give the submission up, so that the next `hpcml sync` finishes it although this process may live on.

        It raises nothing where another process has it already.
        """
        name = _Name.parse(self.path)
        assert name is not None
        with suppress(HpcmlError):  # somebody has it already
            self._rename(name.with_owner(_NOBODY))

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
            f"submission {self.intent.submission} was taken over by another hpcml, which finishes it: hpcml status"
        )


@dataclass(frozen=True, slots=True)
class _Name:
    submission: str
    phase: Phase
    place: str  # of older versions: the host alone
    pid: int
    start: int  # of the process, in hundredths of a second: tells it from another with a recycled id

    def __str__(self) -> str:
        return f"{self.submission}.{self.phase.value}.{self.place}.{self.pid}.{self.start}.json"

    @classmethod
    def parse(cls, path: Path) -> _Name | None:
        """Return what the name of *path* says; None for a file that is none of ours."""
        match path.name.split("."):
            case [submission, phase, place, pid, start, "json"] if (
                phase in set(map(str, Phase)) and (pid + start).isdigit()
            ):
                return cls(submission, Phase(phase), place, int(pid), int(start))
        return None

    def with_phase(self, phase: Phase) -> _Name:
        return _Name(self.submission, phase, self.place, self.pid, self.start)

    def with_owner(self, owner: tuple[str, int, int]) -> _Name:
        return _Name(self.submission, self.phase, *owner)

    @property
    def is_nobodys(self) -> bool:
        return (self.place, self.pid, self.start) == _NOBODY

    @property
    def owner(self) -> ProcessIdentity:
        return ProcessIdentity.at(self.place, self.pid, created_at=self.start / 100)


def open_intent(folder: Path, intent: Intent, phase: Phase) -> OpenIntent:
    """Write *intent* into a new file in *folder*, whole and synced to the disk, before anything else is done.

    Raises `ConfigError` where it cannot be written: then nothing can be submitted from here.
    """
    path = folder / str(_Name(intent.submission, phase, *_myself()))
    try:
        make_folder(folder, parents=True)
        create_text(path, json.dumps({"format": _FORMAT, **encode(intent)}), durable=True)
        sync(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder}: {error.strerror or error}: nothing can be submitted (set HPCML_HOME to another place)"
        ) from error
    return OpenIntent(intent=intent, path=path)


def interrupted(folder: Path, *, now: float) -> list[Path]:
    """Return the files in *folder* whose process is dead, oldest submission first.

    A process that cannot be seen from here (another host, another PID namespace) counts as dead once its file was not
    touched for an hour. *now* is unix seconds.
    """
    return sorted(path for path, name in _files(folder) if _is_dead(path, name, now))


def manifests_under_way(folder: Path) -> set[str]:
    """Return the paths of the manifests that open submissions in *folder*, of living processes too, are about."""
    while True:
        try:
            said = [_decode(path, parse_json(read(path, top=home_of(path)))) for path, _ in _files(folder)]
        except FileNotFoundError:
            continue  # it got another owner, or was finished, at this moment
        except (OSError, ValueError) as error:
            raise HpcmlError(f"a file in {folder} cannot be read: {error}") from error
        batches = [batch for intent in said for batch in intent.batches]
        return {source for batch in batches for pack in batch.packs for source in pack}


def take_over(path: Path) -> tuple[OpenIntent, Phase, float] | None:
    """Make the dead process's submission in *path* ours; return it with its phase and its owner's last sign of life.

    That is the file's modification time, in unix seconds. None where another process was quicker, or the submission has
    been finished meanwhile. Raises `HpcmlError` where the file cannot be read or another hpcml's format is in it, and
    `NotPrivateError` where another user could have written it.
    """
    name = _Name.parse(path)
    assert name is not None
    ours = path.with_name(str(name.with_owner(_myself())))
    try:
        path.rename(ours)  # the modification time stays
        last_seen = ours.stat().st_mtime
        raw = parse_json(read(ours, top=home_of(ours)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise HpcmlError(f"{path} cannot be read: {error}") from error
    return OpenIntent(intent=_decode(ours, raw), path=ours), name.phase, last_seen


def this_host() -> str:
    """Return this machine's name as an intent's file has it: what a file name should not have is an underscore."""
    return plain(socket.gethostname())


def _decode(path: Path, raw: object) -> Intent:
    if not isinstance(raw, dict):
        raise HpcmlError(f"{path} is no submission")
    if raw.get("format") != _FORMAT:
        raise HpcmlError(f"{path} has format {raw.get('format')!r}; this hpcml reads format {_FORMAT}")
    try:
        intent: Intent = decode(Intent, {name: value for name, value in raw.items() if name != "format"})
    except ConfigError as error:
        raise HpcmlError(f"{path} is damaged: {error}") from error
    return intent


def _files(folder: Path) -> Iterator[tuple[Path, _Name]]:
    for path in folder.glob("*.json"):
        name = _Name.parse(path)
        # A link is none of ours: one that leads nowhere would be read again and again
        if name is not None and not path.is_symlink():
            yield path, name


def _is_dead(path: Path, name: _Name, now: float) -> bool:
    if name.is_nobodys:
        return True
    match liveness_of(name.owner):
        case Liveness.ALIVE:
            return False
        case Liveness.DEAD:
            return True
    try:
        return now - path.stat().st_mtime > _SILENCE_S
    except FileNotFoundError:
        return False  # finished at this moment


def _myself() -> tuple[str, int, int]:
    process = ProcessIdentity.of_this_process()
    return process.place, process.pid, round((process.created_at or 0) * 100)
