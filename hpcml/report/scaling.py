"""`hpcml scaling` as a document, and the section of a scaling study in `hpcml report`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hpcml.analysis.compare.result import Interval
from hpcml.analysis.flags import FlagCode
from hpcml.analysis.scaling.result import Scaling, ScalingCell, ScalingPoint, SizeRow
from hpcml.codec import encode
from hpcml.model.told_apart import alike_words
from hpcml.report.charts import NEUTRAL, drawn_text, level_styles, plot, titled
from hpcml.report.document import Column, Document, Figure, Listing, Part, Remarks, Section, Tone
from hpcml.report.text import number, ratio
from hpcml.report.text_charts import bar
from hpcml.units import one_or_many

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

FORMAT = 2  # of JSON; grows when a key changes its meaning or goes
_BAR_WIDTH = 10


def scaling_document(scaling: Scaling) -> Document:
    """Return the document of ``hpcml scaling``: for each cell a table and conclusions, then those over all cells.

    A cell has the runs that are alike but for the number of devices, and a line for each number. Speed-up and
    efficiency are against the reference of the cell; the efficiency of perfect scaling is 1.
    """
    wheres = list(dict.fromkeys(key for cell in scaling.cells for key in cell.where))
    said = [*scaling.pays_from, *map(str, scaling.flags)]
    strong: list[Tone] = ["strong"] * len(scaling.pays_from)
    plain: list[Tone] = ["plain"] * len(scaling.flags)
    return Document(
        introduction=f"{scaling.n_runs} runs over {scaling.over} · against the reference by seed, 95 % intervals by t "
        "on logarithms",
        sections=[
            *(Section(heading=_heading(cell), parts=[_table(cell), _remarks(cell)]) for cell in scaling.cells),
            *(Section(heading=_of_sizes(scaling, row), parts=[_sizes(scaling, row)]) for row in scaling.sizes),
            *([Section(heading="", parts=[Remarks(lines=said, tones=[*strong, *plain])])] if said else []),
        ],
        record={"format": FORMAT, **encode(scaling)},
        data=[Listing(columns=_csv_columns(cell, wheres), rows=cell.points) for cell in scaling.cells],
    )


def scaling_section(scaling: Scaling) -> Section:
    """Return the section of a report: the conclusions, then a chart and a table for each cell.

    The table has every number of devices, also those whose runs have no speed.
    """
    said = [*scaling.pays_from, *map(str, scaling.flags)]
    parts: list[Part] = [Remarks(lines=said)] if said else []
    for row in scaling.sizes:
        parts += [_sizes_figure(scaling, row), replace(_sizes(scaling, row), caption=_of_sizes(scaling, row))]
    return Section(
        heading=f"Scaling over {scaling.over}", parts=parts, sections=[_cell(cell) for cell in scaling.cells]
    )


def _of_sizes(scaling: Scaling, row: SizeRow) -> str:
    """Return the heading of a table over sizes."""
    apart = f" · {row.apart}" if row.apart else ""
    return f"{row.kind} scaling by {row.size}{apart}: speed-ups [95 %] on more {scaling.over}"


def _by_devices(scaling: Scaling, row: SizeRow) -> Mapping[int, Sequence[ScalingPoint | None]]:
    """Return the points of each size of *row* by number of devices, None where a size has no speed-up on them."""
    cells = [
        {point.devices: point for point in scaling.cells[place].points if point.speedup is not None}
        for place in row.cells
    ]
    return {number: [cell.get(number) for cell in cells] for number in sorted({n for cell in cells for n in cell})}


def _sizes(scaling: Scaling, row: SizeRow) -> Listing[int]:
    """Return the speed-ups of *row*: a line for each size, a column for each number of devices."""

    def column(number: int, points: Sequence[ScalingPoint | None]) -> Column[int]:
        def text(at: int) -> str:
            return "" if (point := points[at]) is None else _estimate(point.speedup, point.speedup_ci95)

        heading = f"{number} {one_or_many(number, scaling.over)}"
        return Column(f"speedup_{number}", heading, lambda at: (one := points[at]) and one.speedup, text)

    columns = [column(number, points) for number, points in _by_devices(scaling, row).items()]
    return Listing(
        columns=[Column("size", row.size, lambda at: row.names[at], is_number=False), *columns],
        rows=range(len(row.names)),
    )


def _sizes_figure(scaling: Scaling, row: SizeRow) -> Figure:
    return Figure(
        title=f"Speed-up by {row.size}",
        described=f"Speed-ups with 95 % intervals of each {row.size}, a line for each number of {scaling.over}; "
        "dashed: as fast as the reference. What lies below it is slower.",
        draw=partial(_sizes_plot, scaling, row),
        numbers=_sizes(scaling, row),
        repeats_a_table=True,
    )


def _sizes_plot(scaling: Scaling, row: SizeRow) -> Plot:
    by_devices = _by_devices(scaling, row)
    styles = level_styles(list(map(str, by_devices)))
    drawn = plot(x=titled(row.size, type="category"), y=titled("speed-up"))
    drawn.add_hline(y=1, line={"dash": "dash", "color": NEUTRAL})
    for devices, points in by_devices.items():
        words, style = f"{devices} {one_or_many(devices, scaling.over)}", styles[str(devices)]
        drawn.add_scatter(
            mode="lines+markers",
            name=words,
            x=list(map(drawn_text, row.names)),
            y=[None if point is None else point.speedup for point in points],
            error_y=_whiskers(points),
            line={"color": style.colour, "width": 2},
            marker={"size": 10, "color": style.colour, "symbol": style.marker},
            hovertemplate=f"{words}: %{{y:.3g}}<extra></extra>",
        )
    return drawn


def _whiskers(points: Sequence[ScalingPoint | None]) -> dict[str, object]:
    """Return plotly's error bars of the speed-ups of *points*."""
    ends = [
        (0.0, 0.0)
        if point is None or point.speedup is None or (ci := point.speedup_ci95) is None
        else (ci.high - point.speedup, point.speedup - ci.low)
        for point in points
    ]
    return {"type": "data", "symmetric": False, "array": [up for up, _ in ends], "arrayminus": [low for _, low in ends]}


