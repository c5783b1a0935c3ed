"""What events tell that decide no state: files written, places changed, processes left behind, metrics not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcml.runs.state import PRINTED
from hpcml.units import one_or_many


def counted(details: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return how many files, and bytes, an event "files_written" tells of; None where it is damaged."""
    count, size_bytes = (details.get(name) for name in ("count", "bytes"))
    return (count, size_bytes) if isinstance(count, int) and isinstance(size_bytes, int) else None


def unread_words(details: Mapping[str, Any]) -> str:
    """Return in words what "metrics_trouble" tells: the file, unless it is what was printed, and the problem."""
    place = "" if details.get("file") == PRINTED else f"{details.get('file')}: "
    return f"{place}{details.get('problem')}"


def paths_in(details: Mapping[str, Any]) -> list[str]:
    """Return what an event "shared_changed" names: places in the working directory."""
    paths = details.get("paths")
    return [str(path) for path in paths] if isinstance(paths, list) else []


def left_words(details: Mapping[str, Any]) -> str:
    """Return in words what an event "left_behind" tells: how many processes, and the command lines of the first."""
    count, processes = details.get("count"), details.get("processes")
    named = [str(each) for each in processes] if isinstance(processes, list) else []
    more = ["..."] if isinstance(count, int) and count > len(named) else []
    return f"{count} {one_or_many(count if isinstance(count, int) else 0, 'processes')} ({', '.join([*named, *more])})"
