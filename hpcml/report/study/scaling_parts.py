"""How speed follows the number of devices: sentences, a chart and a table for each cell of a scaling study."""

from __future__ import annotations

from collections.abc import Iterator

from hpcml.report.study.drawing import titled
from hpcml.report.study.entries import between, figure, fixed, number_column, share, text_column, words
from hpcml.report.study.parts import Chart, Column, Entry, Listed, Section, Table, Trace, View
from hpcml.report.study.styles import NEUTRAL, level_styles
from hpcml.scaling import Scaling, ScalingCell, ScalingPoint


def scaling_section(scaling: Scaling) -> Section:
    """Return what the study says, cell by cell."""
    said = [*scaling.pays_from, *scaling.remarks]
    parts = [Listed(lines=said)] if said else []
    return Section(
        heading=f"Scaling over {scaling.over}", parts=parts, sections=[_cell(cell) for cell in scaling.cells]
    )


def _cell(cell: ScalingCell) -> Section:
    where = " · ".join(f"{key} {name}" for key, name in cell.where.items() if name not in ("not set", "none"))
    lines = [*cell.sentences, *cell.remarks, *(f"CONFOUNDED by {each.kind} {each}" for each in cell.confounders)]
    table = _table(cell)
    charts = [_speedup(cell, table)] if sum(point.speedup is not None for point in cell.points) > 1 else []
    return Section(heading=f"{cell.kind} scaling · {where}", parts=[Listed(lines=lines), *charts, table])


def _speedup(cell: ScalingCell, table: Table) -> Chart:
    measured = [(point.devices, point.speedup, point) for point in cell.points if point.speedup is not None]
    devices, base = [at for at, _, _ in measured], cell.reference or measured[0][0]
    colour = level_styles(["measured"])["measured"].colour
    ends = [point.speedup_ci95 for _, _, point in measured]
    whiskers = {
        "type": "data",
        "symmetric": False,
        "array": [0 if ci is None else ci.high - value for (_, value, _), ci in zip(measured, ends, strict=True)],
        "arrayminus": [0 if ci is None else value - ci.low for (_, value, _), ci in zip(measured, ends, strict=True)],
        "color": colour,
    }
    ideal = {
        "type": "scatter",
        "mode": "lines",
        "y": [at / base for at in devices],
        "line": {"dash": "dash", "color": NEUTRAL},
        "hovertemplate": "ideal: %{y:.3g}",
        "name": "",
    }
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "y": [value for _, value, _ in measured],
        "error_y": whiskers,
        "line": {"color": colour, "width": 2},
        "marker": {"size": 10, "color": colour},
        "hovertemplate": f"%{{x}} {cell.over}: %{{y:.3g}}",
        "name": "",
    }
    ticks = {"type": "log", "tickvals": devices, "ticktext": [str(at) for at in devices]}
    return Chart(
        title="Speed-up",
        described=f"Speed-up against {base} {cell.over} with 95 % intervals; dashed: as many times as fast as there "
        f"are {cell.over}. {'; '.join(f'{at}: {value:.3g}' for at, value, _ in measured)}.",
        traces=[Trace(level=None, drawn=ideal, xs={"x": devices}), Trace(level=None, drawn=line, xs={"x": devices})],
        views=[View(key="x", label=cell.over, title=cell.over)],
        layout={"xaxis": titled(cell.over, **ticks), "yaxis": titled("speed-up", **ticks)},
        numbers=Table(caption=table.caption, columns=table.columns[:5], rows=[row[:5] for row in table.rows]),
        repeats_a_table=True,
    )


def _table(cell: ScalingCell) -> Table:
    columns: list[Column] = [
        number_column(cell.over),
        number_column("speed-up"),
        number_column("95 % interval"),
        number_column("efficiency", "%"),
        number_column("step", "ms"),
        number_column("samples", "1/s"),
        number_column("gain over the next smaller", "ratio"),
        number_column("95 % interval"),
        number_column("batch size"),
        number_column("device-hours per sample", "ratio"),
        number_column("GPU-hours"),
        number_column("energy", "kJ"),
        number_column("communication", "%"),
        number_column("seeds"),
        number_column("failed"),
        text_column("remarks"),
    ]
    return Table(
        caption=f"{cell.kind} scaling over {cell.over}",
        columns=columns,
        rows=[list(_row(point)) for point in cell.points],
    )


def _row(point: ScalingPoint) -> Iterator[Entry]:
    yield figure(point.devices)
    yield fixed(point.speedup, 2)
    yield between(point.speedup_ci95, 2)
    yield share(point.efficiency)
    yield figure(point.step_ms)
    yield figure(point.samples_per_s)
    yield fixed(point.gain, 2)
    yield between(point.gain_ci95, 2)
    yield figure(point.batch_size)
    yield fixed(point.cost, 2)
    yield figure(point.gpu_hours)
    yield figure(point.energy_kj)
    yield share(point.communication_share)
    yield figure(point.n)
    yield figure(point.n_failed)
    yield words("; ".join(point.flags))
