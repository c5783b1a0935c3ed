"""What runs attained as GitHub-flavoured Markdown."""

from __future__ import annotations

from hpcml.attainment import Attainment
from hpcml.report import attainment_words as words
from hpcml.report.plain_text import markdown_table, safe_markdown


def attainment_markdown(attainment: Attainment) -> str:
    """Return *attainment* as a Markdown document without a title."""
    lines = [safe_markdown(words.introduction(attainment)), ""] if attainment.attained else []
    for heading, rows in words.cells(attainment):
        titles, values = words.table(rows, is_plain=False)
        cells = [[safe_markdown(word) for word in line] for line in values]
        lines += [f"### {safe_markdown(heading)}", ""]
        lines += [*markdown_table([safe_markdown(t) for t in titles], cells, right=words.right_aligned(titles)), ""]
        lines += [f"- {safe_markdown(remark)}" for remark in words.remarks(rows)]
        lines.append("")
    for remark in attainment.remarks:
        lines += [safe_markdown(remark), ""]
    if attainment.published:
        cells = [[safe_markdown(word) for word in line] for line in words.published_lines(attainment.published)]
        lines += [
            f"### {words.PUBLISHED_TITLE}",
            "",
            *markdown_table(words.PUBLISHED_HEADINGS, cells, right=(3, 4)),
            "",
        ]
        lines += [f"- {safe_markdown(remark)}" for remark in words.published_remarks(attainment.published)]
        lines.append("")
    return "\n".join(lines)
