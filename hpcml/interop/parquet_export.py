"""The tables as Parquet files with typed columns; needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hpcml.interop import tables
from hpcml.interop.exported import Export, clean, needing

_ROWS = 1 << 16  # held in memory at once, and the size of a row group


def write_parquet(export: Export, folder: Path) -> None:
    """Write ``runs.parquet``, ``metrics.parquet``, ``points.parquet`` and ``events.parquet`` into *folder*.

    The columns are those of `hpcml.interop.tables`; text and JSON are strings, integers 64 bits, reals doubles. The
    files are compressed with zstd. At most `_ROWS` rows of a file are in memory. Raises `ConfigError` where pyarrow is
    missing.
    """
    columns, rows = tables.runs_table(export)
    with _Table(folder / "runs.parquet", columns) as runs:
        runs.add(rows)
    with _Table(folder / "metrics.parquet", tables.METRICS) as metrics:
        metrics.add(tables.metrics_rows(export))
    with (
        _Table(folder / "points.parquet", tables.POINTS) as points,
        _Table(folder / "events.parquet", tables.EVENTS) as events,
    ):
        for run in export.runs:
            points.add(tables.points_rows(run))
            events.add(tables.events_rows(run))


class _Table:
    """One file, written row group by row group."""

    def __init__(self, path: Path, columns: Sequence[tables.Column]) -> None:
        with needing("pyarrow", extra="parquet"):
            import pyarrow as pa  # noqa: PLC0415 - an extra
            import pyarrow.parquet as pq  # noqa: PLC0415
        types = {
            "text": pa.string(),
            "json": pa.string(),
            "integer": pa.int64(),
            "real": pa.float64(),
            "boolean": pa.bool_(),
        }
        self._arrow = pa
        self._schema = pa.schema([(clean(column.name), types[column.kind]) for column in columns])
        self._file = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[Sequence[Any]] = []

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Append *rows*, each with a value for every column."""
        for row in rows:
            self._rows.append(row)
            if len(self._rows) >= _ROWS:
                self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        self._file.close()

    def _flush(self) -> None:
        if not self._rows:
            return
        arrays = [
            self._arrow.array(values, type=field.type)
            for values, field in zip(zip(*self._rows, strict=True), self._schema, strict=True)
        ]
        self._file.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self._rows.clear()
