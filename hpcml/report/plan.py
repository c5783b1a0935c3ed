"""`hpcml plan`: how many seeds a verdict needs."""

from __future__ import annotations

from collections.abc import Iterator

from hpcml.analysis.planning import Design, PowerCell, PowerPlan
from hpcml.codec import encode
from hpcml.model.told_apart import alike_words
from hpcml.report.document import Column, Document, Listing, Paragraph, Remarks, Section
from hpcml.report.text import number

FORMAT = 2  # of JSON; grows when a key changes its meaning or goes


def power_document(plan: PowerPlan) -> Document:
    """Return for each cell the seeds that are needed, and the power with other numbers.

    JSON has the whole plan; its keys are the fields of `hpcml.analysis.planning`.
    """
    sections = [_cell(cell, plan) for cell in plan.cells]
    unusable = [Section(parts=[Paragraph(text=line) for line in _unusable(plan)])] if plan.unusable else []
    return Document(
        introduction=introduction(plan), sections=[*sections, *unusable], record={"format": FORMAT, **encode(plan)}
    )


def _cell(cell: PowerCell, plan: PowerPlan) -> Section:
    answers = [_answer(design, cell) for design in cell.designs]
    tables = [_powers(design, plan) for design in _with_spread(cell)]
    remarks = [Remarks(lines=list(map(str, cell.flags)))] if cell.flags else []
    return Section(heading=_heading(cell), parts=[*(Paragraph(text=line) for line in answers), *tables, *remarks])


def _powers(design: Design, plan: PowerPlan) -> Listing[list[str]]:
    headings = ["margin", *(f"n={n}" for n in plan.columns)]
    columns = [_column(index, heading) for index, heading in enumerate(headings)]
    return Listing(caption=_title(design, plan), columns=columns, rows=_rows(design))


def _column(index: int, heading: str) -> Column[list[str]]:
    return Column("", heading, lambda row: row[index])


def introduction(plan: PowerPlan) -> str:
    """Return the verdict to be shown and its power, in one sentence.

    The risk of a wrong verdict is 5 % for all comparisons together.
    """
    shared = f"; {plan.comparisons} comparisons share the risk of 5 %" if plan.comparisons > 1 else ""
    return f"{plan.metric} by {plan.by}: seeds in each arm for '{plan.verdict}' in {plan.power:.3g} of cases{shared}"


def _heading(cell: PowerCell) -> str:
    alike = " · ".join(alike_words(cell.where))
    source = "fixed in the configuration" if cell.margin_source == "config" else "given on the command line"
    at_hand = ", ".join(f"{level} n={n}" for level, n in cell.seeds.items())
    return f"{alike} · margin {cell.margin:g}, {source} · at hand {at_hand}"


def _answer(design: Design, cell: PowerCell) -> str:
    how = "paired by seed" if design.paired else "unpaired"
    spread, what = design.spread, "differences" if design.paired else "an arm"
    low, high = _seeds(design.seeds_low), _seeds(design.seeds_high)
    between = f"; between {low} and {high}, as the spread may be" if (low, high) != (_seeds(design.seeds),) * 2 else ""
    bounds = f"{number(spread.low, 3)} to {number(spread.high, 3)}, each with 80 %"
    times = f"margin / sd {cell.margin / spread.sd:.2f}" if spread.sd else "no spread"
    return f"{how}: {_seeds(design.seeds)} seeds{between} (sd of {what} {number(spread.sd, 3)}: {bounds}; {times})"


def _with_spread(cell: PowerCell) -> list[Design]:
    return [design for design in cell.designs if design.spread.sd > 0]  # without one, all of a table is 100 %


def _seeds(count: int | None) -> str:
    return "more than 1000" if count is None else str(count)


def _title(design: Design, plan: PowerPlan) -> str:
    how = "paired" if design.paired else "unpaired"
    return f"how often '{plan.verdict}' is reached, {how}, by margin and number of seeds:"


def _rows(design: Design) -> list[list[str]]:
    return [[f"{margin:g}", *(_percent(power) for power in powers)] for margin, powers in design.table]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _unusable(plan: PowerPlan) -> Iterator[str]:
    for line in plan.unusable:
        yield f"no spread can be told, one seed at most in each arm: {line}"
