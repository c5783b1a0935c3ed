"""The files of a run's journals and samples: how long they are, whose they are, and a stretch of one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.journal import Header, parse_chunk
from hpcml.store.intake import is_usable, storable

_HEADER_WITHIN = 4 << 20  # bytes, in which a header is looked for if the first line is damaged


def sizes_in(folder: str) -> dict[str, int]:
    """Return the size of each journal in *folder*, in the order of their names; none where it is not there."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat().st_size) for entry in entries if entry.name.endswith(".jsonl")]
        return dict(sorted(found))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise HpcmlError(f"{folder} cannot be read: {error.strerror}") from error


def is_replaced(folder: Path, run: str, read: Mapping[str, tuple[int, str]], sizes: Mapping[str, int]) -> bool:
    """Whether a file that was *read* (how far, and its journal's id) is gone, shorter, or another of the same name."""
    for file, (offset, uid) in read.items():
        size = sizes.get(file, -1)
        if size < offset:
            return True
        if size > offset:
            header = find_header(folder / file, run)
            if isinstance(header, str) or storable(header.journal) != uid:
                return True
    return False


def find_header(path: Path, uid: str) -> Header | str:
    """Return the header of the journal *path* of run *uid*, or in one line what is wrong.

    It is the first line. Where that is damaged, the first copy of it that the writer left further on.
    """
    first = _header_in(read_stretch(path, 0, 1).partition(b"\n")[0])
    if first is not None and first.run == uid:
        return first
    lines = read_stretch(path, 0, _HEADER_WITHIN).split(b"\n")[1:-1]
    for line in lines:
        later = _header_in(line) if b'"hpcml"' in line else None
        if later is not None and later.run == uid:
            return later
    problem = "begins with no header that this hpcml can read" if first is None else f"belongs to run {first.run}"
    return f"{path} {problem}: left out"


def _header_in(line: bytes) -> Header | None:
    header = parse_chunk(line + b"\n", offset=0).header
    return header if header is not None and is_usable(header) else None


def read_stretch(path: Path, offset: int, limit: int) -> bytes:
    """Return up to *limit* bytes, or as many more as it takes to reach the end of a line."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(limit)
            while b"\n" not in data and (more := file.read(max(limit, 1 << 16))):
                data += more
            return data
    except OSError as error:
        raise HpcmlError(f"{path} cannot be read: {error.strerror}") from error
