"""The renderers by the names of a command's formats (json, csv, md, latex); without one, a terminal's is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpcml.report.document import Document
from hpcml.report.render.data import as_csv, as_json
from hpcml.report.render.latex import as_latex
from hpcml.report.render.markdown import as_markdown

FORMS: Mapping[str, Callable[[Document], str]] = {
    "json": as_json,
    "csv": as_csv,
    "md": as_markdown,
    "latex": as_latex,
}
