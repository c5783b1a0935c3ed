"""Moments in the time zone of this machine, whatever TZ says."""

from __future__ import annotations

from datetime import UTC, datetime


def local_time(unix_s: float | None = None) -> datetime:
    """Return a moment, or now, in this machine's time zone; in UTC where TZ is further off than Python's zones are.

    POSIX takes offsets of a day and more (``TZ=XXX-24:59:59``), and of a week on some systems.
    """
    try:
        return (datetime.now() if unix_s is None else datetime.fromtimestamp(unix_s)).astimezone()  # noqa: DTZ005, DTZ006
    except ValueError:
        return datetime.now(UTC) if unix_s is None else datetime.fromtimestamp(unix_s, UTC)
