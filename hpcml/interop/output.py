"""Writing an export to disk: complete or not at all, and never over files that no export wrote.

`hpcml export` and `hpcml report` use it. A folder or file is written beside its place under another name, and renamed
at the end. An earlier export is recognised by the file `MARK` in its folder, or by the first bytes of a file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from hpcml.errors import ConfigError
from hpcml.runs.atomic import draft_of, replacing

MARK = ".hpcml-export.json"  # in every exported folder: which format, and which files are the export's
_FORMAT = 1
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")


@contextmanager
def new_folder(target: Path, form: str) -> Iterator[Path]:
    """Give an empty folder that replaces *target* at the end; after an error *target* is unchanged.

    An earlier export in the same *form* (format) is replaced. Anything else at *target* raises `ConfigError`, and so
    does a folder in which somebody has put a file of their own. Both are looked for again just before the replacement.
    The folders above *target* are made. Every `OSError` in the block becomes a `ConfigError` of one line.
    """
    _refuse_foreign_folder(target, form)
    with _one_line(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        work = draft_of(target)
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
    """Give an open text file that replaces *target* at the end; after an error *target* is unchanged.

    *is_ours* tells from its first 64 bytes whether an existing file is an export; any other raises `ConfigError`. An
    empty file is replaced. The text is UTF-8, with line feeds. Every `OSError` in the block becomes a `ConfigError` of
    one line.
    """
    _refuse_foreign_file(target, is_ours)
    with _one_line(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as work:
            with work.open("x", encoding="utf-8", newline="\n") as file:
                yield file
            _refuse_foreign_file(target, is_ours)


def file_name(text: str, taken: set[str]) -> str:
    """Return *text* as a file name that is not in *taken*, and add it there.

    Letters, digits and ``._+-`` stay, anything else becomes ``_``; it has at most 100 characters before the number that
    makes it unique, and does not begin with a dot.

        >>> taken = set()
        >>> file_name("loss/train", taken), file_name("loss train", taken)
        ('loss_train', 'loss_train-2')
    """
    stem = _UNSAFE.sub("_", text).lstrip(".")[:100] or "_"
    name, count = stem, 1
    while name in taken:
        count += 1
        name = f"{stem}-{count}"
    taken.add(name)
    return name


def _refuse_foreign_folder(target: Path, form: str) -> None:
    """Raise `ConfigError` where *target* is no folder, or has files that are not in the list of its `MARK`."""
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
    # By hand: no file system replaces a folder that holds something in one step that all of them have.
    """Put *work* in the place of *target*; where that fails, what was there is put back."""
    if not target.exists():
        work.rename(target)
        return
    aside = draft_of(target)
    target.rename(aside)
    try:
        work.rename(target)
    except OSError:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _one_line(target: Path) -> Iterator[None]:
    """Turn an `OSError` in the block into a `ConfigError` that names the file and the reason."""
    try:
        yield
    except OSError as error:
        is_draft = error.filename is not None and target.parent in Path(error.filename).parents
        where = target if is_draft else error.filename or target
        raise ConfigError(f"{where} cannot be written: {error.strerror or error}") from error


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file with its times, and create the folders above it; raise `OSError` where it fails.

    Times that cannot be set are no error.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    with suppress(OSError):
        shutil.copystat(source, target)


def is_inside(path: Path, folder: Path) -> bool:
    """Tell whether *path*, with all links followed, is a regular file below *folder*.

    A run may name any path as its artifact; what lies outside its directory is not exported.
    """
    return path.is_file() and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
