"""What would be tried again, and what not and why: a line for each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpcml.records import RunRecord
from hpcml.report.plain_text import safe
from hpcml.report.run_words import title

Decided = Sequence[tuple[RunRecord, str, str, bool]]  # a run, its cause, why, and whether it is tried again


def retry_lines(decided: Decided) -> list[str]:
    """Return lines for runs with the cause of their failure, what was decided, and whether that is another try."""
    cells = [
        (record.uid, title(record), record.state.value, cause, f"{'' if is_tried else 'no: '}{why}")
        for record, cause, why, is_tried in decided
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)] if cells else []
    return [
        safe("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()) for line in cells
    ]


def left_line(decided: Decided) -> str | None:
    """Return a line that counts by cause what is not tried again; None where all is."""
    causes = Counter(cause for _, cause, _, is_tried in decided if not is_tried)
    if not causes:
        return None
    counts = ", ".join(f"{count} {cause}" for cause, count in sorted(causes.items()))
    return f"not worth another try by themselves: {counts} (hpcml retry --cause ... -n says why)"
