"""A scaling study for programs: JSON with all of it, CSV with one line for each number of devices in each cell."""

from __future__ import annotations

import csv
import io
import json

from hpcml.codec import encode
from hpcml.comparison import Interval
from hpcml.report.plain_text import json_ready
from hpcml.report.spreadsheet import csv_cell
from hpcml.scaling import Scaling, ScalingCell, ScalingPoint

FORMAT = 1  # grows when a key changes its meaning or goes


def scaling_json(scaling: Scaling) -> str:
    """Return the whole study as one JSON object; its keys are the fields of `hpcml.scaling`."""
    return json.dumps({"format": FORMAT, **json_ready(encode(scaling))}, indent=2, allow_nan=False) + "\n"


def scaling_csv(scaling: Scaling) -> str:
    """Return one line for each point of each cell; what is not known is an empty field."""
    wheres = list(dict.fromkeys(key for cell in scaling.cells for key in cell.where))
    lines = [_fields(cell, point, wheres) for cell in scaling.cells for point in cell.points]
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow([csv_cell(name) for name in lines[0]] if lines else [])
    writer.writerows([csv_cell(value) for value in line.values()] for line in lines)
    return target.getvalue()


def _fields(cell: ScalingCell, point: ScalingPoint, wheres: list[str]) -> dict[str, object]:
    return {
        "kind": cell.kind,
        "over": cell.over,
        **{key: cell.where.get(key) for key in wheres},
        "device": cell.device,
        "reference": cell.reference,
        "devices": point.devices,
        "n": point.n,
        "n_failed": point.n_failed,
        "n_unfinished": point.n_unfinished,
        "batch_size": point.batch_size,
        "step_ms": point.step_ms,
        "samples_per_s": point.samples_per_s,
        "speedup": point.speedup,
        **_ends("speedup_ci95", point.speedup_ci95),
        "paired": point.paired,
        "efficiency": point.efficiency,
        **_ends("efficiency_ci95", point.efficiency_ci95),
        "gain": point.gain,
        **_ends("gain_ci95", point.gain_ci95),
        "cost": point.cost,
        "gpu_hours": point.gpu_hours,
        "energy_kj": point.energy_kj,
        "energy_per_sample_j": point.energy_per_sample_j,
        "communication_share": point.communication_share,
        "serial_share": cell.fit.share if cell.fit else None,
        **_ends("serial_share_ci95", cell.fit.ci95 if cell.fit else None),
        "no_help_beyond": cell.no_help_beyond,
        "flags": "; ".join(point.flags),
        "confounders": "; ".join(map(str, cell.confounders)),
    }


def _ends(name: str, interval: Interval | None) -> dict[str, object]:
    return {f"{name}_low": interval.low if interval else None, f"{name}_high": interval.high if interval else None}
