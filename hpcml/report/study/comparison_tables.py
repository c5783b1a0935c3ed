"""The tables of one cell of a comparison: every number that it has, in groups that belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcml.comparison import Cell, Comparison, Cost, Load, Row, Speed, ToTarget
from hpcml.precision import Numerics
from hpcml.report.comparison_cells import cell_decimals
from hpcml.report.plain_text import p_value
from hpcml.report.study.entries import (
    NOTHING,
    VERDICT_TONES,
    between,
    figure,
    fixed,
    number_column,
    share,
    span,
    text_column,
    words,
)
from hpcml.report.study.parts import Column, Entry, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    column: Column
    entry: Callable[[Row], Entry]


def outcome_table(comparison: Comparison, cell: Cell) -> Table:
    """Return the metric of each row against the reference."""
    decimals, metric = cell_decimals(cell), comparison.metric
    fields = [
        _Field(
            column=text_column("verdict"), entry=lambda row: words(row.verdict, VERDICT_TONES.get(row.verdict, "plain"))
        ),
        _Field(column=text_column("effective precision"), entry=lambda row: words(", ".join(row.precision_effective))),
        _Field(column=text_column("numerics"), entry=lambda row: words(row.numerics)),
        _Field(column=number_column("n"), entry=lambda row: figure(row.n_ok)),
        _Field(column=number_column("failed"), entry=lambda row: figure(row.n_failed)),
        _Field(column=number_column("NaN"), entry=lambda row: figure(row.n_nan)),
        _Field(column=number_column("no metric"), entry=lambda row: figure(row.n_without_metric or None)),
        _Field(column=number_column("unfinished"), entry=lambda row: figure(row.n_unfinished or None)),
        _Field(column=number_column(f"{metric}, mean"), entry=lambda row: fixed(row.mean, decimals)),
        _Field(column=number_column("95 % interval"), entry=lambda row: between(row.mean_ci95, decimals)),
        _Field(column=number_column("sd"), entry=lambda row: fixed(row.sd, decimals + 1)),
        _Field(
            column=number_column(f"difference to {cell.reference}"),
            entry=lambda row: fixed(row.difference.value, decimals, signed=True) if row.difference else NOTHING,
        ),
        _Field(
            column=number_column("90 % interval"),
            entry=lambda row: between(row.difference.ci90, decimals, signed=True) if row.difference else NOTHING,
        ),
        _Field(column=text_column("pairing"), entry=_pairing),
        _Field(column=number_column("p (TOST)"), entry=_p_tost),
        _Field(column=number_column("p, Holm"), entry=lambda row: _p(row.p_adjusted)),
        _Field(column=number_column("P(not worse)"), entry=lambda row: fixed(row.p_not_worse, 2)),
    ]
    margin = "no margin was fixed" if cell.margin is None else f"margin {cell.margin:g}"
    return _table(f"{metric} against {cell.reference}; {margin}", comparison, cell.rows, fields)


def speed_table(comparison: Comparison, cell: Cell) -> Table | None:
    """Return how fast the rows were; None where no row has a speed."""

    def of(read: Callable[[Speed], Entry]) -> Callable[[Row], Entry]:
        return lambda row: read(row.speed) if row.speed else NOTHING

    fields = [
        _Field(column=text_column("no speed because"), entry=_why_no_speed),
        _Field(column=number_column("step", "ms"), entry=of(lambda speed: figure(speed.step_ms))),
        _Field(column=number_column("5 % of steps below", "ms"), entry=of(lambda speed: figure(speed.step_ms_p5))),
        _Field(column=number_column("5 % of steps above", "ms"), entry=of(lambda speed: figure(speed.step_ms_p95))),
        _Field(column=number_column("samples", "1/s"), entry=of(lambda speed: figure(speed.samples_per_s))),
        _Field(column=number_column("speed-up"), entry=_speedup),
        _Field(column=number_column("95 % interval"), entry=of(lambda speed: between(speed.speedup_ci95, 2))),
        _Field(column=text_column("pairing"), entry=of(lambda speed: _paired(speed.speedup_paired))),
        _Field(column=number_column("seeds"), entry=of(lambda speed: figure(speed.n))),
        _Field(column=number_column("whole run"), entry=of(lambda speed: span(speed.wall_s))),
        _Field(column=number_column("score (MLPerf)"), entry=lambda row: figure(row.score)),
    ]
    if not any(row.speed or row.score is not None for row in cell.rows):
        return None
    return _table(f"Speed in steady state; speed-up against {cell.reference}", comparison, cell.rows, fields)


def cost_table(comparison: Comparison, cell: Cell) -> Table | None:
    """Return what the rows took; None where nothing is known of any."""

    def of(read: Callable[[Cost], Entry]) -> Callable[[Row], Entry]:
        return lambda row: read(row.cost) if row.cost else NOTHING

    fields = [
        _Field(column=number_column("GPU-hours"), entry=of(lambda cost: figure(cost.gpu_hours))),
        _Field(column=number_column("energy", "kJ"), entry=of(lambda cost: figure(cost.energy_kj))),
        _Field(column=text_column("measured by"), entry=of(lambda cost: words(cost.energy_method))),
        _Field(column=text_column("scope"), entry=of(lambda cost: words(cost.energy_scope))),
        _Field(column=number_column("energy", "J/sample"), entry=of(lambda cost: figure(cost.energy_per_sample_j))),
        _Field(column=number_column("energy ratio"), entry=of(lambda cost: fixed(cost.energy_ratio, 3))),
        _Field(column=number_column("95 % interval"), entry=of(lambda cost: between(cost.energy_ratio_ci95, 3))),
        _Field(column=number_column("CO2", "g"), entry=of(lambda cost: figure(cost.co2_g))),
        _Field(column=text_column("CO2 factor from"), entry=of(lambda cost: words(cost.co2_source))),
        _Field(column=number_column("seeds with energy"), entry=of(lambda cost: figure(cost.n or None))),
    ]
    rows = [row for row in cell.rows if row.cost is not None]
    return _known(_table("Cost of whole runs, GPU boards only, medians over seeds", comparison, rows, fields))


def load_table(comparison: Comparison, cell: Cell) -> Table | None:
    """Return how hard the rows worked their devices; None where nothing is known of any."""

    def of(read: Callable[[Load], Entry]) -> Callable[[Row], Entry]:
        return lambda row: read(row.load) if row.load else NOTHING

    fields = [
        _Field(column=number_column("mean power", "W"), entry=of(lambda load: figure(load.mean_power_w))),
        _Field(column=number_column("of the limit", "%"), entry=of(_of_limit)),
        _Field(column=number_column("throttled, power", "%"), entry=of(lambda load: share(load.throttled_power_share))),
        _Field(
            column=number_column("throttled, heat", "%"), entry=of(lambda load: share(load.throttled_thermal_share))
        ),
        _Field(column=number_column("SM clock", "MHz"), entry=of(lambda load: figure(load.sm_mhz))),
        _Field(column=number_column("GPU busy", "%"), entry=of(lambda load: figure(load.util_percent, 3))),
        _Field(column=number_column("tensor cores busy", "%"), entry=of(lambda load: figure(load.tensor_percent, 3))),
        _Field(column=number_column("peak memory", "MiB"), entry=of(lambda load: figure(load.peak_memory_mb))),
        _Field(column=number_column("achieved", "TFLOP/s"), entry=of(lambda load: figure(load.achieved_tflops))),
        _Field(column=number_column("peak", "TFLOP/s"), entry=of(lambda load: figure(load.peak_tflops))),
        _Field(column=text_column("peak from"), entry=of(lambda load: words(load.peak_basis))),
        _Field(column=number_column("MFU", "%"), entry=of(lambda load: share(load.mfu))),
        _Field(column=number_column("waiting for input", "%"), entry=of(lambda load: share(load.data_share))),
        _Field(column=number_column("communication", "%"), entry=of(lambda load: share(load.communication_share))),
        _Field(column=number_column("skipped steps"), entry=of(lambda load: figure(load.skipped_steps))),
        _Field(column=text_column("limited by"), entry=of(lambda load: words(load.limited_by))),
    ]
    rows = [row for row in cell.rows if row.load is not None]
    return _known(_table("Load of one device, medians over seeds", comparison, rows, fields))


def target_table(comparison: Comparison, cell: Cell) -> Table | None:
    """Return when the rows reached the target; None where there is none."""

    def of(read: Callable[[ToTarget], Entry]) -> Callable[[Row], Entry]:
        return lambda row: read(row.to_target) if row.to_target else NOTHING

    targets = [row.to_target.target for row in cell.rows if row.to_target]
    if not targets:
        return None
    fields = [
        _Field(
            column=number_column("reached it"),
            entry=of(lambda to: Entry(text=f"{to.reached} of {to.n}", order=to.reached / to.n if to.n else 0.0)),
        ),
        _Field(column=number_column("median time"), entry=of(lambda to: span(to.median_s))),
        _Field(column=number_column("mean up to the budget"), entry=of(lambda to: span(to.restricted_mean_s))),
        _Field(column=number_column("budget"), entry=of(lambda to: span(to.budget_s))),
        _Field(column=number_column("time ratio"), entry=of(lambda to: fixed(to.ratio, 3))),
        _Field(column=number_column("95 % interval"), entry=of(lambda to: between(to.ratio_ci95, 3))),
        _Field(column=number_column("median energy", "kJ"), entry=of(lambda to: figure(to.median_kj))),
        _Field(column=text_column("energy by"), entry=of(lambda to: words(to.energy_basis))),
    ]
    caption = f"Time until {comparison.metric} first reached {targets[0]:g}; runs that never did are counted"
    return _table(caption, comparison, [row for row in cell.rows if row.to_target is not None], fields)


def _table(caption: str, comparison: Comparison, rows: Sequence[Row], fields: Sequence[_Field]) -> Table:
    """Return the table without the columns in which nothing stands."""
    lines = [[field.entry(row) for field in fields] for row in rows]
    shown = [at for at in range(len(fields)) if any(line[at].text for line in lines)]
    columns = [text_column(comparison.by), *(fields[at].column for at in shown)]
    entries = [[words(row.level), *(line[at] for at in shown)] for row, line in zip(rows, lines, strict=True)]
    return Table(caption=caption, columns=columns, rows=entries)


def _known(table: Table) -> Table | None:
    return table if len(table.columns) > 1 else None


def _pairing(row: Row) -> Entry:
    if row.difference is None:
        return NOTHING
    rho = "" if row.difference.rho is None else f", rho {row.difference.rho:+.2f}"
    return Entry(text=f"{'by seed' if row.difference.paired else 'none'}{rho}")


def _paired(is_paired: bool | None) -> Entry:  # noqa: FBT001 - a value of the table
    return NOTHING if is_paired is None else Entry(text="by seed" if is_paired else "none")


def _p_tost(row: Row) -> Entry:
    return _p(row.difference.p_tost if row.difference else None)


def _p(value: float | None) -> Entry:
    return NOTHING if value is None else Entry(text=p_value(value), order=value)


def _speedup(row: Row) -> Entry:
    if row.speed is None or row.speed.step_ms is None:
        return NOTHING
    return Entry(text="1", order=1.0) if row.verdict == "reference" else fixed(row.speed.speedup, 2)


def _why_no_speed(row: Row) -> Entry:
    if row.speed is not None:
        return NOTHING
    return Entry(text="no run counts" if row.numerics is None else f"{row.numerics}, not {Numerics.native.name}")


def _of_limit(load: Load) -> Entry:
    if load.mean_power_w is None or not load.power_limit_w:
        return NOTHING
    return share(load.mean_power_w / load.power_limit_w)
