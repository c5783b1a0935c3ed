"""`hpcml compare` as a document, and the section of a comparison in `hpcml report`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from hpcml.codec import Json, encode
from hpcml.model.comparison import OTHER_UNITS, Cell, Comparison, Difference, Row
from hpcml.model.metric_goal import goal_by_name
from hpcml.report.charts import Styles
from hpcml.report.comparison_charts import comparison_charts
from hpcml.report.comparison_costs import COST, LOAD, NAME, OUTCOME, SPEED, TARGET
from hpcml.report.comparison_rows import RowQuantities, row_quantities
from hpcml.report.document import Document, Listing, Paragraph, Part, Remarks, Section, Tone
from hpcml.report.finding import AFTERWARDS, ENOUGH_IS_SAID, heading, of_all, sentence
from hpcml.report.quantities import (
    Quantity,
    derived,
    flat_line,
    flat_listing,
    line_table,
    report_table,
    short_table,
    tallied,
)
from hpcml.report.text import duration, p_value

_MOST_REMARKS = 3
_FEW = 2  # rows that are named instead of all others
_COARSE = 3  # steps of the metric
_RESOLUTION_FROM = {"config": "as configured", "recorded": "as recorded"}
FORMAT = 1  # of JSON; grows when a key changes its meaning or goes


def comparison_document(
    comparison: Comparison, quantities: RowQuantities = row_quantities, *, explain: bool = False
) -> Document:
    """Return the document of ``hpcml compare``: for each cell what was found, a table, its costs, and remarks.

    A cell has the runs that are alike in everything but the compared setting, and a row for each of its values. Of the
    remarks at most three are shown, those that change what a reader should think; *explain* shows all.
    *quantities* makes the columns, in the order of CSV; a test gives its own.
    """
    warning = closing(comparison)
    told = [(cell, quantities(comparison, cell)) for cell in comparison.cells]
    return Document(
        introduction=introduction(comparison),
        sections=[
            *(_cell(comparison, cell, its, explain=explain) for cell, its in told),
            *(Section(heading="", parts=[part]) for part in _left_out(comparison)),
            *([Section(heading="", parts=[Paragraph(text=warning)])] if warning is not None and explain else []),
        ],
        record=_record(comparison, told),
        data=[flat_listing([flat_line(its, row) for cell, its in told for row in cell.rows])],
    )


def _left_out(comparison: Comparison) -> Iterator[Part]:
    """Yield the line that counts the runs that have nothing to do with the question."""
    counts = Counter(run.reason for run in comparison.excluded)
    told = "; ".join(f"{n} run{'s'[: n != 1]} {why}" for why, n in sorted(counts.items()))
    if told:
        yield Paragraph(text=f"left out: {told}")


def _cell(comparison: Comparison, cell: Cell, quantities: Sequence[Quantity[Row]], *, explain: bool) -> Section:
    below = line_table(quantities, cell.rows, [row.level for row in cell.rows])
    whole_runs = walls(cell)
    judged = [row for row in cell.rows if row.verdict != "reference"]
    found = [f"{verdict}: {who}" for verdict, who in tallied([(row.verdict, row.level) for row in judged])]
    found += [words] if found and (words := of_all(cell, judged)) else []
    if explain or not found:
        found += [f"{row.level}: {sentence(comparison, cell, row)}" for row in judged]
    parts: list[Part] = [Remarks(lines=found, tones=["conclusion"] * len(found))] if found else []
    parts.append(short_table(quantities, cell.rows))
    parts += [below] if below is not None else []
    parts.append(_remarks(comparison, cell, most=None if explain else _MOST_REMARKS))
    parts += [Remarks(lines=[whole_runs])] if whole_runs is not None and explain else []
    return Section(heading=heading(cell), parts=parts)


def _record(comparison: Comparison, told: Sequence[tuple[Cell, Sequence[Quantity[Row]]]]) -> Mapping[str, Json]:
    """Return the comparison's fields for JSON, with the derived quantities in its rows."""
    record = encode(comparison)
    for encoded, (cell, quantities) in zip(record["cells"], told, strict=True):
        for one, row in zip(encoded["rows"], cell.rows, strict=True):
            one.update(derived(quantities, row))
    return {"format": FORMAT, **record}


