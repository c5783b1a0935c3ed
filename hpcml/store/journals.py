"""The files of a run's journals, and of its telemetry: their sizes, and their headers."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.runs.journal import Header, parse_chunk, read_piece

_HEADER_WITHIN = 4 << 20  # bytes, in which a header is looked for if the first line is damaged


def sizes_in(folder: str) -> dict[str, int]:
    """Return the bytes of each journal in *folder*, sorted by name; {} where the folder is absent.

    Files of other endings, and what is no regular file, are passed over. Raises `HpcmlError` where the folder is there
    and cannot be read. *folder* is a text, since making a `Path` of each entry would take most of the time.
    """
    return {name: status.st_size for name, status in files_in(folder).items()}


def files_in(folder: str) -> dict[str, os.stat_result]:
    """Return the status of each file that `sizes_in` returns."""
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
    beginning = read_piece(path, 0, 1)
    first = _header_in(beginning.data.partition(b"\n")[0]) if beginning.at == 0 else None
    if first is not None and first.run == uid:
        return first
    for line in read_piece(path, 0, _HEADER_WITHIN).data.split(b"\n")[:-1]:
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
