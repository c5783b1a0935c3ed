"""What people say of a run, folded from its journals: pure, and the same in whatever order the events were found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcml.records import Note
from hpcml.store.fold import Happening

ANNOTATING = ("tagged", "untagged", "noted")


def fold_tags(first: Sequence[str], happenings: Iterable[Happening]) -> list[str]:
    """Return the run's tags: *first*, which run.json names, and what came and went since, by time."""
    tags = list(first)
    for happening in sorted(happenings, key=_by_time):
        tag = happening.details.get("tag")
        if not isinstance(tag, str) or happening.name not in ("tagged", "untagged"):
            continue
        if happening.name == "untagged":
            tags = [other for other in tags if other != tag]
        elif tag not in tags:
            tags.append(tag)
    return tags


def fold_notes(happenings: Iterable[Happening]) -> list[Note]:
    """Return what was noted of the run, by time; who writes a journal and gives no name is its author."""
    notes: list[Note] = []
    for happening in sorted(happenings, key=_by_time):
        text, author = happening.details.get("text"), happening.details.get("author")
        if happening.name == "noted" and isinstance(text, str):
            named = author if isinstance(author, str) and author else happening.journal.writer
            notes.append(Note(at=happening.at, author=named, text=text))
    return notes


def _by_time(happening: Happening) -> tuple[float, str, int]:
    return (happening.at, happening.journal.file, happening.ordinal)