def comparison_section(comparison: Comparison, styles: Styles, quantities: RowQuantities = row_quantities) -> Section:
    """Return the section of a report: for each cell tables with every number, charts, and remarks.

    *styles* has the style of every level, the same as in the other charts of the report. A cell has a table for each
    subject (outcome, speed, cost, load, time to the target) of which something is known.
    """
    cells = [
        Section(
            heading=heading(cell) or "all runs",
            parts=[
                *_tables(comparison, cell, quantities(comparison, cell)),
                *comparison_charts(comparison, cell, styles),
                _remarks(comparison, cell, is_beside_tables=True),
            ],
        )
        for cell in comparison.cells
    ]
    return Section(heading=f"Comparison by {comparison.by}", parts=list(_left_out(comparison)), sections=cells)


def _tables(comparison: Comparison, cell: Cell, quantities: Sequence[Quantity[Row]]) -> Iterator[Listing[Any]]:
    """Yield a report's tables of *cell*; after the first only those that are not empty."""

    def table(section: str, caption: str, rows: Sequence[Row]) -> Listing[Any]:
        chosen = [quantity for quantity in quantities if quantity.section in (NAME, section)]
        return report_table(caption, chosen, rows)

    margin = "no margin was fixed" if cell.margin is None else f"margin {cell.margin:g}"
    yield table(OUTCOME, f"{comparison.metric} against {cell.reference}; {margin}", cell.rows)
    if any(row.speed for row in cell.rows):
        is_steady = any(row.speed is not None and row.speed.n for row in cell.rows)
        steady = f"Speed in steady state; speed-up against {cell.reference}"
        yield table(SPEED, steady if is_steady else "Time of whole runs, medians over seeds", cell.rows)
    costs = [row for row in cell.rows if row.cost is not None]
    loads = [row for row in cell.rows if row.load is not None]
    for each in (
        table(COST, "Cost of whole runs, GPU boards only, medians over seeds", costs),
        table(LOAD, "Load of one device, medians over seeds", loads),
    ):
        if len(each.columns) > 1:
            yield each
    races = [row for row in cell.rows if row.to_target is not None]
    targets = [row.to_target.target for row in races if row.to_target is not None]
    if targets:
        caption = f"Time until {comparison.metric} first reached {targets[0]:g}; runs that never did are counted"
        yield table(TARGET, caption, races)


def _remarks(comparison: Comparison, cell: Cell, *, most: int | None = None, is_beside_tables: bool = False) -> Remarks:
    lines = list(remarks(cell, comparison, is_beside_tables=is_beside_tables))
    hint = ""
    if most is not None:
        n_all, lines = len(lines), list(_weighty_remarks(cell, comparison.metric))[:most]
        more = n_all - len(lines)
        hint = f"{more} more remark{'s'[: more != 1]}: --explain" if more else ""
    tones: list[Tone] = ["bad" if line.startswith("CONFOUNDED") else "plain" for line in lines]
    return Remarks(lines=lines, tones=tones, hint=hint)


def _weighty_remarks(cell: Cell, metric: str) -> Iterator[str]:
    """Yield the remarks that change what a reader should think of *cell*, the most important first.

    That is what else differs, whether an arm has other units, what is wrong with the whole cell, that the margin was
    chosen afterwards, then what is wrong with the rows, first of each row in turn. How many seeds there are is said by
    the findings.
    """
    for confounder in cell.confounders:
        yield f"CONFOUNDED by {confounder.kind} {confounder}"
    flags = [flag for flag in _flags(cell) if ENOUGH_IS_SAID not in flag]
    yield from (flag for flag in flags if OTHER_UNITS in flag)
    yield from cell.remarks
    if cell.margin_source == "command line":
        yield _margin(cell, metric)
    yield from (flag for flag in flags if OTHER_UNITS not in flag)


