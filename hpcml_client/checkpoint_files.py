"""The files of checkpoints: names with step, attempt and rank, which only complete files have."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from typing import NamedTuple

_NAME = re.compile(r"step(\d+)-attempt(\d+)(?:-rank(\d+)of(\d+))?")
_UNFINISHED = re.compile(r"\.step\d+-attempt(\d+)\.rank(\d+)\.(?:new|old).*")  # `.*`: some writers add .npy
_ALONE = (0, 1)  # the rank and the number of ranks where one file holds everything


class _Found(NamedTuple):
    """One complete file or directory of a checkpoint."""

    age: tuple[int, int]  # (attempt, step): the newest is the greatest
    part: tuple[int, int]  # (rank, number of ranks)
    name: str


class CheckpointFiles:
    """The checkpoints in one folder, as one process sees them.

    A file is written under a temporary name, synced, then renamed: whatever has a final name is complete. With
    *sharded* every rank writes its own part, and there is a checkpoint once all parts of a step are there.
    """

    def __init__(
        self,
        directory: str,
        *,
        attempt: int = 0,
        rank: int = 0,
        world_size: int = 1,
        keep: int = 2,
        sharded: bool = False,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep!r} must be at least 1: the newest checkpoint is what a run goes on from")
        self.directory = os.path.abspath(directory)
        self.writes = sharded or rank == 0
        self._attempt = attempt
        self._rank = rank
        self._part = (rank, world_size) if sharded else _ALONE
        self._keep = keep

    def write(self, step: int, write: Callable[[str], object]) -> tuple[str, int]:
        """Call *write* with a path; return the final path and its bytes once it is on the disk.

        Raises what *write* raises.
        """
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        self._remove_unfinished()
        path = self._path(self._name(step, self._attempt))
        unfinished = self._path(self._hidden(step, self._attempt, "new"))
        try:
            write(unfinished)
            size = _put_on_disk(unfinished)
            if os.path.isdir(path) and not os.path.islink(path):
                self._retire(path, (self._attempt, step))  # a directory cannot be replaced in one go
            os.replace(unfinished, path)
        except BaseException:
            with contextlib.suppress(OSError):  # what is left is removed by the next one that is written
                _remove(unfinished)
            raise
        _sync(self.directory)
        return path, size

    def newest(self) -> tuple[str, int] | None:
        """Return path and step of the newest complete checkpoint, or None."""
        whole = self._complete()
        if not whole:
            return None
        attempt, step = max(whole)
        return self._path(self._name(step, attempt)), step

    def prune(self, step: int) -> None:
        """Delete this process's part of all but the newest complete checkpoints; what cannot be deleted stays.

        Checkpoints that this attempt had saved for steps after *step* are deleted, too: it went back to an earlier
        step.
        """
        now_at = (self._attempt, step)
        with contextlib.suppress(OSError):  # tried again after the next one
            whole = sorted(age for age in self._complete() if age <= now_at)
            oldest_kept = whole[-self._keep] if len(whole) >= self._keep else (-1, -1)
            for found in self._list():
                if found.part == self._part and not oldest_kept <= found.age <= now_at:
                    self._retire(self._path(found.name), found.age)

    def clear(self) -> None:
        """Delete all that this process may have written; what cannot be deleted stays."""
        with contextlib.suppress(OSError):  # it only takes up room
            for found in self._list():
                if found.part == self._part:
                    self._retire(self._path(found.name), found.age)
            self._remove_unfinished()

    def _complete(self) -> set[tuple[int, int]]:
        """Return (attempt, step) of the checkpoints of which all parts are there."""
        ranks: dict[tuple[int, int], set[int]] = {}
        for found in self._list():
            if found.part[1] == self._part[1]:
                ranks.setdefault(found.age, set()).add(found.part[0])
        return {age for age, there in ranks.items() if len(there) == self._part[1]}

    def _list(self) -> list[_Found]:
        listed = []
        for name in self._names():
            match = _NAME.fullmatch(name)
            if match:
                step, attempt, rank, world_size = match.groups()
                part = _ALONE if rank is None else (int(rank), int(world_size))
                listed.append(_Found((int(attempt), int(step)), part, name))
        return listed

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.directory)
        except FileNotFoundError:
            return []

    def _name(self, step: int, attempt: int) -> str:
        name = f"step{step}-attempt{attempt}"
        return name if self._part == _ALONE else "{}-rank{}of{}".format(name, *self._part)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _hidden(self, step: int, attempt: int, why: str) -> str:
        return f".step{step}-attempt{attempt}.rank{self._rank}.{why}"

    def _remove_unfinished(self) -> None:
        """Delete what this rank, in this or an earlier attempt, began and did not finish."""
        for name in self._names():
            match = _UNFINISHED.fullmatch(name)
            if match and int(match.group(2)) == self._rank and int(match.group(1)) <= self._attempt:
                _remove(self._path(name))

    def _retire(self, path: str, age: tuple[int, int]) -> None:
        """Rename, then delete a checkpoint, so that it is never seen half deleted."""
        attempt, step = age
        aside = self._path(self._hidden(step, attempt, "old"))
        _remove(aside)
        os.rename(path, aside)
        _remove(aside)


def _put_on_disk(path: str) -> int:
    """Sync the file, or everything in the directory, and return its bytes."""
    if not os.path.lexists(path):
        raise ValueError(
            f"nothing was written to {path}: a checkpoint must go exactly to the path that write() is given"
        )
    if not os.path.isdir(path):
        _sync(path)
        return os.path.getsize(path)
    size = 0
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            file = os.path.join(folder, name)
            if os.path.islink(file):
                continue
            _sync(file)
            size += os.path.getsize(file)
        _sync(folder)
    return size


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
