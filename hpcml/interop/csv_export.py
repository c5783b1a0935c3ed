"""The tables as CSV (RFC 4180) for other programs: numbers in full, None as an empty field, nan and inf as words."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from hpcml.formulas import inert
from hpcml.interop import tables
from hpcml.interop.exported import Export, clean


def write_csv(export: Export, folder: Path) -> None:
    """Write ``runs.csv``, ``metrics.csv``, ``points.csv`` and ``events.csv`` into *folder*.

    *folder* must not have them yet (`FileExistsError`). The columns are those of `hpcml.interop.tables`, lines end with
    a line feed, and booleans are written ``true`` and ``false``. Text that a spreadsheet would run as a formula gets a
    quote before it (`hpcml.formulas`).
    """
    columns, rows = tables.runs_table(export)
    with _open(folder / "runs.csv") as file:
        _write(file, columns, rows)
    with _open(folder / "metrics.csv") as file:
        _write(file, tables.METRICS, tables.metrics_rows(export))
    with _open(folder / "points.csv") as points, _open(folder / "events.csv") as events:
        _write(points, tables.POINTS, ())
        _write(events, tables.EVENTS, ())
        for run in export.runs:
            write_rows(points, tables.points_rows(run))
            write_rows(events, tables.events_rows(run))


def write_rows(file: IO[str], rows: Iterable[Sequence[Any]]) -> None:
    """Append *rows* to an open CSV file, which must have been opened with ``newline=""``."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([_field(value) for value in row] for row in rows)


def _write(file: IO[str], columns: Sequence[tables.Column], rows: Iterable[Sequence[Any]]) -> None:
    write_rows(file, [[clean(column.name) for column in columns]])
    write_rows(file, rows)


def _open(path: Path) -> IO[str]:
    return path.open("x", encoding="utf-8", newline="")


def _field(value: object) -> object:
    """Return *value* as the csv module shall write it: booleans as in JSON, and no text that is a formula."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return inert(value)
    return value  # the csv module writes None as nothing, and a float so that it is read back the same
