"""`hpcml published` as a document: tables that others published, and below them what one's own runs say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from hpcml.codec import encode
from hpcml.model.published_tables import PublishedTable
from hpcml.report.document import (
    Document,
    Entry,
    Remarks,
    Section,
    Table,
    TableColumn,
    figure,
    number_column,
    text_column,
    words,
)

FORMAT = 1  # of JSON; grows when a key changes its meaning or goes
_THEIRS = "published by others: not measured by hpcml, and in no statistics"
_HINTS = (
    "hpcml published TABLE shows one, with its source and what is doubtful about it",
    "a table of precisions stands above your own runs with --experiment NAME",
    "peaks, training times of ResNet-50 and matrix products: hpcml peak --published",
)


def published_list(tables: Sequence[PublishedTable]) -> Document:
    """Return a line for each table: its name, what it is of, and how many rows it has."""
    rows = [[words(table.key), words(table.title), figure(len(table.rows))] for table in tables]
    columns = [TableColumn(title="table", wrap="never"), text_column("what"), number_column("rows")]
    return Document(
        introduction=f"{len(tables)} tables, {_THEIRS}",
        sections=[
            Section(
                heading="",
                parts=[
                    Table(caption="", columns=columns, rows=rows),
                    Remarks(lines=_HINTS),
                ],
            )
        ],
        record={"format": FORMAT, "tables": [encode(table) for table in tables]},
        lines=[{"table": table.key, "what": table.title, "rows": len(table.rows)} for table in tables],
    )


def published_document(tables: Sequence[PublishedTable], own: Document | None = None) -> Document:
    """Return *tables* whole, and below them *own*, the answer of a comparison; never both in one table.

    CSV has a line for each row of the first table, as tables of several kinds have no columns in common; JSON has all,
    and the comparison under ``own``.
    """
    sections = [_section(table) for table in tables]
    record = {"format": FORMAT, "tables": [encode(table) for table in tables]}
    if own is None:
        return Document(introduction=_THEIRS, sections=sections, record=record, lines=_lines(tables[0]))
    headed = Section(heading="Your runs", parts=[Remarks(lines=[own.introduction])] if own.introduction else [])
    return replace(
        own,
        introduction=_THEIRS,
        sections=[*sections, headed, *own.sections],
        record={**record, "own": own.record},
        lines=_lines(tables[0]),
    )


def _section(table: PublishedTable) -> Section:
    columns = [
        TableColumn(title=column.title, unit=column.unit, is_number=column.is_number) for column in table.columns
    ]
    rows = [
        [_entry(cell, is_number=column.is_number) for column, cell in zip(table.columns, row, strict=True)]
        for row in table.rows
    ]
    lines = [*_summary(table), *table.notes, f"source: {table.source}"]
    return Section(heading=table.title, parts=[Table(caption="", columns=columns, rows=rows), Remarks(lines=lines)])


def _entry(cell: str, *, is_number: bool) -> Entry:
    return Entry(text=cell, order=float(cell) if is_number and cell else None)


def _summary(table: PublishedTable) -> list[str]:
    """Return a line on the differences, where they are all in one unit."""
    found = [column for column in table.columns if column.is_derived and column.unit == "%"]
    if not found:
        return []
    known = [float(value) for value in table.numbers(found[0].title) if value is not None]
    span = f"from {min(known):+.2f} to {max(known):+.2f}"
    return [f"{found[0].title}: mean {fmean(known):+.3f}, {span} (computed; {len(known)} rows)"]


def _lines(table: PublishedTable) -> list[dict[str, object]]:
    headings = [f"{column.title} ({column.unit})" if column.unit else column.title for column in table.columns]
    return [dict(zip(headings, (cell or None for cell in row), strict=True)) for row in table.rows]
