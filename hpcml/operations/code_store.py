"""Copies of code below ``HPCML_HOME/code``, each named by its content: equal trees are kept once and never change."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import ConfigError
from hpcml.operations.intent import have_on_disk

_DIGITS = 16
_BLOCK = 1 << 20
_ABANDONED_S = 86_400  # nobody copies for a day: what is left of a copy then was interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A regular file: where it comes to lie, and where it is now."""

    path: str  # relative, with slashes
    source: Path
    is_executable: bool
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A symbolic link: where it comes to lie, and what it says."""

    path: str
    target: str


def keep(root: Path, files: Sequence[File], links: Sequence[Link] = ()) -> Path:
    """Return the folder in *root* that holds exactly these; it is made if there is none.

    Files are read-only in it; folders are not, for a program may leave things where it runs.
    """
    try:
        entries = [(file, _digest_of(file.source)) for file in files]
        kept = root / _name(entries, links)
        if is_there(kept):
            return kept
        with new_folder(root) as fresh:
            copied = [(file, _copy(file, fresh / file.path)) for file in files]
            for link in links:
                (fresh / link.path).parent.mkdir(parents=True, exist_ok=True)
                (fresh / link.path).symlink_to(link.target)
            have_on_disk(fresh / file.path for file in files)
            return put(fresh, root / _name(copied, links))  # as copied: a file may have changed since the first look
    except OSError as error:
        raise ConfigError(
            f"the code cannot be kept: {error.filename}: {error.strerror} (or set schedule.snapshot=none)"
        ) from error


@contextmanager
def new_folder(root: Path) -> Iterator[Path]:
    """Yield a new folder in *root*, to be filled and `put` in its place; else it is removed."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in root.glob(".new-*"):
        with suppress(FileNotFoundError):  # another process has finished it meanwhile
            if time.time() - old.lstat().st_mtime > _ABANDONED_S:
                shutil.rmtree(old, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=root))
    try:
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def put(fresh: Path, kept: Path) -> Path:
    """Give *fresh* its name, unless another process was quicker with the same; return where it lies."""
    fresh.chmod(0o755)
    try:
        fresh.rename(kept)
    except OSError:
        if not is_there(kept):
            raise
    return kept


def is_there(kept: Path) -> bool:
    """Tell whether the copy exists, and show by its time that somebody wants it: `hpcml rm` then leaves it."""
    try:
        os.utime(kept)
    except OSError:
        return kept.is_dir()  # another's, perhaps
    return True


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
    target.parent.mkdir(parents=True, exist_ok=True)
    content = hashlib.sha256()
    with file.source.open("rb") as source, target.open("xb") as copy:
        while block := source.read(_BLOCK):
            content.update(block)
            copy.write(block)
    target.chmod(0o555 if file.is_executable else 0o444)
    return content.digest()
