"""A run directory as it is seen without opening a file in it, and the headers of its journals and telemetry."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.runs.journal import Header, parse_chunk, read_piece

MANIFEST, JOURNALS, TELEMETRY = "run.json", "journal/", "telemetry/"
_QUIET_S = 3600.0  # after which nobody writes any more in a run that has ended
_HEADER_WITHIN = 4 << 20  # bytes, in which a header is looked for if the first line is damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A run directory as it is seen without opening a file in it."""

    stamp: str  # changes whenever run.json does: its size and time
    sizes: Mapping[str, int]  # of each journal and file of telemetry, by name below the directory
    journals_ns: int  # when a journal was made or removed last
    newest_ns: int  # when a file was written last

    @classmethod
    def of(cls, path: str) -> Seen:
        """Look at the run in *path*; raise `HpcmlError` where run.json or a folder is out of reach."""
        try:
            status = os.stat(f"{path}/{MANIFEST}")  # noqa: PTH116 - a `Path` of each run takes most of the time
        except OSError as error:
            why = "is gone" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            raise HpcmlError(f"{path}/{MANIFEST} {why}") from error
        journals_ns = changed_ns(path)
        files = {
            f"{folder}{name}": found
            for folder in (JOURNALS, TELEMETRY)
            for name, found in files_in(f"{path}/{folder}").items()
        }
        return cls(
            stamp=f"{status.st_size}-{status.st_mtime_ns}",
            sizes={name: found.st_size for name, found in files.items()},
            journals_ns=journals_ns,
            newest_ns=max(status.st_mtime_ns, *(found.st_mtime_ns for found in files.values()), journals_ns),
        )

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was written for an hour."""
        return time.time() - self.newest_ns / 1e9 > _QUIET_S


def changed_ns(path: str) -> int:
    """Return when a journal was made or removed last in the run in *path*; 0 where it has none."""
    try:
        return os.stat(f"{path}/journal").st_mtime_ns  # noqa: PTH116 - as above
    except OSError:
        return 0


def files_in(folder: str) -> dict[str, os.stat_result]:
    """Return the status of each journal in *folder*, sorted by name; {} where the folder is absent.

    Files of other endings, and what is no regular file, are passed over. Raises `HpcmlError` where the folder is there
    and cannot be read. *folder* is a text, since making a `Path` of each entry would take most of the time.
    """
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, _status_of(entry)) for entry in entries if entry.name.endswith(".jsonl")]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise HpcmlError(f"{folder} cannot be read: {error.strerror}") from error
    return {name: status for name, status in sorted(found, key=lambda pair: pair[0]) if status is not None}


def _status_of(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of a regular file; None of anything else, such as a link to nothing."""
    try:
        status = entry.stat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def find_header(path: Path | str, uid: str) -> Header | str:
    """Return the header of the journal *path* of run *uid*, or one line about what is wrong.

    The header is the first line; where that is damaged, the first copy of it that the writer repeated further on. A
    file without a usable header is left out rather than guessed at. Looked at are the first 4 MiB. Raises `HpcmlError`
    where the file cannot be read. docs/journal.md describes the format.
    """
    first = _header_in(read_piece(path, 0, 1).partition(b"\n")[0])
    if first is not None and first.run == uid:
        return first
    for line in read_piece(path, 0, _HEADER_WITHIN).split(b"\n")[:-1]:
        later = _header_in(line) if b'"hpcml"' in line else None
        if later is not None and later.run == uid:
            return later
    problem = (
        "begins with no header that this hpcml can read" if first is None else f"belongs to run {_shown(first.run)}"
    )
    return f"{path} {problem}: left out"


def _shown(run: str) -> str:
    return run[:100] if run.isprintable() else repr(run[:100])


def _header_in(line: bytes) -> Header | None:
    return parse_chunk(line + b"\n", offset=0).header