def _heading(cell: ScalingCell) -> str:
    is_known = any(key.startswith("batch size") for key in cell.where)
    same = "one batch for all" if is_known else "one setting for all, and the batch, if any, is the program's own"
    kind = f"strong scaling: {same}" if cell.kind == "strong" else "weak scaling: the batch grows"
    parts = alike_words(cell.where)
    return " · ".join([kind, *parts, *([f"device {cell.device}"] if cell.device else [])])


def _remarks(cell: ScalingCell) -> Remarks:
    """Return the conclusions, then what is needed to read the table of *cell*, the most important first."""
    every: list[tuple[str, Tone]] = [(sentence, "conclusion") for sentence in cell.sentences]
    every += [(str(flag), "bad" if flag.code is FlagCode.CONFOUNDED else "faint") for flag in cell.flags]
    every += [(line, "faint") for line in _details(cell)]
    return Remarks(lines=[line for line, _ in every], tones=[tone for _, tone in every])


def _details(cell: ScalingCell) -> Iterator[str]:
    for point in cell.points:
        for flag in point.flags:
            yield f"{point.devices}: {flag}"
    if cell.steady_from_step is not None:
        yield f"step times: medians over steps {cell.steady_from_step} to {cell.steady_to_step} of every run"
    for note in cell.notes:
        yield f"note: {note}"
    for run in cell.excluded:
        yield f"no speed: {run.uid} ({run.level}): {run.reason}"


