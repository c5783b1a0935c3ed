"""`hpcml plan`: how many seeds a verdict needs, as table, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from hpcml.codec import encode
from hpcml.model.planning import Design, PowerCell, PowerPlan
from hpcml.model.told_apart import alike_words
from hpcml.report.render.data import json_text
from hpcml.report.render.markdown import safe_markdown
from hpcml.report.render.rows import value_markdown, value_table
from hpcml.report.text import number, safe


def power_table(plan: PowerPlan, *, console: Console) -> RenderableType:
    """Return *plan* for a terminal: for each cell the seeds that are needed, and the power with other numbers."""
    parts: list[RenderableType] = [Text(safe(introduction(plan)))]
    for cell in plan.cells:
        parts += [Text(), Text(safe(_heading(cell)), style="bold")]
        parts += [Text(safe(line)) for line in (_answer(design, cell) for design in cell.designs)]
        for design in _with_spread(cell):
            parts += [Text(), Text(safe(_title(design, plan)))]
            parts += [value_table(_headings(plan), _rows(design, plan), console=console)]
        parts += [Padding(Text(safe(f"- {remark}")), (0, 0, 0, 2)) for remark in cell.remarks]
    return Group(*parts, *[Text(safe(line)) for line in _unusable(plan)])


def power_markdown(plan: PowerPlan) -> str:
    """Return *plan* as Markdown."""
    lines = [safe_markdown(introduction(plan)), ""]
    for cell in plan.cells:
        lines += [f"### {safe_markdown(_heading(cell))}", ""]
        lines += [f"- {safe_markdown(_answer(design, cell))}" for design in cell.designs]
        for design in _with_spread(cell):
            lines += ["", safe_markdown(_title(design, plan)), ""]
            lines.append(value_markdown(_headings(plan), _rows(design, plan)))
        lines += [f"- {safe_markdown(remark)}" for remark in cell.remarks]
    lines += map(safe_markdown, _unusable(plan))
    return "\n".join([*lines, ""])


def power_json(plan: PowerPlan) -> str:
    """Return the whole plan as one JSON object; its keys are the fields of `hpcml.model.planning`."""
    return json_text(encode(plan))


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
    rho = f", rho {spread.rho:+.2f}" if spread.rho is not None else ""
    low, high = _seeds(design.seeds_low), _seeds(design.seeds_high)
    between = f"; between {low} and {high}, as the spread may be" if (low, high) != (_seeds(design.seeds),) * 2 else ""
    bounds = f"{number(spread.low, 3)} to {number(spread.high, 3)}, each with 80 %"
    times = f"margin / sd {cell.margin / spread.sd:.2f}" if spread.sd else "no spread"
    return f"{how}: {_seeds(design.seeds)} seeds{between} (sd of {what} {number(spread.sd, 3)}: {bounds}; {times}{rho})"


def _with_spread(cell: PowerCell) -> list[Design]:
    return [design for design in cell.designs if design.spread.sd > 0]  # without one, all of a table is 100 %


def _seeds(count: int | None) -> str:
    return "more than 1000" if count is None else str(count)


def _title(design: Design, plan: PowerPlan) -> str:
    how = "paired" if design.paired else "unpaired"
    return f"how often '{plan.verdict}' is reached, {how}, by margin and number of seeds:"


def _headings(plan: PowerPlan) -> list[str]:
    return ["margin", *(f"n={n}" for n in plan.columns)]


def _rows(design: Design, plan: PowerPlan) -> list[list[str]]:
    rows = [[f"{margin:g}", *(_percent(power) for power in powers)] for margin, powers in design.table]
    least = [number(margin, 3) for margin in design.smallest]
    return [*rows, [f"least margin for {plan.power:.3g}", *least]]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _unusable(plan: PowerPlan) -> Iterator[str]:
    for line in plan.unusable:
        yield f"no spread can be told, one seed at most in each arm: {line}"
