"""Files that other processes see whole or not at all, however their writer ends.

A file is written under a draft name in the same folder, and then moved in one step: over an existing file (`replacing`,
`write_text`), or to a name that must be free (`creating`, `create_text`), by `rename` or `link`. After any error the
old content is still there, and the draft is removed. A killed writer leaves its draft behind, for `is_forgotten`.

A text is its owner's only (0600) unless it is said to be for others; a draft that a block writes gets the permissions
that the block gives it, as the file itself would. With *durable* the content is on the disk (fsync) before the file
appears, so that a crash of the machine leaves the old or the new file, never an empty one.
`have_on_disk` does that for many files, and for the entry of a new file in its folder. Without it, a crash of the
machine (not of the program) may lose what was written last.

Some modules do this by hand and say there why: they move a folder, their drafts are cleaned up by other rules, or
something must be checked again just before the last step.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from hpcml.runs.private import FILE, open_file

_FORGOTTEN_S = 24 * 3600.0  # after which a draft is nobody's any more
_SYNCS_AT_ONCE = 16  # a file system writes several in one go
_LONGEST = 100  # characters of the target's name in that of its draft: file systems take 255 in all
_DRAFT = re.compile(r"\..+\.[0-9a-f]{16}\.draft")


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Give a draft path beside *path*; the file that the block writes there replaces *path* at the end.

    Raises `OSError` where that fails; then, and after any exception in the block, *path* is unchanged.

        with replacing(path, durable=True) as draft:
            draft.write_bytes(content)
    """
    draft = draft_of(path)
    try:
        yield draft
        if durable:
            sync(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def creating(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Give a draft path beside *path*; the file that the block writes there appears as *path* at the end.

    Raises `FileExistsError` where *path* exists by then: of several processes that create it, exactly one succeeds.
    """
    draft = draft_of(path)
    try:
        yield draft
        if durable:
            sync(draft)
        appear(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, durable: bool = False, permissions: int = FILE) -> None:
    """Replace the content of *path* by *text* (UTF-8), or create it, so that readers see the old or the new content.

    *permissions* are those of the new file, before the umask.
    """
    with replacing(path, durable=durable) as draft:
        _write(draft, text, permissions)


def create_text(path: Path, text: str, *, durable: bool = False, permissions: int = FILE) -> None:
    """Create the file *path* with *text* (UTF-8); raise `FileExistsError` where it exists."""
    with creating(path, durable=durable) as draft:
        _write(draft, text, permissions)


def _write(draft: Path, text: str, permissions: int) -> None:
    with open_file(draft, "x", permissions=permissions, encoding="utf-8") as file:
        file.write(text)


def appear(draft: Path, target: Path) -> None:
    """Give the finished file *draft* the name *target* as well; raise `FileExistsError` where that name is taken."""
    try:
        os.link(draft, target)  # unlike a rename, it never replaces what somebody else put there
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            raise
        draft.rename(target)


def draft_of(path: Path) -> Path:
    """Return an unused path beside *path* for a draft."""
    return path.with_name(f".{path.name[:_LONGEST]}.{os.urandom(8).hex()}.draft")


def is_forgotten(draft: Path) -> bool:
    """Tell whether *draft*, a path from `draft_of`, is a day old: its process has died."""
    try:
        return _DRAFT.fullmatch(draft.name) is not None and time.time() - draft.stat().st_mtime > _FORGOTTEN_S
    except OSError:
        return False


def forgotten_drafts(folder: str, names: Iterable[str]) -> Iterator[Path]:
    """Yield the drafts among *names*, entries of *folder*, that `is_forgotten` says a dead process left."""
    for name in names:
        if name.startswith(".") and _DRAFT.fullmatch(name):
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink() and is_forgotten(path):
                yield path


def have_on_disk(paths: Iterable[Path]) -> None:
    """Flush files, and the entries of folders, to the disk (fsync), several at a time.

    Best all at once, when everything is written: the file system then writes out most of them with the first few.
    Raises `OSError` for one that could not be flushed.
    """
    with ThreadPoolExecutor(_SYNCS_AT_ONCE) as threads:
        for _ in threads.map(sync, paths):
            pass


def sync(path: Path) -> None:
    """Flush one file, or the entries of one folder, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
