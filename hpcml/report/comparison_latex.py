"""A comparison as LaTeX: a table with its caption and its notes for each cell, to be put into a paper."""

from __future__ import annotations

from hpcml.comparison import Cell, Comparison
from hpcml.report.comparison_cells import closing, heading, introduction, main_table, remarks
from hpcml.report.comparison_details import details
from hpcml.report.latex import escaped, tabular

_PREAMBLE = r"% Needs \usepackage{booktabs,graphicx}; written in UTF-8, the encoding of LaTeX since 2018."
_WIDE = 8  # columns; from here on a table is made as narrow as the text


def comparison_latex(comparison: Comparison) -> str:
    """Return the tables of *comparison*, with nothing around them: for another document's input."""
    lines = [_PREAMBLE]
    for number, cell in enumerate(comparison.cells, start=1):
        lines += ["", *_table(comparison, cell, number)]
    return "\n".join([*lines, ""])


def _table(comparison: Comparison, cell: Cell, number: int) -> list[str]:
    notes = [*remarks(cell, comparison), *filter(None, [closing(comparison)])]
    caption = f"{introduction(comparison)}. {heading(cell)}."
    return [
        r"\begin{table}[htbp]",
        r"\centering\footnotesize",
        rf"\caption{{{escaped(caption)}}}",
        rf"\label{{tab:hpcml-{number}}}",
        *_tabular(comparison, cell),
        *_details(cell),
        "",
        r"\medskip",
        r"\begin{minipage}{\linewidth}\raggedright",
        *[rf"{escaped(note)}\par" for note in notes],
        r"\end{minipage}",
        r"\end{table}",
    ]


def _details(cell: Cell) -> list[str]:
    """Return the second table of a cell, with a line for each quantity; nothing where none is known."""
    found = details(cell)
    if not found:
        return []
    rows = [[escaped(text) for text in (detail.label.strip(), *detail.texts)] for detail in found]
    titles = ["", *(escaped(row.level) for row in cell.rows)]
    return ["", r"\medskip", *tabular(titles, rows, right=range(1, len(titles)))]


def _tabular(comparison: Comparison, cell: Cell) -> list[str]:
    """Return the table itself; columns of which no row has anything are left out."""
    titles, rows = main_table(comparison, cell)
    kept = [at for at in range(len(titles)) if at == 0 or any(row[at] for row in rows)]
    right = [place for place, at in enumerate(kept) if at in (5, 7, 8, 10)]
    lines = tabular(
        [escaped(titles[at]) for at in kept], [[escaped(row[at]) for at in kept] for row in rows], right=right
    )
    return [r"\resizebox{\linewidth}{!}{%", *lines, "}"] if len(kept) >= _WIDE else lines