def _flags(cell: Cell) -> Iterator[str]:
    """Yield the flags of the rows, first of each row in turn; one that several rows have stands once."""
    turns = zip_longest(*(row.flags for row in cell.rows))
    for flag in dict.fromkeys(flag for turn in turns for flag in turn if flag is not None):
        yield f"{_levels([row.level for row in cell.rows if flag in row.flags], cell)}: {flag}"


def _levels(levels: Sequence[str], cell: Cell) -> str:
    if len(levels) == len(cell.rows) > 1:
        return "all"
    others = [row.level for row in cell.rows if row.level not in levels]
    return f"all but {', '.join(others)}" if len(others) <= _FEW < len(levels) else ", ".join(levels)


def introduction(comparison: Comparison) -> str:
    """Return a sentence with the compared setting, the metric and its direction."""
    told = goal_by_name(comparison.metric)
    guess = ", guessed from its name: say --goal if that is wrong" if comparison.goal_source == "metric name" else ""
    if comparison.goal_source == "config" and told is not None and told.name != comparison.goal:
        guess = f", as objective.goal says; by its name it is not: --goal {told.name} turns it"
    over = "" if comparison.seed is None else f", {comparison.seed} for their seed"
    return (
        f"{comparison.n_runs} runs by {comparison.by}{over} · {comparison.metric}: last value, {comparison.way}{guess}"
    )


def remarks(cell: Cell, comparison: Comparison, *, is_beside_tables: bool = False) -> Iterator[str]:
    """Yield what is needed to read the table of *cell*, one line each, the most important first.

    These are: the weighty ones, how few seeds there are, the margin and its source, the intervals, how the runs were
    paired, sources of the numbers, the steps that count for speed, and the runs that do not count. *is_beside_tables*:
    a report has how each row was paired and its p values in tables, and they are not told again.
    """
    yield from _weighty_remarks(cell, comparison.metric)
    yield from (flag for flag in _flags(cell) if ENOUGH_IS_SAID in flag)
    if any(row.n_ok for row in cell.rows) and cell.margin_source != "command line":
        yield _margin(cell, comparison.metric)
    yield f"differences are against {cell.reference}: 90 % intervals for the verdict; means and speed-ups 95 %"
    if not is_beside_tables:
        for row in cell.rows:
            if row.difference is not None:
                yield f"{row.level}: {_pairing(row, row.difference, comparison.n_tests)}"
    lost = [(row.level, line) for row in cell.rows for line in _lost(row)]
    for line in dict.fromkeys(line for _, line in lost):
        yield f"{_levels([level for level, said in lost if said == line], cell)}: {line}"
    yield from _measure(cell, comparison)
    yield from _sources(cell, comparison)
    if cell.steady_from_step is not None:
        yield f"step times: medians over steps {cell.steady_from_step} to {cell.steady_to_step} of every run"
    for note in cell.notes:
        yield f"note: {note}"
    for run in cell.excluded:
        yield f"not counted: {run.uid} ({run.level}): {run.reason}"


def walls(cell: Cell) -> str | None:
    """Return the wall times of the rows in one line, for a table without a column for them.

    They are medians over the seeds that count. None where none is known.
    """
    known = [(row.level, row.speed.wall_s) for row in cell.rows if row.speed and row.speed.wall_s is not None]
    times = ", ".join(f"{level} {duration(wall_s)}" for level, wall_s in known)
    return f"wall time of whole runs, start-up and validation included (medians): {times}" if known else None