def _csv_columns(cell: ScalingCell, wheres: Sequence[str]) -> list[Column[ScalingPoint]]:
    """Return the columns of each number of devices, in the order of CSV."""
    fit = cell.fit
    return [
        _hidden("kind", lambda _: cell.kind),
        _hidden("over", lambda _: cell.over),
        *(_hidden(key, partial(lambda value, _: value, cell.where.get(key))) for key in wheres),
        _hidden("device", lambda _: cell.device),
        _hidden("reference", lambda _: cell.reference),
        *_table(cell).columns,
        _hidden("serial_share", lambda _: fit.share if fit else None),
        Column("serial_share_ci95", None, lambda _: fit.ci95 if fit else None, is_interval=True),
        _hidden("no_help_beyond", lambda _: cell.no_help_beyond),
        _hidden("flags", lambda point: "; ".join(map(str, point.flags))),
        _hidden("confounders", lambda _: "; ".join(map(str, cell.confounders))),
    ]


def _table(cell: ScalingCell) -> Listing[ScalingPoint]:
    columns = [*_counts(cell), *_speeds(cell), *_efficiencies(cell), *_costs()]
    return Listing(columns=columns, rows=cell.points)


def _counts(cell: ScalingCell) -> list[Column[ScalingPoint]]:
    def of_ended(point: ScalingPoint) -> str:
        ended = point.n + point.n_failed + point.n_unfinished
        return f"{point.n}" if point.n == ended else f"{point.n}/{ended}"

    return [
        Column("devices", cell.over, lambda point: point.devices),
        Column("n", "n", lambda point: point.n, of_ended, is_number=False),
        _hidden("n_failed", lambda point: point.n_failed),
        _hidden("n_unfinished", lambda point: point.n_unfinished),
        Column("batch_size", "batch", lambda point: point.batch_size),
    ]


def _against(cell: ScalingCell, text: str, write: Callable[[ScalingPoint], str]) -> Callable[[ScalingPoint], str]:
    """Return what writes *text* for the reference itself."""
    return lambda point: text if point.devices == cell.reference else write(point)


def _speeds(cell: ScalingCell) -> list[Column[ScalingPoint]]:
    return [
        Column("step_ms", "step ms", lambda point: point.step_ms),
        Column("samples_per_s", "samples/s", lambda point: point.samples_per_s),
        Column(
            "speedup",
            "speed-up [95 %]",
            lambda point: point.speedup,
            _against(cell, "1", lambda point: _estimate(point.speedup, point.speedup_ci95)),
        ),
        Column("speedup_ci95", None, lambda point: point.speedup_ci95, is_interval=True),
        _hidden("paired", lambda point: point.paired),
        _hidden("speedup_unit", lambda point: point.speedup_unit),
    ]


def _efficiencies(cell: ScalingCell) -> list[Column[ScalingPoint]]:
    def used(point: ScalingPoint) -> str:
        return bar(1.0 if point.devices == cell.reference else point.efficiency, width=_BAR_WIDTH, is_plain=False)

    return [
        Column(
            "efficiency",
            "efficiency [95 %]",
            lambda point: point.efficiency,
            _against(cell, "100 %", lambda point: _percent(point.efficiency, point.efficiency_ci95)),
        ),
        Column("efficiency_ci95", None, lambda point: point.efficiency_ci95, is_interval=True),
        Column("", "used", lambda point: point.efficiency, used, is_number=False),
        Column("gain", "gain [95 %]", lambda point: point.gain, lambda point: _change(point.gain, point.gain_ci95)),
        Column("gain_ci95", None, lambda point: point.gain_ci95, is_interval=True),
        Column(
            "cost", "cost", lambda point: point.cost, _against(cell, "1", lambda point: _estimate(point.cost, None))
        ),
    ]


