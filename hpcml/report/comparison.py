"""`hpcml compare` as a document, and the section of a comparison in `hpcml report`: findings, tables, footnotes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpcml.analysis.compare.result import Cell, Comparison, Row
from hpcml.analysis.flags import FlagCode
from hpcml.codec import encode
from hpcml.model.hours import Hours
from hpcml.model.metric_goal import goal_by_name
from hpcml.report.charts import Styles
from hpcml.report.comparison_charts import comparison_charts
from hpcml.report.comparison_columns import (
    cost_listings,
    csv_columns,
    flags_of_all,
    footnotes,
    named_by_level,
    outcome_listing,
)
from hpcml.report.document import Column, Document, Listing, Paragraph, Part, Remarks, Section, Tone
from hpcml.report.finding import heading, of_all, sentence, tallied
from hpcml.report.text import duration

FORMAT = 2  # of JSON; grows when a key changes its meaning or goes


def comparison_document(comparison: Comparison) -> Document:
    """Return the document of ``hpcml compare``: for each cell what was found, a table, its costs, and footnotes.

    A cell has the runs that are alike in everything but the compared setting, and a row for each of its values.
    """
    return Document(
        introduction=introduction(comparison),
        sections=[
            *(_cell(comparison, cell) for cell in comparison.cells),
            *(Section(heading="", parts=[part]) for part in _left_out(comparison)),
        ],
        record={"format": FORMAT, **encode(comparison)},
        data=[Listing(columns=csv_columns(comparison, cell), rows=cell.rows) for cell in comparison.cells],
    )


def comparison_section(comparison: Comparison, styles: Styles) -> Section:
    """Return the section of a report: for each cell tables with every number, charts, and footnotes.

    *styles* has the style of every level, the same as in the other charts of the report.
    """
    cells = [
        Section(
            heading=heading(cell) or "all runs",
            parts=[
                outcome_listing(comparison, cell),
                *(named_by_level(comparison, each) for each in cost_listings(comparison, cell)),
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


def _cell(comparison: Comparison, cell: Cell) -> Section:
    costs = [column for listing in cost_listings(comparison, cell) for column in listing.columns]
    judged = [row for row in cell.rows if row.verdict != "reference"]
    found = [f"{verdict}: {who}" for verdict, who in tallied([(row.verdict, row.level) for row in judged])]
    found += [words] if found and (words := of_all(cell, judged)) else []
    found = found or [f"{row.level}: {sentence(comparison, cell, row)}" for row in judged]
    parts: list[Part] = [Remarks(lines=found, tones=["conclusion"] * len(found))] if found else []
    parts.append(replace(outcome_listing(comparison, cell), caption=""))
    parts += [_turned(costs, cell.rows)] if costs else []
    return Section(heading=heading(cell), parts=[*parts, _notes(comparison, cell)])


def _turned(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> Listing[Column[Row]]:
    """Return a table with a line for each of *columns*, and a column for each of *rows*."""

    def of(row: Row) -> Column[Column[Row]]:
        return Column("", row.level, lambda column: column.written(row), is_number=True)

    return Listing(columns=[Column("", "", lambda column: column.title), *map(of, rows)], rows=columns)


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
        scale = "" if cell.scale == "linear" else " on the log scale"
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
