"""A comparison as GitHub-flavoured Markdown, to be pasted into an issue or a paper's notes."""

from __future__ import annotations

from hpcml.comparison import Cell, Comparison
from hpcml.report.comparison_cells import closing, heading, introduction, main_table, remarks
from hpcml.report.comparison_details import details
from hpcml.report.plain_text import markdown_table, safe_markdown


def comparison_markdown(comparison: Comparison) -> str:
    """Return *comparison* as a Markdown document without a title."""
    lines = [safe_markdown(introduction(comparison)), ""]
    for cell in comparison.cells:
        lines += [f"### {safe_markdown(heading(cell))}", "", *_table(comparison, cell), ""]
        lines += _details(cell)
        lines += [f"- {safe_markdown(remark)}" for remark in remarks(cell, comparison)]
        lines.append("")
    if (warning := closing(comparison)) is not None:
        lines += [warning, ""]
    return "\n".join(lines)


def _details(cell: Cell) -> list[str]:
    found = details(cell)
    if not found:
        return []
    headings = ["", *(safe_markdown(row.level) for row in cell.rows)]
    rows = [[safe_markdown(text) for text in (detail.label.strip(), *detail.texts)] for detail in found]
    return [*markdown_table(headings, rows, right=range(1, len(headings))), ""]


def _table(comparison: Comparison, cell: Cell) -> list[str]:
    headings, rows = main_table(comparison, cell)
    shown = [[safe_markdown(text) for text in row] for row in rows]
    return markdown_table([safe_markdown(title) for title in headings], shown, right=(5, 7, 8, 10))
