r"""A report's tables for LaTeX: each a float with a caption, ruled by booktabs."""

from __future__ import annotations

from collections.abc import Iterator

from hpcml.publication import Publication
from hpcml.report.latex import escaped, tabular
from hpcml.report.plain_text import safe
from hpcml.report.study.parts import Chart, Part, Section, Table
from hpcml.report.study.study import study_of

_BEGINNING = b"% hpcml report"
_WIDE = 8  # columns; from here on a table is made as narrow as the text


def is_report_latex(head: bytes) -> bool:
    """Whether a file that begins with *head* is a report of ours."""
    return head.startswith(_BEGINNING)


def report_latex(publication: Publication) -> str:
    r"""Return all tables, to be \input; what they need of the preamble is said at the top."""
    study = study_of(publication)
    lines = [
        f"{_BEGINNING.decode()}: {safe(study.title)}",
        "% in the preamble: \\usepackage{booktabs} and \\usepackage{graphicx}",
        "",
    ]
    for section in study.sections:
        lines += _section(section)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(section: Section) -> Iterator[str]:
    for part in section.parts:
        if (table := _table_of(part)) is not None and table.rows:
            yield f"% {safe(section.heading)}"
            yield from _table(table)
            yield ""
    for one in section.sections:
        yield from _section(one)


def _table_of(part: Part) -> Table | None:
    if isinstance(part, Chart):
        return None if part.repeats_a_table else part.numbers
    return part if isinstance(part, Table) else None


def _table(table: Table) -> Iterator[str]:
    headings = [f"{column.title} ({column.unit})" if column.unit else column.title for column in table.columns]
    rows = [[escaped(entry.text) for entry in row] for row in table.rows]
    right = [at for at, column in enumerate(table.columns) if column.is_number]
    is_wide = len(headings) >= _WIDE
    yield r"\begin{table}[htbp]"
    yield r"\centering\footnotesize"
    yield rf"\caption{{{escaped(table.caption)}}}"
    if is_wide:
        yield r"\resizebox{\linewidth}{!}{%"
    yield from tabular(list(map(escaped, headings)), rows, right=right)
    if is_wide:
        yield "}"
    yield r"\end{table}"
