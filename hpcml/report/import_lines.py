"""An import in a few lines."""

from __future__ import annotations

from collections.abc import Mapping

from hpcml.report.plain_text import safe


def import_lines(
    *, created: int, updated: int, unchanged: int, own: int, points: int, remarks: Mapping[str, int]
) -> tuple[str, list[str]]:
    """Return what was done in one line, and a line for each thing that is not here as it was there."""
    parts = [f"{created} runs imported", f"{updated} with news", f"{unchanged} unchanged"]
    if own:
        parts.append(f"{own} that hpcml exported and has")
    line = f"{', '.join(parts)}; {points} points"
    return line, [f"{safe(remark)}{f' ({count} runs)' if count > 1 else ''}" for remark, count in remarks.items()]
