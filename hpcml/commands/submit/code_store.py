"""Copies of code below ``HPCML_HOME/code``, each named by its content: equal trees are kept once and never change."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import ConfigError, why_not
from hpcml.runs.atomic import have_on_disk
from hpcml.runs.private import FOLDER, check, make_folder, open_file

_DIGITS = 16
_BLOCK = 1 << 20
_FRESH = ".new-"  # before the name of a copy that is being made
_ABANDONED_S = 86_400  # nobody copies for a day: what is left of a copy then was interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A regular file to be copied.

    `path` is relative to the copy's root, with slashes; `source` is where the file is now; `size` is in bytes.
    """

    path: str  # relative, with slashes
    source: Path
    is_executable: bool
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A symbolic link to be made: `path` is relative to the copy's root, `target` the text of the link."""

    path: str
    target: str


def keep(root: Path, files: Sequence[File], links: Sequence[Link] = ()) -> Path:
    """Return the folder in *root* that holds exactly these files and links; it is made where there is none.

    It is named by the first 16 hexadecimal digits of a SHA-256 over all paths, modes and contents. Files are read-only
    in it; folders are not, for a program may leave things where it runs. The files are on the disk when this returns.
    Raises `ConfigError` where a file cannot be read or the copy cannot be written; nothing half-written stays then.
    """
    try:
        kept = root / _name([(file, _digest_of(file.source)) for file in files], links)
        if is_there(kept):
            return kept
        make_folder(root, parents=True)
        clear_abandoned(root)
        fresh = Path(tempfile.mkdtemp(prefix=_FRESH, dir=root))
        try:
            copied = [(file, _copy(file, fresh / file.path)) for file in files]
            for link in links:
                make_folder((fresh / link.path).parent, parents=True)
                (fresh / link.path).symlink_to(link.target)
            have_on_disk(fresh / file.path for file in files)
            return put(fresh, root / _name(copied, links))  # as copied: a file may have changed since the first look
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        place = Path(str(error.filename2 or error.filename or root))
        is_ours = place.is_relative_to(root) or root.is_relative_to(place)
        remedy = "choose another HPCML_HOME" if is_ours else "or set schedule.snapshot=none"
        raise ConfigError(f"the code cannot be kept: {why_not(error, root)} ({remedy})") from error


def clear_abandoned(root: Path) -> int:
    """Remove the folders that interrupted copies left in *root*, once they are a day old; return how many."""
    count = 0
    for old in root.glob(f"{_FRESH}*"):
        with suppress(FileNotFoundError):  # another process has finished it meanwhile
            if time.time() - old.lstat().st_mtime > _ABANDONED_S:
                shutil.rmtree(old, ignore_errors=True)
                count += not old.exists()
    return count


def put(fresh: Path, kept: Path) -> Path:
    """Rename *fresh* to *kept* and return *kept*; where another process has made the same copy first, that one stays.

    Raises `OSError` where the rename fails for another reason.
    """
    fresh.chmod(FOLDER)
    try:
        fresh.rename(kept)  # a folder: one that holds something is never replaced by that
    except OSError:
        if not is_there(kept):
            raise
    return kept


def is_there(kept: Path) -> bool:
    """Tell whether the copy exists, and set its modification time to now.

    The time shows `hpcml rm` that a submission wants the copy: it removes only those that were not wanted for a day.
    Raises `NotPrivateError` for one that another user could have put there.
    """
    if not os.path.lexists(kept):
        return False
    check(kept, top=kept.parent)
    with suppress(OSError):  # removed at this moment: the agent says so
        os.utime(kept)
    return kept.is_dir()


def _name(entries: Sequence[tuple[File, bytes]], links: Sequence[Link]) -> str:
    whole = hashlib.sha256()
    lines = [(file.path, b"x" if file.is_executable else b"f", digest) for file, digest in entries]
    lines += [(link.path, b"l", os.fsencode(link.target)) for link in links]
    for path, kind, content in sorted(lines):
        for part in (os.fsencode(path), kind, content):
            whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()[:_DIGITS]


def _digest_of(source: Path) -> bytes:
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _copy(file: File, target: Path) -> bytes:
    make_folder(target.parent, parents=True)
    content = hashlib.sha256()
    with file.source.open("rb") as source, open_file(target, "xb") as copy:
        while block := source.read(_BLOCK):
            content.update(block)
            copy.write(block)
    target.chmod(0o500 if file.is_executable else 0o400)
    return content.digest()
