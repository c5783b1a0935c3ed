"""Where an export goes: whole or not at all, and never over something that no export wrote."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from hpcml.errors import ConfigError

MARK = ".hpcml-export.json"  # in every exported folder: which format, and which files are the export's
_FORMAT = 1
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")


@contextmanager
def new_folder(target: Path, form: str) -> Iterator[Path]:
    """Give an empty folder that takes the place of *target* at the end; on any trouble *target* stays as it was.

    An earlier export in the same *form* is replaced. Anything else that is there raises `ConfigError`.
    """
    _refuse_foreign_folder(target, form)
    with _one_line(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        work = _beside(target)
        work.mkdir()
        try:
            yield work
            files = sorted(str(path.relative_to(work)) for path in work.rglob("*") if not path.is_dir())
            mark = {"hpcml_export": _FORMAT, "form": form, "files": files}
            (work / MARK).write_text(json.dumps(mark, indent=1) + "\n", encoding="ascii")
            _refuse_foreign_folder(target, form)  # as it is now: writing may have taken long
            _exchange(work, target)
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def new_file(target: Path, *, is_ours: Callable[[bytes], bool]) -> Iterator[IO[str]]:
    """Give a text file that takes the place of *target* at the end; on any trouble *target* stays as it was.

    A file whose first bytes are not *is_ours* raises `ConfigError`.
    """
    _refuse_foreign_file(target, is_ours)
    with _one_line(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        work = _beside(target)
        try:
            with work.open("x", encoding="utf-8", newline="\n") as file:
                yield file
            _refuse_foreign_file(target, is_ours)
            work.replace(target)
        finally:
            work.unlink(missing_ok=True)


def file_name(text: str, taken: set[str]) -> str:
    """Return *text* as the name of a file that is not yet *taken*, and take it."""
    stem = _UNSAFE.sub("_", text).lstrip(".")[:100] or "_"
    name, count = stem, 1
    while name in taken:
        count += 1
        name = f"{stem}-{count}"
    taken.add(name)
    return name


def _refuse_foreign_folder(target: Path, form: str) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ConfigError(f"{target} is no folder: give another with -o")
    if not target.exists():
        return
    with _one_line(target):
        present = {str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir()} - {MARK}
    try:
        mark = json.loads((target / MARK).read_bytes())
        own, written_as = set(mark["files"]), str(mark["form"])
    except FileNotFoundError:
        own, written_as = set(), form
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{target / MARK} cannot be read: give another folder with -o") from error
    if foreign := sorted(present - own):
        raise ConfigError(f"{target} holds {foreign[0]}, which no export wrote: give another folder with -o")
    if written_as != form:
        raise ConfigError(f"{target} holds an export to {written_as}: give another folder with -o")


def _refuse_foreign_file(target: Path, is_ours: Callable[[bytes], bool]) -> None:
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_file():
        raise ConfigError(f"{target} is no ordinary file: give another with -o")
    with _one_line(target), target.open("rb") as file:
        head = file.read(64)
    if head and not is_ours(head):
        raise ConfigError(f"{target} was not written by this export: give another file with -o")


def _exchange(work: Path, target: Path) -> None:
    if not target.exists():
        work.rename(target)
        return
    aside = _beside(target)
    target.rename(aside)
    try:
        work.rename(target)
    except OSError:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}")


@contextmanager
def _one_line(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or target
        raise ConfigError(f"{where} cannot be written: {error.strerror or error}") from error


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file with its times, making the folders above it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    with suppress(OSError):
        shutil.copystat(source, target)


def is_inside(path: Path, folder: Path) -> bool:
    """Whether *path*, all links followed, is an ordinary file below *folder*."""
    return path.is_file() and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
