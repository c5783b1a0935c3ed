"""A document as CSV and JSON, and how single values are written in both."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from hpcml.codec import Json, encode
from hpcml.formulas import inert
from hpcml.report.document import Document
from hpcml.report.text import safe


def as_json(document: Document) -> str:
    """Return the document's record, or a list with an object for each of its rows; keys do not change their meaning."""
    record = document.record() if callable(document.record) else document.record
    if record is not None:
        return json_text(record)
    return json_text([{key: encode(value) for key, value in line.items()} for line in document.flat])


def as_csv(document: Document) -> str:
    """Return a line for each row of the document; an unknown value is an empty field, a list or an object JSON."""
    names = document.fields
    return csv_text(names, [[_packed(encode(line.get(name))) for name in names] for line in document.flat])


def json_text(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return *value* as JSON text; nan and infinities, which JSON lacks, as the texts "nan", "inf", "-inf".

    It is indented by two blanks and ends with a line feed.
    """
    return json.dumps(json_ready(value), indent=2, allow_nan=False) + "\n"


def csv_text(headings: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return *rows* below *headings* as CSV that a spreadsheet opens without conversion.

    Lines end with a line feed. Text that a spreadsheet would run as a formula gets a quote before it (see `csv_cell`).
    """
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow([csv_cell(heading) for heading in headings])
    writer.writerows([csv_cell(value) for value in row] for row in rows)
    return target.getvalue()


def csv_cell(value: object) -> object:
    """Return *value* for a field of CSV: None empty, booleans as in JSON, text without control characters.

    Text that a spreadsheet would take for a formula gets a quote before it (`hpcml.formulas`).

    >>> csv_cell("=1+1"), csv_cell(-0.5), csv_cell(None)
    ("'=1+1", -0.5, '')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    return inert(safe(value))


def json_ready(value: Json) -> Json:
    """Return *value* with nan and infinities as the texts "nan", "inf" and "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: json_ready(item) for key, item in value.items()}
    if isinstance(value, list):
        return [json_ready(item) for item in value]
    return value


def _packed(value: object) -> object:
    return json.dumps(value, sort_keys=True, default=str) if isinstance(value, list | tuple | dict) else value
