"""What was found out about the store, or done to it, in lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from hpcml.report.images_table import size
from hpcml.report.plain_text import safe


class Kept(Protocol):
    """A store as it is kept."""

    @property
    def name(self) -> str:
        """Its path or URL."""

    @property
    def used(self) -> str:
        """Where it is and how it is used."""

    @property
    def size_bytes(self) -> int | None:
        """How large its file is; None for a server's."""

    @property
    def runs(self) -> int:
        """How many runs it knows."""

    @property
    def points(self) -> int:
        """How many values of metrics."""


class Rewritten(Protocol):
    """A store's file that was made anew."""

    @property
    def name(self) -> str:
        """Its path."""

    @property
    def before(self) -> int:
        """Bytes."""

    @property
    def after(self) -> int:
        """Bytes."""

    @property
    def removed(self) -> Sequence[Path]:
        """What went with it."""


def kept_lines(kept: Kept) -> Iterator[str]:
    """Yield what there is to know."""
    yield safe(kept.name)
    yield f"  {safe(kept.used)}"
    room = "" if kept.size_bytes is None else f", {size(kept.size_bytes)}"
    yield f"  {_counted(kept.runs, 'run')}, {_counted(kept.points, 'point')}{room}"


def kept_json(kept: Kept) -> str:
    """Return one JSON object; the keys are stable."""
    told = {name: getattr(kept, name) for name in ("name", "used", "size_bytes", "runs", "points")}
    return json.dumps(told, indent=2) + "\n"


def check_lines(name: str, problems: Sequence[str]) -> Iterator[str]:
    """Yield each problem, or that there is none."""
    yield from (safe(problem) for problem in problems)
    if problems:
        yield f"{_counted(len(problems), 'fault')} in {safe(name)}: delete it, and hpcml sync makes it anew"
    else:
        yield f"nothing is wrong with {safe(name)}"


def rewritten_lines(done: Rewritten) -> Iterator[str]:
    """Yield what became smaller, and what is gone."""
    yield from (f"removed {safe(path)}" for path in done.removed)
    yield f"{safe(done.name)}: {size(done.before)}, now {size(done.after)}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
