"""What is about to be removed, in lines, for somebody who is asked whether it is meant."""

from __future__ import annotations

from hpcml.records import RunRecord
from hpcml.report.images_table import size
from hpcml.report.plain_text import safe
from hpcml.report.run_words import title


def run_line(record: RunRecord, size_bytes: int | None, *, is_gone: bool) -> str:
    """Return which run it is and how large; without a size only the store forgets it."""
    stays = "its directory is gone" if is_gone else f"its files stay in {record.path}"
    words = (record.uid, record.experiment, title(record), record.state.value)
    return safe("  ".join(filter(None, (*words, stays if size_bytes is None else size(size_bytes)))))


def code_line(path: str, size_bytes: int) -> str:
    """Return which copy of code it is and how large."""
    return safe(f"{path}  {size(size_bytes)}")
