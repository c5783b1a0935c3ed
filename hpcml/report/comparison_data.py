"""A comparison for programs: JSON with all of it, CSV with one line for each row of its tables."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields

from hpcml.codec import encode
from hpcml.comparison import Cell, Comparison, Cost, Interval, Load, Row, ToTarget
from hpcml.report.plain_text import json_ready
from hpcml.report.spreadsheet import csv_cell

FORMAT = 1  # grows when a key changes its meaning or goes


def comparison_json(comparison: Comparison) -> str:
    """Return the whole comparison as one JSON object; its keys are the fields of `hpcml.comparison`."""
    return json.dumps({"format": FORMAT, **json_ready(encode(comparison))}, indent=2, allow_nan=False) + "\n"


def comparison_csv(comparison: Comparison) -> str:
    """Return one line for each row of each cell; what is not known is an empty field."""
    lines = [_fields(comparison, cell, row) for cell in comparison.cells for row in cell.rows]
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(lines[0] if lines else [])
    writer.writerows([csv_cell(value) for value in line.values()] for line in lines)
    return target.getvalue()


def _fields(comparison: Comparison, cell: Cell, row: Row) -> dict[str, object]:
    difference, speed = row.difference, row.speed
    groups = ("model", "data", "strategy", "layout", "cluster", "container")
    return {
        "by": comparison.by,
        **{group: cell.where.get(group) for group in groups},
        "cell": "; ".join(f"{key}={value}" for key, value in cell.where.items() if key not in groups),
        "device": cell.device,
        "batch_size": cell.batch_size,
        "level": row.level,
        "numerics": row.numerics,
        "precision_effective": ";".join(row.precision_effective),
        "n_ok": row.n_ok,
        "n_failed": row.n_failed,
        "n_nan": row.n_nan,
        "n_without_metric": row.n_without_metric,
        "n_unfinished": row.n_unfinished,
        "seeds": ";".join(map(str, row.seeds)),
        "metric": comparison.metric,
        "mean": row.mean,
        "sd": row.sd,
        **_ends("mean_ci95", row.mean_ci95),
        "reference": cell.reference,
        "difference": difference.value if difference else None,
        **_ends("difference_ci90", difference.ci90 if difference else None),
        "paired": difference.paired if difference else None,
        "rho": difference.rho if difference else None,
        "margin": cell.margin,
        "margin_source": cell.margin_source,
        "p_tost": difference.p_tost if difference else None,
        "p_adjusted": row.p_adjusted,
        "p_not_worse": row.p_not_worse,
        "verdict": row.verdict,
        "step_ms": speed.step_ms if speed else None,
        "samples_per_s": speed.samples_per_s if speed else None,
        "speedup": speed.speedup if speed else None,
        **_ends("speedup_ci95", speed.speedup_ci95 if speed else None),
        "wall_s": speed.wall_s if speed else None,
        **_part("", Cost, row.cost),
        **_part("", Load, row.load),
        **_part("target_", ToTarget, row.to_target),
        "score_s": row.score,
        "flags": "; ".join(row.flags),
        "confounders": "; ".join(map(str, cell.confounders)),
    }


def _part(prefix: str, kind: type[Cost | Load | ToTarget], part: Cost | Load | ToTarget | None) -> dict[str, object]:
    """Return the fields of *part* as columns, which are there for every row; an interval as its two ends."""
    columns: dict[str, object] = {}
    for field in fields(kind):
        value = getattr(part, field.name) if part is not None else None
        name = (
            "n_energy"
            if kind is Cost and field.name == "n"
            else f"{prefix}{field.name}".replace("target_target", "target")
        )
        columns |= _ends(name, value) if field.name.endswith("_ci95") else {name: value}
    return columns


def _ends(name: str, interval: Interval | None) -> dict[str, object]:
    return {f"{name}_low": interval.low if interval else None, f"{name}_high": interval.high if interval else None}
