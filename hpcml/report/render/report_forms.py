"""The formats of `hpcml report` by name: how each is rendered, and how an earlier report is recognised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import ConfigError
from hpcml.report.document import Document
from hpcml.report.render.html.page import as_page, is_report_page
from hpcml.report.render.latex import as_latex_report, is_report_latex
from hpcml.report.render.markdown import as_markdown_report, is_report_markdown


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportForm:
    """One format of a report: a new one is a module with these two functions, and a line in `REPORT_FORMS`."""

    render: Callable[[Document], str]
    is_ours: Callable[[bytes], bool]  # by the first bytes of a file


_BY_SUFFIX = {".md": "md", ".tex": "latex", ".html": "html", ".htm": "html", "": "html"}


def form_of(file: str) -> str:
    """Return the key in `REPORT_FORMS` that the end of *file*'s name means; raise `ConfigError` where it means none.

    >>> form_of("results/paper.tex"), form_of("-")
    ('latex', 'html')
    """
    suffix = Path(file).suffix
    if suffix.lower() not in _BY_SUFFIX:
        raise ConfigError(
            f"-o {file}: a report is no {suffix[1:]}: write .html (a browser prints it to a PDF), .md or .tex, or say "
            "--md or --latex"
        )
    return _BY_SUFFIX[suffix.lower()]


REPORT_FORMS: Mapping[str, ReportForm] = {
    "html": ReportForm(render=as_page, is_ours=is_report_page),
    "md": ReportForm(render=as_markdown_report, is_ours=is_report_markdown),
    "latex": ReportForm(render=as_latex_report, is_ours=is_report_latex),
}
