"""What runs attained, for programs: JSON with all of it, CSV with a line for each cell or published figure."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields

from hpcml.attainment import Attained, Attainment, Published
from hpcml.codec import encode
from hpcml.report.plain_text import json_ready
from hpcml.report.spreadsheet import csv_cell

FORMAT = 1  # grows when a key changes its meaning or goes


def attainment_json(attainment: Attainment) -> str:
    """Return everything as one JSON object; its keys are the fields of `hpcml.attainment`."""
    return json.dumps({"format": FORMAT, **json_ready(encode(attainment))}, indent=2, allow_nan=False) + "\n"


def attainment_csv(attainment: Attainment) -> str:
    """Return one line for each cell and precision of runs; where there are no runs, one for each published figure.

    The two are never in one table.
    """
    if not attainment.attained:
        return _csv([_published(figure) for figure in attainment.published])
    wheres = list(dict.fromkeys(key for row in attainment.attained for key in row.where))
    return _csv([_attained(row, wheres) for row in attainment.attained])


def _attained(row: Attained, wheres: list[str]) -> dict[str, object]:
    lists = {"limits": "; ".join(row.limits), "flags": "; ".join(row.flags)}
    plain = {field.name: getattr(row, field.name) for field in fields(row) if field.name != "where"}
    return {**{key: row.where.get(key) for key in wheres}, **plain, **lists}


def _published(figure: Published) -> dict[str, object]:
    return {field.name: getattr(figure, field.name) for field in fields(figure)}


def _csv(lines: list[dict[str, object]]) -> str:
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow([csv_cell(name) for name in lines[0]] if lines else [])
    writer.writerows([csv_cell(value) for value in line.values()] for line in lines)
    return target.getvalue()
