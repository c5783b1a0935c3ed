"""`hpcml images`: container images, their sizes and users, as table and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcml.codec import Json, encode
from hpcml.model.image import ImageRecord, ImageUse
from hpcml.report.render.data import json_text
from hpcml.report.text import duration, safe, size

_HEADINGS = ("key", "base", "size", "built", "last used", "runs", "")
_SHORT_KEY = 12

ListedImage = tuple[
    ImageRecord, Sequence[ImageUse], bool
]  # an image, the runs that use it, and whether its file is whole


def images_table(listed: Sequence[ListedImage], *, console: Console, now: float) -> Table:
    """Return one line for each image, in the given order; *now* in unix seconds.

    "built" and "last used" are times before *now*. BROKEN marks a file that is not as it was recorded.
    """
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, show_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold", no_wrap=heading != "base")
    for record, uses, is_whole in listed:
        built = datetime.fromisoformat(record.built_at).timestamp()
        used = _last_use(uses)
        open_runs = sum(not use.has_ended for use in uses)
        runs = f"{len(uses)} ({open_runs} open)" if open_runs else str(len(uses))
        cells = (
            record.key[:_SHORT_KEY],
            record.base,
            size(record.size_bytes),
            f"{duration(now - built)} ago",
            "" if used is None else f"{duration(now - used)} ago",
            runs,
            "" if is_whole else "BROKEN",
        )
        table.add_row(*(Text(safe(cell), style="red" if cell == "BROKEN" else "") for cell in cells))
    return table


def images_json(listed: Sequence[ListedImage]) -> str:
    """Return a JSON list; its keys do not change between versions.

    An image has the fields of its record, `log` (the file of all that its build printed; null where it is not here),
    `is_whole`, `last_used_at` (ISO 8601 in UTC, or null), and the uids of its `runs` and `open_runs`.
    """
    return json_text([_as_json(*one) for one in listed])


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
