"""The words and numbers of a comparison that its terminal and Markdown views share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcml.comparison import Cell, Comparison, Difference, Row, Speed
from hpcml.precision import Numerics
from hpcml.report.plain_text import decimals_for, duration, ends, number, p_value


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWords:
    """A row in words, "" where there is nothing to say; an estimate and its interval are apart, for two lines.

    All views of a comparison are made of these fields (LaTeX too): one may be added, none changes what it means.
    """

    level: str
    effective: str
    counts: str
    mean: str
    half_interval: str
    difference: str
    difference_interval: str
    p_tost: str
    verdict: str
    step_ms: str
    samples_per_s: str
    speedup: str
    speedup_interval: str
    wall: str
    p_adjusted: str = ""  # p_tost after Holm


def row_words(row: Row, cell: Cell) -> RowWords:
    """Return *row* of *cell* in words, with as many decimals as its uncertainty supports."""
    half = None if row.mean_ci95 is None else (row.mean_ci95.high - row.mean_ci95.low) / 2
    decimals = cell_decimals(cell)
    difference, speed = row.difference, row.speed
    no_speed = row.numerics if row.numerics not in (None, Numerics.native.name) else ""
    return RowWords(
        level=row.level,
        effective=", ".join(row.precision_effective),
        counts=_counts(row),
        mean="" if row.mean is None else f"{row.mean:.{decimals}f}",
        half_interval="" if half is None else f"± {half:.{decimals}f}",
        difference="" if difference is None else f"{difference.value:+.{decimals}f}",
        difference_interval="" if difference is None else ends(difference.ci90, decimals, signed=True),
        p_tost=p_value(difference.p_tost) if difference else "",
        verdict=row.verdict,
        step_ms=number(speed.step_ms) if speed else no_speed,
        samples_per_s=number(speed.samples_per_s) if speed else no_speed,
        speedup=_speedup(row, speed, no_speed),
        speedup_interval=ends(speed.speedup_ci95, 2) if speed else "",
        wall=duration(speed.wall_s) if speed else no_speed,
        p_adjusted=p_value(row.p_adjusted) if difference else "",
    )


def main_table(comparison: Comparison, cell: Cell) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of *cell* for views without the width of a terminal to keep to."""
    titles = [
        comparison.by,
        "effective",
        "n",
        f"{comparison.metric} ± 95 %",
        f"difference to {cell.reference} [90 %]",
        "p (TOST)",
        "verdict",
        "step ms",
        "samples/s",
        "speed-up [95 %]",
        "wall time",
    ]
    return titles, [_main_row(row_words(row, cell)) for row in cell.rows]


def _main_row(words: RowWords) -> list[str]:
    return [
        words.level,
        words.effective,
        words.counts,
        f"{words.mean} {words.half_interval}".strip(),
        f"{words.difference} {words.difference_interval}".strip(),
        words.p_tost,
        words.verdict,
        words.step_ms,
        words.samples_per_s,
        f"{words.speedup} {words.speedup_interval}".strip(),
        words.wall,
    ]


def cell_decimals(cell: Cell) -> int:
    """Return the decimals of all metric values in *cell*: two digits of the smallest spread that is not zero."""
    spreads = [row.sd for row in cell.rows if row.sd]
    values = [abs(row.mean) for row in cell.rows if row.mean]
    return decimals_for(min(spreads, default=None), max(values, default=None))


def heading(cell: Cell) -> str:
    """Return what all runs of *cell* have in common."""
    parts = [f"{group} {name}" for group, name in cell.where.items() if name not in ("not set", "none")]
    if cell.batch_size is not None and "training.batch_size" not in cell.where:
        parts.append(f"batch size {cell.batch_size}")
    if cell.device is not None:
        parts.append(f"device {cell.device}")
    return " · ".join(parts)


def introduction(comparison: Comparison) -> str:
    """Return what is compared on what."""
    way = "higher" if comparison.goal == "max" else "lower"
    guess = ", guessed from its name: say --goal if that is wrong" if comparison.goal_source == "metric name" else ""
    return f"{comparison.n_runs} runs by {comparison.by} · {comparison.metric}: last value, {way} is better{guess}"


