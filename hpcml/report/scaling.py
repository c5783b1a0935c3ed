"""`hpcml scaling` as a document, and the section of a scaling study in `hpcml report`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hpcml.codec import encode
from hpcml.model.comparison import Interval
from hpcml.model.scaling import Scaling, ScalingCell, ScalingPoint
from hpcml.model.told_apart import alike_words
from hpcml.report.charts import NEUTRAL, level_styles, plot, titled
from hpcml.report.document import Column, Document, Figure, Listing, Remarks, Section, Tone
from hpcml.report.quantities import (
    Entry,
    Quantity,
    Short,
    Value,
    between,
    derived,
    fixed,
    flat_line,
    flat_listing,
    report_table,
    share,
    short_table,
    words,
)
from hpcml.report.text import number, ratio, ratio_decimals
from hpcml.report.text_charts import bar
from hpcml.units import one_or_many

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

FORMAT = 1  # of JSON; grows when a key changes its meaning or goes
_REPORT = "report"
_BAR_WIDTH = 10


def scaling_document(scaling: Scaling) -> Document:
    """Return the document of ``hpcml scaling``: for each cell a table and conclusions, then those over all cells.

    A cell has the runs that are alike but for the number of devices, and a line for each number. Speed-up and
    efficiency are against the reference of the cell; the efficiency of perfect scaling is 1.
    """
    wheres = list(dict.fromkeys(key for cell in scaling.cells for key in cell.where))
    told = [(cell, _quantities(cell, wheres)) for cell in scaling.cells]
    said = [*scaling.pays_from, *scaling.remarks]
    strong: list[Tone] = ["strong"] * len(scaling.pays_from)
    plain: list[Tone] = ["plain"] * len(scaling.remarks)
    record = encode(scaling)
    for encoded, (cell, quantities) in zip(record["cells"], told, strict=True):
        for one, point in zip(encoded["points"], cell.points, strict=True):
            one.update(derived(quantities, point))
    return Document(
        introduction=f"{scaling.n_runs} runs over {scaling.over} · against the reference by seed, 95 % intervals by t "
        "on logarithms",
        sections=[
            *(
                Section(heading=_heading(cell), parts=[short_table(its, cell.points), _remarks(cell)])
                for cell, its in told
            ),
            *([Section(heading="", parts=[Remarks(lines=said, tones=[*strong, *plain])])] if said else []),
        ],
        record={"format": FORMAT, **record},
        data=[flat_listing([flat_line(its, point) for cell, its in told for point in cell.points])],
    )


def scaling_section(scaling: Scaling) -> Section:
    """Return the section of a report: the conclusions, then a chart and a table for each cell.

    The table has every number of devices, also those whose runs have no speed.
    """
    said = [*scaling.pays_from, *scaling.remarks]
    parts = [Remarks(lines=said)] if said else []
    return Section(
        heading=f"Scaling over {scaling.over}", parts=parts, sections=[_cell(cell) for cell in scaling.cells]
    )


def _heading(cell: ScalingCell) -> str:
    is_known = any(key.startswith("batch size") for key in cell.where)
    same = "one batch for all" if is_known else "one setting for all, and the batch, if any, is the program's own"
    kind = f"strong scaling: {same}" if cell.kind == "strong" else "weak scaling: the batch grows"
    parts = alike_words(cell.where)
    return " · ".join([kind, *parts, *([f"device {cell.device}"] if cell.device else [])])


def _remarks(cell: ScalingCell) -> Remarks:
    """Return the conclusions, then what is needed to read the table of *cell*, the most important first."""
    lines = list(_doubts(cell))
    tones: list[Tone] = ["bad" if line.startswith("CONFOUNDED") else "faint" for line in lines]
    concluded: list[Tone] = ["conclusion"] * len(cell.sentences)
    return Remarks(lines=[*cell.sentences, *lines], tones=[*concluded, *tones])


def _doubts(cell: ScalingCell) -> Iterator[str]:
    for confounder in cell.confounders:
        yield f"CONFOUNDED by {confounder.kind} {confounder}"
    yield from cell.remarks
    for point in cell.points:
        for flag in point.flags:
            yield f"{point.devices}: {flag}"
    if cell.steady_from_step is not None:
        yield f"step times: medians over steps {cell.steady_from_step} to {cell.steady_to_step} of every run"
    for note in cell.notes:
        yield f"note: {note}"
    for run in cell.excluded:
        yield f"no speed: {run.uid} ({run.level}): {run.reason}"


def _quantities(cell: ScalingCell, wheres: Sequence[str]) -> list[Quantity[ScalingPoint]]:
    """Return the quantities of each number of devices, in the order of the columns in CSV."""
    fit = cell.fit
    return [
        _hidden("kind", lambda _: cell.kind),
        _hidden("over", lambda _: cell.over),
        *(_hidden(key, partial(lambda value, _: value, cell.where.get(key))) for key in wheres),
        _hidden("device", lambda _: cell.device),
        _hidden("reference", lambda _: cell.reference),
        *_counts(cell),
        *_speeds(cell), *_efficiencies(cell),
        *_costs(),
        _hidden("serial_share", lambda _: fit.share if fit else None),
        Quantity(key="serial_share_ci95", kind="interval", value=lambda _: fit.ci95 if fit else None, short=None),
        _hidden("no_help_beyond", lambda _: cell.no_help_beyond),
        Quantity(key="flags", heading="remarks", kind="text", value=lambda point: "; ".join(point.flags),
                 section=_REPORT, order=9, short=None),
        _hidden("confounders", lambda _: "; ".join(map(str, cell.confounders))),
    ]  # fmt: skip


def _counts(cell: ScalingCell) -> list[Quantity[ScalingPoint]]:
    def of_ended(point: ScalingPoint) -> Entry:
        ended = point.n + point.n_failed + point.n_unfinished
        return words(point.n if point.n == ended else f"{point.n}/{ended}")

    return [
        Quantity(key="devices", heading=cell.over, value=lambda point: point.devices, section=_REPORT, order=-9,
                 short=Short()),
        Quantity(key="n", heading="seeds", value=lambda point: point.n, section=_REPORT, order=8,
                 short=Short(heading="n", write=of_ended, is_number=False)),
        Quantity(key="n_failed", heading="failed", value=lambda point: point.n_failed, section=_REPORT, order=8,
                 short=None),
        _hidden("n_unfinished", lambda point: point.n_unfinished),
        Quantity(key="batch_size", heading="batch size", value=lambda point: point.batch_size, section=_REPORT,
                 order=4, short=Short(heading="batch")),
    ]  # fmt: skip


def _against(cell: ScalingCell, text: str, write: Callable[[ScalingPoint], str]) -> Callable[[ScalingPoint], Entry]:
    """Return what writes *text* for the reference itself."""
    return lambda point: words(text if point.devices == cell.reference else write(point))


def _speeds(cell: ScalingCell) -> list[Quantity[ScalingPoint]]:
    return [
        Quantity(key="step_ms", heading="step", unit="ms", value=lambda point: point.step_ms, section=_REPORT, order=2,
                 short=Short(heading="step ms")),
        Quantity(key="samples_per_s", heading="samples", unit="1/s", value=lambda point: point.samples_per_s,
                 section=_REPORT, order=2, short=Short(heading="samples/s")),
        Quantity(
            key="speedup",
            heading="speed-up",
            value=lambda point: point.speedup,
            write=lambda point: fixed(point.speedup, ratio_decimals(point.speedup_ci95)),
            section=_REPORT,
            order=1,
            short=Short(
                heading="speed-up [95 %]",
                write=_against(cell, "1", lambda point: _estimate(point.speedup, point.speedup_ci95)),
            ),
        ),
        _interval("speedup_ci95", lambda point: point.speedup_ci95, order=1),
        _hidden("paired", lambda point: point.paired),
        _hidden("speedup_unit", lambda point: point.speedup_unit),
    ]  # fmt: skip


def _efficiencies(cell: ScalingCell) -> list[Quantity[ScalingPoint]]:
    def used(point: ScalingPoint) -> Entry:
        efficiency = 1.0 if point.devices == cell.reference else point.efficiency
        return Entry(text=bar(efficiency, width=_BAR_WIDTH, is_plain=False), order=efficiency)

    return [
        Quantity(
            key="efficiency",
            heading="efficiency",
            unit="%",
            value=lambda point: point.efficiency,
            write=lambda point: share(point.efficiency),
            section=_REPORT,
            order=1,
            short=Short(
                heading="efficiency [95 %]",
                write=_against(cell, "100 %", lambda point: _percent(point.efficiency, point.efficiency_ci95)),
            ),
        ),
        Quantity(key="efficiency_ci95", kind="interval", value=lambda point: point.efficiency_ci95, short=None),
        Quantity(heading="used", kind="bar", short=Short(write=used)),
        Quantity(
            key="gain",
            heading="gain over the next smaller",
            unit="ratio",
            value=lambda point: point.gain,
            write=lambda point: fixed(point.gain, ratio_decimals(point.gain_ci95)),
            section=_REPORT,
            order=3,
            short=Short(
                heading="gain [95 %]", write=lambda point: words(_change(point.gain, point.gain_ci95))
            ),
        ),
        _interval("gain_ci95", lambda point: point.gain_ci95, order=3),
        Quantity(
            key="cost",
            heading="device-hours per sample",
            unit="ratio",
            value=lambda point: point.cost,
            write=lambda point: fixed(point.cost, 2),
            section=_REPORT,
            order=5,
            short=Short(heading="cost", write=_against(cell, "1", lambda point: _estimate(point.cost, None))),
        ),
    ]  # fmt: skip


def _costs() -> list[Quantity[ScalingPoint]]:
    return [
        Quantity(key="gpu_hours", heading="GPU-hours", value=lambda point: point.gpu_hours, section=_REPORT, order=5,
                 short=Short(heading="GPU-h", write=lambda point: words(number(point.gpu_hours, 3)), order=2)),
        Quantity(key="energy_kj", heading="energy", unit="kJ", value=lambda point: point.energy_kj, section=_REPORT,
                 order=5, short=Short(heading="kJ", write=lambda point: words(number(point.energy_kj, 3)), order=2)),
        Quantity(key="energy_per_sample_j", value=lambda point: point.energy_per_sample_j,
                 short=Short(heading="J/sample", write=lambda point: words(number(point.energy_per_sample_j, 3)),
                             order=2)),
        Quantity(
            key="communication_share",
            heading="communication",
            unit="%",
            value=lambda point: point.communication_share,
            write=lambda point: share(point.communication_share),
            section=_REPORT,
            order=6,
            short=Short(
                heading="comm.", write=lambda point: words(_percent(point.communication_share, None)), order=1
            ),
        ),
    ]  # fmt: skip


def _hidden(key: str, value: Callable[[ScalingPoint], Value]) -> Quantity[ScalingPoint]:
    """Return a quantity for CSV and JSON alone: people find it above or below the table."""
    return Quantity(key=key, kind="text", value=value, short=None)


def _interval(key: str, value: Callable[[ScalingPoint], Interval | None], *, order: int) -> Quantity[ScalingPoint]:
    return Quantity(
        key=key,
        heading="95 % interval",
        kind="interval",
        value=value,
        write=lambda point: between(found := value(point), ratio_decimals(found)),
        section=_REPORT,
        order=order,
        short=None,
    )


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
    lines = [*cell.sentences, *cell.remarks, *(f"CONFOUNDED by {each.kind} {each}" for each in cell.confounders)]
    chosen = [each for each in _quantities(cell, []) if each.section == _REPORT]
    table = report_table(f"{cell.kind} scaling over {cell.over}", chosen, cell.points, keeps_empty=True)
    charts = [_speedup(cell)] if sum(point.speedup is not None for point in cell.points) > 1 else []
    return Section(heading=f"{cell.kind} scaling · {where}", parts=[Remarks(lines=lines), *charts, table])


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
    ends = [(point.speedup_ci95, value) for point, value in zip(measured, values, strict=True)]
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
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [0 if ci is None else ci.high - value for ci, value in ends],
            "arrayminus": [0 if ci is None else value - ci.low for ci, value in ends],
            "color": colour,
        },
        line={"color": colour, "width": 2},
        marker={"size": 10, "color": colour},
        hovertemplate=f"%{{x}} {over}: %{{y:.3g}}<extra></extra>",
    )
    return drawn
