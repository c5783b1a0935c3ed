"""`hpcml compare` as a document, and the section of a comparison in `hpcml report`: findings, tables, footnotes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcml.codec import Json, encode
from hpcml.model.comparison import Cell, Comparison, FlagCode, Row
from hpcml.model.hours import Hours
from hpcml.model.metric_goal import goal_by_name
from hpcml.report.charts import Styles
from hpcml.report.comparison_charts import comparison_charts
from hpcml.report.comparison_costs import COST, LOAD, NAME, OUTCOME, SPEED, TARGET
from hpcml.report.comparison_rows import RowQuantities, flags_of_all, footnotes, row_quantities
from hpcml.report.document import Document, Listing, Paragraph, Part, Remarks, Section, Tone
from hpcml.report.finding import heading, of_all, sentence
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
from hpcml.report.text import duration

FORMAT = 2  # of JSON; grows when a key changes its meaning or goes


def comparison_document(comparison: Comparison, quantities: RowQuantities = row_quantities) -> Document:
    """Return the document of ``hpcml compare``: for each cell what was found, a table, its costs, and footnotes.

    A cell has the runs that are alike in everything but the compared setting, and a row for each of its values.
    *quantities* makes the columns, in the order of CSV; a test gives its own.
    """
    cells = [(cell, quantities(comparison, cell)) for cell in comparison.cells]
    return Document(
        introduction=introduction(comparison),
        sections=[
            *(_cell(comparison, cell, columns) for cell, columns in cells),
            *(Section(heading="", parts=[part]) for part in _left_out(comparison)),
        ],
        record=_record(comparison, cells),
        data=[flat_listing([flat_line(columns, row) for cell, columns in cells for row in cell.rows])],
    )


def comparison_section(comparison: Comparison, styles: Styles, quantities: RowQuantities = row_quantities) -> Section:
    """Return the section of a report: for each cell tables with every number, charts, and footnotes.

    *styles* has the style of every level, the same as in the other charts of the report. A cell has a table for each
    subject (outcome, speed, cost, load, time to the target) of which something is known.
    """
    cells = [
        Section(
            heading=heading(cell) or "all runs",
            parts=[
                *_tables(comparison, cell, quantities(comparison, cell)),
                *comparison_charts(comparison, cell, styles),
                _notes(comparison, cell),
            ],
        )
        for cell in comparison.cells
    ]
    return Section(heading=f"Comparison by {comparison.by}", parts=list(_left_out(comparison)), sections=cells)


def hours_section(compared: Hours, of_experiments: Hours) -> Section:
    """Return the section: the hours of the compared runs, and of all runs of their experiments."""
    lines = [f"the compared runs: {line}" for line in _hours(compared)]
    if of_experiments.n_runs > compared.n_runs:
        lines += [f"all runs of their experiments: {line}" for line in _hours(of_experiments)]
    return Section(heading="Hours", parts=[Remarks(lines=lines)])


def introduction(comparison: Comparison) -> str:
    """Return a sentence with the compared setting, the metric and its direction."""
    by_name = goal_by_name(comparison.metric)
    guess = ", guessed from its name: say --goal if that is wrong" if comparison.goal_source == "metric name" else ""
    if comparison.goal_source == "config" and by_name is not None and by_name.name != comparison.goal:
        guess = f", as objective.goal says; by its name it is not: --goal {by_name.name} turns it"
    over = "" if comparison.seed is None else f", {comparison.seed} for their seed"
    return (
        f"{comparison.n_runs} runs by {comparison.by}{over} · {comparison.metric}: last value, {comparison.way}{guess}"
    )


def closing(comparison: Comparison) -> str | None:
    """Return a sentence on whether the numbers are adjusted for the number of rows; None for a single row."""
    if comparison.n_tests > 1:
        return (
            f"m = {comparison.n_tests} rows were tested: verdicts hold after Holm's adjustment over all of them; "
            "the intervals are each row's own"
        )
    n = comparison.n_comparisons
    return f"{n} comparisons: the intervals are not adjusted for their number" if n > 1 else None


def _cell(comparison: Comparison, cell: Cell, quantities: Sequence[Quantity[Row]]) -> Section:
    below = line_table(quantities, cell.rows, [row.level for row in cell.rows])
    judged = [row for row in cell.rows if row.verdict != "reference"]
    found = [f"{verdict}: {who}" for verdict, who in tallied([(row.verdict, row.level) for row in judged])]
    found += [words] if found and (words := of_all(cell, judged)) else []
    found = found or [f"{row.level}: {sentence(comparison, cell, row)}" for row in judged]
    parts: list[Part] = [Remarks(lines=found, tones=["conclusion"] * len(found))] if found else []
    parts.append(short_table(quantities, cell.rows))
    parts += [below] if below is not None else []
    return Section(heading=heading(cell), parts=[*parts, _notes(comparison, cell)])


def _notes(comparison: Comparison, cell: Cell) -> Remarks:
    """Return the flags of the whole cell, the numbered ones of its rows, and how the numbers were obtained."""
    every: list[tuple[str, Tone]] = [
        (str(flag), "bad" if flag.code is FlagCode.CONFOUNDED else "plain") for flag in cell.flags
    ]
    every += [(f"all rows: {flag}", "plain") for flag in flags_of_all(cell)]
    every += [(f"({number}) {flag}", "plain") for number, flag in enumerate(footnotes(cell), 1)]
    every += [(line, "plain") for line in _methods(comparison, cell)]
    every += [(f"also differs: {note}", "plain") for note in cell.notes]
    return Remarks(lines=[line for line, _ in every], tones=[tone for _, tone in every])


def _methods(comparison: Comparison, cell: Cell) -> Iterator[str]:
    """Yield how the numbers of the table came about: tests, steps, energies."""
    compared = [row.difference for row in cell.rows if row.difference is not None]
    if compared:
        how = sorted({"paired by seed" if each.paired else "unpaired" for each in compared})
        scale = "" if cell.scale == "linear" else f" on the {cell.scale} scale"
        holm = f", Holm over {comparison.n_tests} rows" if comparison.n_tests > 1 else ""
        yield f"t tests{scale} {' or '.join(how)}{holm}; differences have 90 % intervals, means and speed-ups 95 %"
    if cell.margin is None and compared:
        yield f"no margin was fixed beforehand for {comparison.metric} (objective.margin): no verdict"
    elif cell.margin_source == "config":
        yield f"margin {cell.margin:g} in {comparison.metric}, fixed in the configuration"
    if cell.steady_from_step is not None:
        yield f"step times: medians over steps {cell.steady_from_step} to {cell.steady_to_step} of every run"
    races = [row.to_target for row in cell.rows if row.to_target is not None]
    if races:
        source = "fixed in the configuration" if cell.target_source == "config" else "given on the command line"
        budgets = [race.budget_s for race in races if race.budget_s is not None]
        restricted = f"; restricted means are up to {duration(budgets[0])}" if budgets else ""
        yield f"target {races[0].target:g} in {comparison.metric}, {source}{restricted}; who broke off never got there"
    costs = [row.cost for row in cell.rows if row.cost is not None and row.cost.n]
    methods = sorted({f"{cost.energy_method or 'method'}, of the {cost.energy_scope or 'scope'}" for cost in costs})
    if methods:
        yield f"energy: of the GPUs' boards alone ({'; '.join(methods)}), medians over seeds of whole runs"
    for source in sorted({cost.co2_source for cost in costs if cost.co2_source is not None}):
        yield f"CO2: of that energy, {source}"


def _left_out(comparison: Comparison) -> Iterator[Part]:
    """Yield the line that counts the runs that have nothing to do with the question."""
    counts = Counter(run.reason for run in comparison.excluded)
    if counts:
        counted = "; ".join(f"{n} run{'s'[: n != 1]} {why}" for why, n in sorted(counts.items()))
        yield Paragraph(text=f"left out: {counted}")


def _record(comparison: Comparison, cells: Sequence[tuple[Cell, Sequence[Quantity[Row]]]]) -> Mapping[str, Json]:
    """Return the comparison's fields for JSON, with the derived quantities in its rows."""
    record = encode(comparison)
    for encoded, (cell, quantities) in zip(record["cells"], cells, strict=True):
        for one, row in zip(encoded["rows"], cell.rows, strict=True):
            one.update(derived(quantities, row))
    return {"format": FORMAT, **record}


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


def _hours(hours: Hours) -> Iterator[str]:
    attempts = f"{hours.n_attempts} attempt{'s'[: hours.n_attempts != 1]} of {hours.n_runs} runs"
    lost = _spent(hours.lost_node_h, hours.lost_gpu_h) if hours.lost_node_h else "none of it"
    yield f"{_spent(hours.node_h, hours.gpu_h)} in {attempts}; {lost} lost: failed, cancelled or begun anew"
    if hours.n_unknown:
        yield f"{hours.n_unknown} more attempts are over, and how long they ran is not recorded"
    if hours.n_running:
        yield f"{hours.n_running} more attempts are not over"


def _spent(node_h: float, gpu_h: float | None) -> str:
    return f"{node_h:.3g} node-h, " + ("GPU-h not recorded" if gpu_h is None else f"{gpu_h:.3g} GPU-h")
