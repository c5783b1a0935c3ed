"""A document as GitHub-flavoured Markdown (github.github.com/gfm)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hpcml.report.document import (
    Commands,
    Document,
    Figure,
    Findings,
    Listing,
    Pairs,
    Paragraph,
    Part,
    Remarks,
    Section,
)
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
    """Return *document* as Markdown; a figure is its numbers, unless a table of the section has them.

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
        yield from (
            f"- **{safe_markdown(line)}**" if tone == "conclusion" else f"- {safe_markdown(line)}"
            for line, tone in part.toned()
        )
    elif isinstance(part, Pairs):
        yield from (f"- {safe_markdown(label)}: {safe_markdown(text)}" for label, text in part.known.items())
    elif isinstance(part, Commands):
        yield from (f"    {safe(line)}" for line in part.lines)  # indented: no fence that a line could end
    elif isinstance(part, Listing):
        yield from _table(part)
    elif isinstance(part, Figure) and not part.repeats_a_table:
        yield safe_markdown(part.described)
        yield ""
        yield from _table(part.numbers)


def _findings(part: Findings) -> Iterator[str]:
    for finding in part.findings:
        marks = f" (weakened by {', '.join(map(str, part.marks(finding)))})" if finding.doubts else ""
        yield f"- **{finding.verdict}**: {safe_markdown(finding.text)}{marks if part.are_numbered else ''}"
        if not part.are_numbered:
            yield from (f"  - {safe_markdown(doubt)}" for doubt in finding.doubts)
    if part.are_numbered and part.doubts:
        yield ""
        yield from (f"{number}. {safe_markdown(doubt)}" for number, doubt in enumerate(part.doubts, start=1))


def _table(listing: Listing[Any]) -> Iterator[str]:
    columns = listing.shown()
    if listing.caption:
        yield f"{safe_markdown(listing.caption)}:"
        yield ""
    rule = ["---:" if listing.is_number(column) else "---" for column in columns]
    rows = [[safe_markdown(column.written(row)) for column in columns] for row in listing.rows]
    yield from (f"| {' | '.join(cells)} |" for cells in ([safe_markdown(each.title) for each in columns], rule, *rows))
    if listing.notes:
        yield ""
        yield from (f"- {safe_markdown(note)}" for note in listing.notes)
