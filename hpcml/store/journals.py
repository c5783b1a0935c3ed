"""The files of a run's journals, and of its telemetry: their sizes, their headers, and whether one was replaced."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.runs.journal import Header, parse_chunk, read_piece
from hpcml.store.parse import storable

_HEADER_WITHIN = 4 << 20  # bytes, in which a header is looked for if the first line is damaged


def sizes_in(folder: str) -> dict[str, int]:
    """Return the bytes of each journal in *folder*, sorted by name; {} where the folder is absent.

    Files of other endings, and what is no regular file, are passed over. Raises `HpcmlError` where the folder is there
    and cannot be read. *folder* is a text, since making a `Path` of each entry would take most of the time.
    """
    try:
        with os.scandir(folder) as entries:
            found = {entry.name: _size_of(entry) for entry in entries if entry.name.endswith(".jsonl")}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise HpcmlError(f"{folder} cannot be read: {error.strerror}") from error
    return {name: size for name, size in sorted(found.items()) if size is not None}


def _size_of(entry: os.DirEntry[str]) -> int | None:
    """Return the bytes of a regular file; None of anything else, such as a link to nothing."""
    try:
        status = entry.stat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def is_replaced(folder: Path, run: str, read: Mapping[str, tuple[int, str]], sizes: Mapping[str, int]) -> bool:
    """Whether a file of *read* (file -> bytes read and journal id) is gone, shorter, or another of the same name.

    What was read of the run is then worth nothing, and the caller reads all of its files again. A file of unchanged
    size is taken for unchanged and not opened. *run* is the uid of the run, *sizes* comes from `sizes_in`.
    """
    for file, (offset, uid) in read.items():
        size = sizes.get(file, -1)
        if size < offset:
            return True
        if size > offset:
            header = find_header(folder / file, run)
            if isinstance(header, str) or storable(header.journal) != uid:
                return True
    return False


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