def remarks(cell: Cell, comparison: Comparison) -> Iterator[str]:
    """Yield what must be known to read the table of *cell*, one line each, the gravest first."""
    for confounder in cell.confounders:
        yield f"CONFOUNDED by {confounder.kind} {confounder}"
    yield from cell.remarks
    for row in cell.rows:
        for flag in row.flags:
            yield f"{row.level}: {flag}"
    if any(row.n_ok for row in cell.rows):  # the margin is that of the runs that count
        yield _margin(cell, comparison.metric)
    yield f"differences are against {cell.reference}: 90 % intervals for the verdict; means and speed-ups 95 %"
    for row in cell.rows:
        if row.difference is not None:
            yield f"{row.level}: {_pairing(row, row.difference)}"
    yield from _sources(cell, comparison)
    if cell.steady_from_step is not None:
        yield f"step times: medians over steps {cell.steady_from_step} to {cell.steady_to_step} of every run"
    for note in cell.notes:
        yield f"note: {note}"
    for run in cell.excluded:
        yield f"not counted: {run.uid} ({run.level}): {run.reason}"


def walls(cell: Cell) -> str | None:
    """Return the wall times of whole runs, for a view without a column for them; None where none is known."""
    known = [(row.level, row.speed.wall_s) for row in cell.rows if row.speed and row.speed.wall_s is not None]
    times = ", ".join(f"{level} {duration(wall_s)}" for level, wall_s in known)
    return f"wall time of whole runs, start-up and validation included (medians): {times}" if known else None


def closing(comparison: Comparison) -> str | None:
    """Return what it means that there are many rows, or None for a single one."""
    if comparison.n_tests > 1:
        return (
            f"m = {comparison.n_tests} rows were tested: verdicts hold after Holm's adjustment over all of them; "
            "the intervals are each row's own"
        )
    n = comparison.n_comparisons
    return f"{n} comparisons: the intervals are not adjusted for their number" if n > 1 else None


def _counts(row: Row) -> str:
    selected = row.n_ok + row.n_failed + row.n_nan + row.n_without_metric + row.n_unfinished
    return str(row.n_ok) if row.n_ok == selected else f"{row.n_ok}/{selected}"


def _speedup(row: Row, speed: Speed | None, no_speed: str) -> str:
    if speed is None:
        return no_speed
    if row.verdict == "reference":
        return "" if speed.step_ms is None else "1"
    return "" if speed.speedup is None else f"{speed.speedup:.2f}"


def _margin(cell: Cell, metric: str) -> str:
    if cell.margin is None:
        return f"no margin was fixed beforehand for {metric} (objective.margin): no verdict on equivalence"
    source = "fixed in the configuration" if cell.margin_source == "config" else "given on the command line, afterwards"
    return f"margin {cell.margin:g} in {metric}, {source}"


def _pairing(row: Row, difference: Difference) -> str:
    if difference.ci90 is None:
        return "one seed in an arm: no interval, and one run each cannot show it"
    how = "paired by seed" if difference.paired else "unpaired"
    rho = f", rho {difference.rho:+.2f}" if difference.rho is not None else ""
    p = f", p of TOST {p_value(difference.p_tost)}" if difference.p_tost is not None else ""
    if p_value(row.p_adjusted) != p_value(difference.p_tost) and row.p_adjusted is not None:
        p += f" (after Holm {p_value(row.p_adjusted)})"
    chance = f", P(not worse by the margin) {row.p_not_worse:.2f}" if row.p_not_worse is not None else ""
    return how + rho + p + chance


def _sources(cell: Cell, comparison: Comparison) -> Iterator[str]:
    """Yield where the numbers below the table are from: target, energy, CO2 and peaks."""
    races = [row.to_target for row in cell.rows if row.to_target is not None]
    if races:
        source = "fixed in the configuration" if cell.target_source == "config" else "given on the command line"
        budgets = [race.budget_s for race in races if race.budget_s is not None]
        restricted = f"; restricted means are up to {duration(budgets[0])}" if budgets else ""
        yield f"target {races[0].target:g} in {comparison.metric}, {source}{restricted}; who broke off never got there"
        bases = {race.energy_basis for race in races if race.energy_basis is not None}
        if "share of time" in bases:
            yield "energy to the target: of the run's energy, by the share of its time"
    costs = [row.cost for row in cell.rows if row.cost is not None]
    methods = {(c.energy_method or "method not recorded", c.energy_scope or "scope not recorded") for c in costs if c.n}
    if methods:
        said = "; ".join(f"{method}, of the {scope}" for method, scope in sorted(methods))
        yield f"energy: of the GPUs' boards alone ({said}), medians over seeds of whole runs"
    for source in sorted({cost.co2_source for cost in costs if cost.co2_source is not None}):
        yield f"CO2: of that energy, {source}"
    bases_of_peaks = {row.load.peak_basis for row in cell.rows if row.load is not None and row.load.peak_basis}
    if bases_of_peaks:
        yield f"peak: dense, of one GPU in the measured precision ({', '.join(sorted(bases_of_peaks))})"
