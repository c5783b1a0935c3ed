"""`hpcml show --files`: what a program wrote into its working directory, in lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcml.codec import encode
from hpcml.report.render.data import json_text
from hpcml.report.text import safe, size
from hpcml.runs.working_directory import WrittenFile

_MOST_SHOWN = 1_000


def written_words(count: int, size_bytes: int) -> str:
    """Return in words how much was written.

    >>> written_words(3, 1536)
    'wrote 3 files, 1.5 KiB'
    """
    return f"wrote {count} file{'s' if count != 1 else ''}, {size(size_bytes)}"


def files_lines(work: Path, files: Sequence[WrittenFile]) -> Iterator[str]:
    """Yield a line for each file, at most a thousand, then how many there are and where."""
    width = max((len(size(file.size_bytes)) for file in files[:_MOST_SHOWN]), default=0)
    for file in files[:_MOST_SHOWN]:
        kind = "new" if file.is_new else "changed"
        yield f"{size(file.size_bytes):>{width}}  {kind:7}  {safe(file.path)}"
    more = f" (the first {_MOST_SHOWN} are shown: --json has all)" if len(files) > _MOST_SHOWN else ""
    if files:
        yield f"{written_words(len(files), sum(file.size_bytes for file in files))}{more}, below {safe(work)}"
    else:
        yield f"wrote no files into {safe(work)}"


def files_json(work: Path, files: Sequence[WrittenFile]) -> str:
    """Return the folder and all files as one JSON object; sizes are in bytes."""
    return json_text({"directory": str(work), "files": [encode(file) for file in files]})