def _costs() -> list[Column[ScalingPoint]]:
    def three_digits(read: Callable[[ScalingPoint], float | None]) -> Callable[[ScalingPoint], str]:
        return lambda point: number(read(point), 3)

    return [
        Column("gpu_hours", "GPU-h", lambda point: point.gpu_hours, three_digits(lambda point: point.gpu_hours)),
        Column("energy_kj", "kJ", lambda point: point.energy_kj, three_digits(lambda point: point.energy_kj)),
        Column(
            "energy_per_sample_j",
            "J/sample",
            lambda point: point.energy_per_sample_j,
            three_digits(lambda point: point.energy_per_sample_j),
        ),
        Column(
            "communication_share",
            "comm.",
            lambda point: point.communication_share,
            lambda point: _percent(point.communication_share, None),
        ),
    ]


def _hidden(key: str, value: Callable[[ScalingPoint], object]) -> Column[ScalingPoint]:
    """Return a column for programs alone: people find it above or below the table."""
    return Column(key, None, value)


def _estimate(value: float | None, interval: Interval | None) -> str:
    return "" if value is None else ratio(value, interval)


def _percent(value: float | None, interval: Interval | None) -> str:
    if value is None:
        return ""
    ends = "" if interval is None else f" [{interval.low * 100:.0f}, {interval.high * 100:.0f}]"
    return f"{value * 100:.0f} %{ends}"


def _change(value: float | None, interval: Interval | None) -> str:
    if value is None:
        return ""
    ends = "" if interval is None else f" [{(interval.low - 1) * 100:+.1f}, {(interval.high - 1) * 100:+.1f}]"
    return f"{(value - 1) * 100:+.1f} %{ends}"


def _cell(cell: ScalingCell) -> Section:
    where = " · ".join(alike_words(cell.where))
    table = replace(_table(cell), caption=f"{cell.kind} scaling over {cell.over}")
    charts = [_speedup(cell)] if sum(point.speedup is not None for point in cell.points) > 1 else []
    return Section(heading=f"{cell.kind} scaling · {where}", parts=[_remarks(cell), *charts, table])


def _speedup(cell: ScalingCell) -> Figure:
    measured = [point for point in cell.points if point.speedup is not None]
    base = cell.reference or measured[0].devices
    spoken = "; ".join(f"{point.devices}: {point.speedup:.3g}" for point in measured)
    columns: list[Column[ScalingPoint]] = [
        Column("devices", cell.over, lambda point: point.devices),
        Column("speedup", "speed-up", lambda point: point.speedup),
        Column("speedup_ci95", "95 % interval", lambda point: point.speedup_ci95),
    ]
    return Figure(
        title="Speed-up",
        described=f"Speed-up against {base} {one_or_many(base, cell.over)} with 95 % intervals; dashed: as many times "
        f"as fast as there are {cell.over}. {spoken}.",
        draw=partial(_speedup_plot, measured, base, cell.over),
        numbers=Listing(caption="Speed-up", columns=columns, rows=measured),
        repeats_a_table=True,
    )


def _speedup_plot(measured: Sequence[ScalingPoint], base: int, over: str) -> Plot:
    devices, values = [point.devices for point in measured], [point.speedup or 0.0 for point in measured]
    colour = level_styles(["measured"])["measured"].colour
    ticks = {"type": "log", "tickvals": devices, "ticktext": list(map(str, devices))}
    drawn = plot(x=titled(over, **ticks), y=titled("speed-up", **ticks), showlegend=False)
    drawn.add_scatter(
        mode="lines",
        x=devices,
        y=[number / base for number in devices],
        line={"dash": "dash", "color": NEUTRAL},
        hovertemplate="ideal: %{y:.3g}<extra></extra>",
    )
    drawn.add_scatter(
        mode="lines+markers",
        x=devices,
        y=values,
        error_y=_whiskers(measured) | {"color": colour},
        line={"color": colour, "width": 2},
        marker={"size": 10, "color": colour},
        hovertemplate=f"%{{x}} {over}: %{{y:.3g}}<extra></extra>",
    )
    return drawn
