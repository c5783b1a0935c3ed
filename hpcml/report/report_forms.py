"""The forms of a report by name: how each is rendered, and how a file of it is known again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpcml.publication import Publication
from hpcml.report.html.page import is_report_page, report_page
from hpcml.report.report_latex import is_report_latex, report_latex
from hpcml.report.report_markdown import is_report_markdown, report_markdown


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One form of a report."""

    render: Callable[[Publication], str]
    is_ours: Callable[[bytes], bool]  # by the first bytes of a file


FORMS: Mapping[str, Form] = {
    "html": Form(render=report_page, is_ours=is_report_page),
    "md": Form(render=report_markdown, is_ours=is_report_markdown),
    "latex": Form(render=report_latex, is_ours=is_report_latex),
}
