"""`hpcml show --files`: what a program wrote into its working directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcml.codec import encode
from hpcml.report.document import Column, Document, Listing, Remarks, Section
from hpcml.report.text import size
from hpcml.runs.working_directory import WrittenFile


def written_words(count: int, size_bytes: int) -> str:
    """Return in words how much was written.

    >>> written_words(3, 1536)
    'wrote 3 files, 1.5 KiB'
    """
    return f"wrote {count} file{'s' if count != 1 else ''}, {size(size_bytes)}"


def files_document(work: Path, files: Sequence[WrittenFile]) -> Document:
    """Return a line for each file, then how many there are and where; sizes in JSON are in bytes."""
    columns: list[Column[WrittenFile]] = [
        Column("path", "file", lambda file: file.path),
        Column("size_bytes", "size", lambda file: file.size_bytes, lambda file: size(file.size_bytes)),
        Column("is_new", "", lambda file: file.is_new, lambda file: "new" if file.is_new else "changed"),
    ]
    written = written_words(len(files), sum(file.size_bytes for file in files))
    line = f"{written}, below {work}" if files else f"wrote no files into {work}"
    listing = [Listing(columns=columns, rows=files)] if files else []
    return Document(
        sections=[Section(parts=[*listing, Remarks(lines=[line])])],
        record={"directory": str(work), "files": [encode(file) for file in files]},
        data=listing,
    )
