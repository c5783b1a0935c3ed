"""A submission written down before it is made: one file, whose name says how far it is and whose it is.

``submissions/open/<submission>.<phase>.<host>.<pid>.<start>.json``. Everything about it is one `rename`: it appears
whole, it goes on to the next phase, another process takes it over, and of several that want to, one wins.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from hpcml.codec import decode, encode
from hpcml.errors import ConfigError, HpcmlError, SubmissionError

_FORMAT = 1
_UNSAFE = re.compile(r"[^A-Za-z0-9-]")
_NOBODY = ("-", 0, 0)
_SYNCS_AT_ONCE = 16  # a file system writes several in one go
_OTHER_HOSTS_SILENCE_S = 3600.0  # processes of another host cannot be seen: each batch touches the file


class TakenOverError(SubmissionError):
    """Another process finishes this submission: it is no longer ours to touch."""


class Phase(StrEnum):
    """How far a submission is."""

    PLANNING = "planning"  # its run directories are being written: nothing was sent
    SUBMITTING = "submitting"  # they are complete: any of its batches may have been sent


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """A batch by its token, and the manifests of its runs."""

    token: str
    packs: list[list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What is about to be submitted. *attempt* and *said* are what each run's `submitted` event shall say."""

    submission: str
    host: str  # where it was typed: runs on that machine can be started nowhere else
    batches: list[PlannedBatch]
    attempt: int = 0
    said: dict[str, str] = field(default_factory=dict)
    run_dirs: list[str] = field(default_factory=list)  # that this submission makes; none for a retry


@dataclass(slots=True)
class OpenIntent:
    """An intent that is this process's to carry out."""

    intent: Intent
    path: Path

    def touch(self) -> None:
        """Show that somebody is at work; raises `TakenOverError` where another has taken it over."""
        try:
            os.utime(self.path)
        except FileNotFoundError as error:
            raise self._taken_over() from error

    def begin_submitting(self) -> None:
        """Say that all run directories are complete; from now on an interruption is finished, not undone."""
        name = _Name.parse(self.path)
        assert name is not None
        self._rename(name.with_phase(Phase.SUBMITTING))

    def leave_to_sync(self) -> None:
        """Let go of it: whoever syncs next finishes it, though this process may live on."""
        name = _Name.parse(self.path)
        assert name is not None
        with suppress(HpcmlError):  # somebody has it already
            self._rename(name.with_owner(_NOBODY))

    def close(self) -> None:
        """Forget it: all is recorded."""
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
    host: str
    pid: int
    start: int  # of the process, in hundredths of a second: tells it from another with a recycled id

    def __str__(self) -> str:
        return f"{self.submission}.{self.phase.value}.{self.host}.{self.pid}.{self.start}.json"

    @classmethod
    def parse(cls, path: Path) -> _Name | None:
        """Return what the name of *path* says; None for a file that is none of ours."""
        match path.name.split("."):
            case [submission, phase, host, pid, start, "json"] if (
                phase in set(map(str, Phase)) and (pid + start).isdigit()
            ):
                return cls(submission, Phase(phase), host, int(pid), int(start))
        return None

    def with_phase(self, phase: Phase) -> _Name:
        return _Name(self.submission, phase, self.host, self.pid, self.start)

    def with_owner(self, owner: tuple[str, int, int]) -> _Name:
        return _Name(self.submission, self.phase, *owner)

    @property
    def is_nobodys(self) -> bool:
        return (self.host, self.pid, self.start) == _NOBODY


def open_intent(folder: Path, intent: Intent, phase: Phase) -> OpenIntent:
    """Write *intent* down in *folder*, on the disk and whole, before anything else is done."""
    path = folder / str(_Name(intent.submission, phase, *_myself()))
    fresh = path.with_suffix(".new")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with fresh.open("x", encoding="utf-8") as file:
            json.dump({"format": _FORMAT, **encode(intent)}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
        _sync(folder)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder}: {error.strerror}: nothing can be submitted (set HPCML_HOME to another place)"
        ) from error
    return OpenIntent(intent=intent, path=path)


def interrupted(folder: Path, *, now: float) -> list[Path]:
    """Return the files in *folder* whose process is dead, or so far away and silent that it must be."""
    return sorted(path for path, name in _files(folder) if _is_dead(path, name, now))


def take_over(path: Path) -> tuple[OpenIntent, Phase, float] | None:
    """Make the dead process's submission in *path* ours; with its phase, and when its owner last showed itself.

    None where another process was quicker, or the submission has been finished meanwhile.
    """
    name = _Name.parse(path)
    assert name is not None
    ours = path.with_name(str(name.with_owner(_myself())))
    try:
        path.rename(ours)  # the modification time stays
        last_seen = ours.stat().st_mtime
        raw = json.loads(ours.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise HpcmlError(f"{path} cannot be read: {error}") from error
    return OpenIntent(intent=_decode(ours, raw), path=ours), name.phase, last_seen


def have_on_disk(paths: Iterable[Path]) -> None:
    """Have files, and the entries of folders, outlive a crash of this machine; several at a time, which costs less."""
    with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
        for _ in pool.map(_sync, paths):
            pass


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def this_host() -> str:
    """Return this machine's name as an intent's file has it."""
    return _UNSAFE.sub("_", socket.gethostname())


def _decode(path: Path, raw: Mapping[str, Any]) -> Intent:
    if raw.get("format") != _FORMAT:
        raise HpcmlError(f"{path} has format {raw.get('format')!r}; this hpcml reads format {_FORMAT}")
    intent: Intent = decode(Intent, {name: value for name, value in raw.items() if name != "format"})
    return intent


def _files(folder: Path) -> Iterator[tuple[Path, _Name]]:
    for path in folder.glob("*.json"):
        name = _Name.parse(path)
        if name is not None:
            yield path, name


def _is_dead(path: Path, name: _Name, now: float) -> bool:
    if name.is_nobodys:
        return True
    if name.host == this_host():
        return not _lives(name.pid, name.start)
    try:
        return now - path.stat().st_mtime > _OTHER_HOSTS_SILENCE_S
    except FileNotFoundError:
        return False  # finished at this moment


def _lives(pid: int, start: int) -> bool:
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - start / 100) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _myself() -> tuple[str, int, int]:
    process = psutil.Process()
    return this_host(), process.pid, round(process.create_time() * 100)