def closing(comparison: Comparison) -> str | None:
    """Return a sentence on whether the numbers are adjusted for the number of rows; None for a single row."""
    if comparison.n_tests > 1:
        return (
            f"m = {comparison.n_tests} rows were tested: verdicts hold after Holm's adjustment over all of them; "
            "the intervals are each row's own"
        )
    n = comparison.n_comparisons
    return f"{n} comparisons: the intervals are not adjusted for their number" if n > 1 else None


def _margin(cell: Cell, metric: str) -> str:
    if cell.margin is None:
        return f"no margin was fixed beforehand for {metric} (objective.margin): no verdict on equivalence"
    source = "fixed in the configuration" if cell.margin_source == "config" else AFTERWARDS
    return f"margin {cell.margin:g} in {metric}, {source}"


def _pairing(row: Row, difference: Difference, m: int) -> str:
    if difference.ci90 is None:
        return f"one {row.unit[:-1]} in an arm: no interval, hence nothing is shown"
    how = "paired by seed" if difference.paired else "unpaired"
    rho = f", rho {difference.rho:+.2f}" if difference.rho is not None else ""
    p = f", p of TOST {p_value(difference.p_tost)}" if difference.p_tost is not None else ""
    if p_value(row.p_adjusted) != p_value(difference.p_tost) and row.p_adjusted is not None:
        p += f" (after Holm {p_value(row.p_adjusted)})"
    if row.p_claim is not None and row.verdict != "equivalent":
        p += f", p of '{row.verdict}' {p_value(row.p_claim)}{' (after Holm)' if m > 1 else ''}"
    return how + rho + p


def _lost(row: Row) -> Iterator[str]:
    """Yield what an arm lost: its rate with its interval, and what others than itself ended."""
    losses = row.losses
    if losses is None or not losses.n_ended:
        return
    if losses.rate_ci90 is not None:
        low, high = losses.rate_ci90.low * 100, losses.rate_ci90.high * 100
        yield f"lost {losses.n}/{losses.n_ended} {losses.unit}, a rate of {low:.0f} to {high:.0f} %"
    if losses.n_elsewhere:
        more = "1 more run was" if losses.n_elsewhere == 1 else f"{losses.n_elsewhere} more runs were"
        yield f"{more} ended by a machine, a scheduler or a person"


def _measure(cell: Cell, comparison: Comparison) -> Iterator[str]:
    if cell.scale != "linear":
        yield f"tests are on the {cell.scale} scale: of typical runs (geometric means), not of mean {comparison.metric}"
    if cell.resolution is not None and cell.resolution_source is not None:
        known = _RESOLUTION_FROM[cell.resolution_source]
        yield f"{comparison.metric} moves in steps of {cell.resolution:.3g}, {known}: no spread is taken to be below"
        if cell.margin is not None and cell.margin < _COARSE * cell.resolution:
            yield f"the margin is finer than {_COARSE} steps of the metric"
    if any(row.verdict in ("better", "worse") for row in cell.rows):
        yield "better and worse are tested at 5 % each: where nothing differs one row in ten is called one of both"


def _sources(cell: Cell, comparison: Comparison) -> Iterator[str]:
    """Yield the sources of the numbers in the table: target, energy, CO2 and peaks."""
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
    methods = set()
    for cost in (each for each in costs if each.n):
        scope = "scope not recorded" if cost.energy_scope is None else f"of the {cost.energy_scope}"
        methods.add((cost.energy_method or "method not recorded", scope))
    if methods:
        said = "; ".join(f"{method}, {scope}" for method, scope in sorted(methods))
        yield f"energy: of the GPUs' boards alone ({said}), medians over seeds of whole runs"
    for source in sorted({cost.co2_source for cost in costs if cost.co2_source is not None}):
        yield f"CO2: of that energy, {source}"
    bases_of_peaks = {row.load.peak_basis for row in cell.rows if row.load is not None and row.load.peak_basis}
    if bases_of_peaks:
        yield f"peak: dense, of one GPU in the measured precision ({', '.join(sorted(bases_of_peaks))})"
