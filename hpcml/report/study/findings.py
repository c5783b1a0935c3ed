"""What a comparison concludes, a finding for each row against the reference."""

from __future__ import annotations

from collections.abc import Iterator

from hpcml.comparison import Cell, Comparison, Interval, Row
from hpcml.report.comparison_cells import cell_decimals, heading
from hpcml.report.plain_text import ends
from hpcml.report.study.entries import VERDICT_TONES
from hpcml.report.study.parts import Finding


def findings_of(comparison: Comparison) -> Iterator[Finding]:
    """Yield what each row says against its reference, cell by cell."""
    for cell in comparison.cells:
        for row in cell.rows:
            if row.verdict != "reference":
                yield _finding(comparison, cell, row)


def _finding(comparison: Comparison, cell: Cell, row: Row) -> Finding:
    said = [_metric(comparison, cell, row), *_ratios(cell, row)]
    doubts = [f"CONFOUNDED by {each.kind} {each}" for each in cell.confounders]
    return Finding(
        verdict=row.verdict,
        tone=VERDICT_TONES.get(row.verdict, "plain"),
        about=f"{row.level} against {cell.reference} · {heading(cell)}",
        text="; ".join(said) + ".",
        doubts=[*doubts, *row.flags],
    )


def _metric(comparison: Comparison, cell: Cell, row: Row) -> str:
    if row.difference is None:
        return f"no difference in {comparison.metric} can be told: {_counts(row)}"
    decimals = cell_decimals(cell)
    difference = row.difference
    interval = "" if difference.ci90 is None else f" {ends(difference.ci90, decimals, signed=True)} (90 %)"
    margin = "" if cell.margin is None else f", margin {cell.margin:g}"
    return f"difference in {comparison.metric} {difference.value:+.{decimals}f}{interval}{margin}, {_counts(row)}"


def _counts(row: Row) -> str:
    selected = row.n_ok + row.n_failed + row.n_nan + row.n_without_metric + row.n_unfinished
    return f"n = {row.n_ok}" if row.n_ok == selected else f"{row.n_ok} of {selected} runs count"


def _ratios(cell: Cell, row: Row) -> Iterator[str]:
    if row.speed and row.speed.speedup is not None:
        yield f"{_ratio(row.speed.speedup, row.speed.speedup_ci95)} times as fast as {cell.reference}"
    if row.cost and row.cost.energy_ratio is not None:
        yield f"{_ratio(row.cost.energy_ratio, row.cost.energy_ratio_ci95)} times its energy per sample"
    if row.to_target and row.to_target.ratio is not None:
        reached = f"reached {row.to_target.target:g} in {row.to_target.reached} of {row.to_target.n} runs"
        yield f"{_ratio(row.to_target.ratio, row.to_target.ratio_ci95)} times its time to the target ({reached})"


def _ratio(value: float, interval: Interval | None) -> str:
    return f"{value:.2f}" + ("" if interval is None else f" {ends(interval, 2)}")
