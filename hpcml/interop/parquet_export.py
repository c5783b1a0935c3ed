"""The tables as Parquet files with typed columns; needs pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    with _table(folder / "runs.parquet", columns) as add:
        add(rows)
    with _table(folder / "metrics.parquet", tables.METRICS) as add:
        add(tables.metrics_rows(export))
    with (
        _table(folder / "points.parquet", tables.POINTS) as add_points,
        _table(folder / "events.parquet", tables.EVENTS) as add_events,
    ):
        for run in export.runs:
            add_points(tables.points_rows(run))
            add_events(tables.events_rows(run))


@contextmanager
def _table(path: Path, columns: Sequence[tables.Column]) -> Iterator[Callable[[Iterable[Sequence[Any]]], None]]:
    """Give what appends rows, each with a value for every column, to the new file *path*, group by group."""
    with needing("pyarrow", extra="parquet"):
        import pyarrow as pa  # noqa: PLC0415 - an extra
        import pyarrow.parquet as pq  # noqa: PLC0415
    types = {"integer": pa.int64(), "real": pa.float64(), "boolean": pa.bool_()}  # others are text
    schema = pa.schema([(clean(column.name), types.get(column.kind, pa.string())) for column in columns])
    waiting: list[Sequence[Any]] = []
    with pq.ParquetWriter(path, schema, compression="zstd") as file:

        def flush() -> None:
            values = zip(*waiting, strict=True)
            arrays = [pa.array(column, type=field.type) for column, field in zip(values, schema, strict=True)]
            file.write_table(pa.Table.from_arrays(arrays, schema=schema))
            waiting.clear()

        def add(rows: Iterable[Sequence[Any]]) -> None:
            for row in rows:
                waiting.append(row)
                if len(waiting) >= _ROWS:
                    flush()

        yield add
        if waiting:
            flush()
