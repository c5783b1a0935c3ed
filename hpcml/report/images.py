"""`hpcml images`: container images, their sizes and users."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from hpcml.codec import Json, encode
from hpcml.model.image import ImageRecord, ImageUse
from hpcml.report.document import Column, Document, Listing
from hpcml.report.render.data import json_text
from hpcml.report.text import duration, size

_SHORT_KEY = 12

ListedImage = tuple[
    ImageRecord, Sequence[ImageUse], bool
]  # an image, the runs that use it, and whether its file is whole


def images_document(listed: Sequence[ListedImage], *, now: float) -> Document:
    """Return one line for each image, in the given order; *now* in unix seconds.

    "built" and "last used" are times before *now*. BROKEN marks a file that is not as it was recorded. In JSON an image
    has the fields of its record, `log` (the file of all that its build printed; null where it is not here),
    `is_whole`, `last_used_at` (ISO 8601 in UTC, or null), and the uids of its `runs` and `open_runs`.
    """

    def ago(at: float | None) -> str:
        return "" if at is None else f"{duration(now - at)} ago"

    columns: list[Column[ListedImage]] = [
        Column("", "key", lambda row: row[0].key[:_SHORT_KEY]),
        Column("", "base", lambda row: row[0].base),
        Column("", "size", lambda row: row[0].size_bytes, lambda row: size(row[0].size_bytes), is_number=False),
        Column("", "built", lambda row: ago(datetime.fromisoformat(row[0].built_at).timestamp())),
        Column("", "last used", lambda row: ago(_last_use(row[1]))),
        Column("", "runs", lambda row: _runs(row[1])),
        Column("", "", lambda row: "" if row[2] else "BROKEN", tone=lambda _: "bad"),
    ]
    return Document.of(Listing(columns=columns, rows=listed), record=lambda: [_as_json(*row) for row in listed])


def _runs(uses: Sequence[ImageUse]) -> str:
    open_runs = sum(not use.has_ended for use in uses)
    return f"{len(uses)} ({open_runs} open)" if open_runs else str(len(uses))


def image_json(record: ImageRecord) -> str:
    """Return one JSON object with what is recorded of an image."""
    return json_text(encode(record))


def log_of(record: ImageRecord) -> str | None:
    """Return the path of what the build printed, beside the image; None where it is not there."""
    path = Path(record.path).with_suffix(".log")
    return str(path) if path.is_file() else None


def total(listed: Sequence[ListedImage]) -> str:
    """Return the number of images and their size in one line."""
    count = len(listed)
    return f"{count} image{'' if count == 1 else 's'}, {size(sum(record.size_bytes for record, _, _ in listed))}"


def _as_json(record: ImageRecord, uses: Sequence[ImageUse], is_whole: bool) -> Json:  # noqa: FBT001 - a column
    used = _last_use(uses)
    return {
        **encode(record),
        "log": log_of(record),
        "is_whole": is_whole,
        "last_used_at": None if used is None else datetime.fromtimestamp(used, tz=UTC).isoformat(timespec="seconds"),
        "runs": [use.uid for use in uses],
        "open_runs": [use.uid for use in uses if not use.has_ended],
    }


def _last_use(uses: Sequence[ImageUse]) -> float | None:
    return max((use.at for use in uses if use.at is not None), default=None)
