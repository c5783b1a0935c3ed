"""A document as GitHub-flavoured Markdown (github.github.com/gfm)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hpcml.report.document import Chart, Commands, Document, Findings, Paragraph, Part, Remarks, Section, Table
from hpcml.report.text import safe

REPORT = "<!-- hpcml report -->"
_MARKUP = re.compile(r"[\\`*|$]|\](?=\()|(?<!\w)_|_(?!\w)|~~")  # not every character: the source is read as well


def is_report_markdown(head: bytes) -> bool:
    """Whether a file that begins with *head* is a report written by `as_markdown_report`."""
    return head.startswith(REPORT.encode())


def as_markdown_report(document: Document) -> str:
    """Return a whole report; its first line marks it as one of ours."""
    return f"{REPORT}\n{as_markdown(document)}"


def as_markdown(document: Document) -> str:
    """Return *document* as Markdown; a chart is replaced by its numbers, unless a table of the section has them.

    A document without a title has headings of the third level, to be put below another's. Commands are indented by four
    blanks, which makes them code.
    """
    lines = [f"# {safe_markdown(document.title)}", ""] if document.title else []
    lines += [safe_markdown(document.introduction), ""] if document.introduction else []
    for section in document.sections:
        lines += _section(section, 2 if document.title else 3)
    return "\n".join(lines).rstrip("\n") + "\n"


def safe_markdown(value: object) -> str:
    """Return *value* escaped for a cell of a Markdown table: what HTML or Markdown would read in it stays text.

    >>> safe_markdown("<b>"), safe_markdown("val_loss")
    ('&lt;b>', 'val_loss')
    """
    text = safe(value).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKUP.sub(lambda match: f"\\{match[0]}", text)


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Return the lines of a table; *right* are the right-aligned columns. Cells are taken as Markdown.

    >>> markdown_table(["run", "loss"], [["a", "0.5"]], right=[1])
    ['| run | loss |', '| --- | ---: |', '| a | 0.5 |']
    """
    rule = ["---:" if column in right else "---" for column in range(len(headings))]
    return [f"| {' | '.join(line)} |" for line in (headings, rule, *rows)]


def _section(section: Section, depth: int) -> Iterator[str]:
    if section.heading:
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
        yield from _findings(part)
    elif isinstance(part, Paragraph):
        yield safe_markdown(part.text)
    elif isinstance(part, Remarks):
        yield from _listed(part)
    elif isinstance(part, Commands):
        yield from (f"    {safe(line)}" for line in part.lines)  # indented: no fence that a line could end
    elif isinstance(part, Table):
        yield from _table(part)
    elif isinstance(part, Chart) and not part.repeats_a_table:
        yield safe_markdown(part.described)
        yield ""
        yield from _table(part.numbers)


def _findings(part: Findings) -> Iterator[str]:
    for where, asked, shared, of in part.together():
        if asked:
            yield f"- Asked{f' ({safe_markdown(where)})' if where else ''}: {safe_markdown(asked)}"
        for verdict, _, who in part.tally(of):
            yield f"- **{verdict}**: {safe_markdown(who)}"
        for finding in of:
            yield f"- **{finding.verdict}**: {safe_markdown(finding.text)}"
            yield from (f"  - {safe_markdown(doubt)}" for doubt in finding.doubts)
        if shared:
            yield f"- All of these{f' ({safe_markdown(where)})' if where else ''} are weakened by:"
            yield from (f"  - {safe_markdown(doubt)}" for doubt in shared)


def _listed(listed: Remarks) -> Iterator[str]:
    if not listed.terminal_only:
        for line, tone in listed.toned():
            text = safe_markdown(line)
            yield f"- **{text}**" if tone == "conclusion" else f"- {text}"


def _table(table: Table) -> Iterator[str]:
    headings = [f"{column.title} ({column.unit})" if column.unit else column.title for column in table.columns]
    rows = [[safe_markdown(entry.whole) for entry in row] for row in table.rows]
    right = [at for at, column in enumerate(table.columns) if column.is_number]
    if table.caption:
        yield f"{safe_markdown(table.caption)}:"
        yield ""
    yield from markdown_table([safe_markdown(heading) for heading in headings], rows, right=right)
