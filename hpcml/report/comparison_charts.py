"""The charts of one cell of a comparison: differences, speed and energy, each with its intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcml.analysis.compare.result import Cell, Comparison, Interval, Row
from hpcml.report.charts import LevelValue, Styles, bars, dots
from hpcml.report.comparison_columns import margin_of, unit_of_difference
from hpcml.report.document import Figure


def comparison_charts(comparison: Comparison, cell: Cell, styles: Styles) -> list[Figure]:
    """Return the charts of *cell*; what is not known of any row has none.

    Differences have 90 % intervals, ratios 95 %.
    """
    charts = [
        _differences(comparison, cell, styles),
        _ratios(
            f"Speed-up against {cell.reference}",
            cell,
            styles,
            lambda row: (row.speed.speedup, row.speed.speedup_ci95) if row.speed else None,
        ),
        _bars("Time of a step", "ms", "5 % and 95 % of the steps", cell, styles, _step),
        _ratios(
            f"Energy per sample against {cell.reference}",
            cell,
            styles,
            lambda row: (row.cost.energy_ratio, row.cost.energy_ratio_ci95) if row.cost else None,
        ),
        _bars("Energy per sample", "J", "", cell, styles, _energy),
    ]
    return [chart for chart in charts if chart is not None]


def _differences(comparison: Comparison, cell: Cell, styles: Styles) -> Figure | None:
    measured = [
        _with(row.level, row.difference.value, row.difference.ci90) for row in cell.rows if row.difference is not None
    ]
    if not measured:
        return None
    shaded = "" if cell.margin is None else f"; shaded: the margin of ±{margin_of(cell)}"
    return dots(
        f"{comparison.metric} minus that of {cell.reference}",
        unit_of_difference(cell).strip(),
        f"90 % interval{shaded}",
        measured,
        styles,
        line_at=0.0,
        within=None if cell.margin is None else (-cell.margin, cell.margin),
    )


def _ratios(
    title: str, cell: Cell, styles: Styles, read: Callable[[Row], tuple[float | None, Interval | None] | None]
) -> Figure | None:
    found = [(row.level, read(row)) for row in cell.rows]
    measured = [_with(level, one[0], one[1]) for level, one in found if one is not None and one[0] is not None]
    return dots(title, "", "95 % interval", measured, styles, line_at=1.0) if measured else None


def _bars(
    title: str, unit: str, whiskers: str, cell: Cell, styles: Styles, read: Callable[[Row], LevelValue | None]
) -> Figure | None:
    measured: Sequence[LevelValue] = [one for one in map(read, cell.rows) if one is not None]
    return bars(title, unit, whiskers, measured, styles) if measured else None


def _step(row: Row) -> LevelValue | None:
    if row.speed is None or row.speed.step_ms is None:
        return None
    return LevelValue(level=row.level, value=row.speed.step_ms, low=row.speed.step_ms_p5, high=row.speed.step_ms_p95)


def _energy(row: Row) -> LevelValue | None:
    if row.cost is None or row.cost.energy_per_sample_j is None:
        return None
    return LevelValue(level=row.level, value=row.cost.energy_per_sample_j)


def _with(level: str, value: float | None, interval: Interval | None) -> LevelValue:
    assert value is not None
    return LevelValue(
        level=level, value=value, low=interval.low if interval else None, high=interval.high if interval else None
    )
