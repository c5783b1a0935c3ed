"""A scaling study as GitHub-flavoured Markdown."""

from __future__ import annotations

from hpcml.report import scaling_words as words
from hpcml.report.plain_text import markdown_table, safe_markdown
from hpcml.scaling import Scaling, ScalingCell


def scaling_markdown(scaling: Scaling) -> str:
    """Return *scaling* as a Markdown document without a title."""
    lines = [safe_markdown(words.introduction(scaling)), ""]
    for cell in scaling.cells:
        lines += [f"### {safe_markdown(words.heading(cell))}", "", *_table(cell), ""]
        lines += [f"- **{safe_markdown(sentence)}**" for sentence in cell.sentences]
        lines += [f"- {safe_markdown(remark)}" for remark in words.remarks(cell)]
        lines.append("")
    closing = [f"- {safe_markdown(sentence)}" for sentence in (*scaling.pays_from, *scaling.remarks)]
    return "\n".join([*lines, *closing, *([""] if closing else [])])


def _table(cell: ScalingCell) -> list[str]:
    titles, lines = words.table(cell, is_plain=False)
    cells = [[safe_markdown(word) for word in line] for line in lines]
    return markdown_table([safe_markdown(title) for title in titles], cells, right=words.right_aligned(titles))
