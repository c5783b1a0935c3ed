"""A report as Markdown: the same words and tables, readable as they are."""

from __future__ import annotations

from collections.abc import Iterator

from hpcml.publication import Publication
from hpcml.report.plain_text import markdown_table, safe, safe_markdown
from hpcml.report.study.parts import Chart, Commands, Findings, Listed, Paragraph, Part, Section, Table
from hpcml.report.study.study import study_of

_BEGINNING = b"<!-- hpcml report -->"


def is_report_markdown(head: bytes) -> bool:
    """Whether a file that begins with *head* is a report of ours."""
    return head.startswith(_BEGINNING)


def report_markdown(publication: Publication) -> str:
    """Return the whole report; in place of a chart stand the numbers behind it, unless a table has them."""
    study = study_of(publication)
    lines = [_BEGINNING.decode(), f"# {safe_markdown(study.title)}", "", safe_markdown(study.subtitle), ""]
    for section in study.sections:
        lines += _section(section, 2)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(section: Section, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} {safe_markdown(section.heading)}"
    yield ""
    for part in section.parts:
        if lines := list(_part(part)):
            yield from lines
            yield ""
    for one in section.sections:
        yield from _section(one, depth + 1)


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, Findings):
        for finding in part.of:
            yield f"- **{finding.verdict}**: {safe_markdown(finding.about)}. {safe_markdown(finding.text)}"
            yield from (f"  - {safe_markdown(doubt)}" for doubt in finding.doubts)
    elif isinstance(part, Paragraph):
        yield safe_markdown(part.text)
    elif isinstance(part, Listed):
        yield from (f"- {safe_markdown(line)}" for line in part.lines)
    elif isinstance(part, Commands):
        yield from (f"    {safe(line)}" for line in part.lines)  # indented: no fence that a line could end
    elif isinstance(part, Table):
        yield from _table(part)
    elif isinstance(part, Chart) and not part.repeats_a_table:
        yield safe_markdown(part.described)
        yield ""
        yield from _table(part.numbers)


def _table(table: Table) -> Iterator[str]:
    headings = [f"{column.title} ({column.unit})" if column.unit else column.title for column in table.columns]
    rows = [[safe_markdown(entry.text) for entry in row] for row in table.rows]
    right = [at for at, column in enumerate(table.columns) if column.is_number]
    yield f"{safe_markdown(table.caption)}:"
    yield ""
    yield from markdown_table([safe_markdown(heading) for heading in headings], rows, right=right)
