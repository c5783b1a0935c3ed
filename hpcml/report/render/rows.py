"""Headings with rows of values as table, Markdown and CSV, for answers that make their rows themselves."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType

from hpcml.report.query import rows_document
from hpcml.report.render.data import as_csv
from hpcml.report.render.markdown import as_markdown
from hpcml.report.render.terminal import as_renderable


def value_table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, console: Console) -> RenderableType:
    """Return *rows* as a table for *console*."""
    return as_renderable(rows_document(headings, rows), console=console)


def value_markdown(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return *rows* as a Markdown table."""
    return as_markdown(rows_document(headings, rows))


def value_csv(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return *rows* as CSV with all digits of numbers; lists as JSON."""
    return as_csv(rows_document(headings, rows))
