"""What the commands print of a comparison, a scaling study, what was attained and a report, in each form."""

from __future__ import annotations

from rich.console import Console, RenderableType

from hpcml.analysis.attained import Attainment
from hpcml.analysis.compare.result import Comparison
from hpcml.analysis.scaling.result import Scaling
from hpcml.report.comparison import comparison_document
from hpcml.report.contents import Publication
from hpcml.report.publication import publication_document
from hpcml.report.render.data import as_csv, as_json
from hpcml.report.render.html.page import as_page
from hpcml.report.render.latex import as_latex, as_latex_report
from hpcml.report.render.markdown import as_markdown, as_markdown_report
from hpcml.report.render.terminal import as_renderable, as_text
from hpcml.report.scaling import scaling_document
from hpcml.report.utilization import utilization_document


def comparison_text(comparison: Comparison, *, width: int = 100) -> str:
    return as_text(comparison_document(comparison), width=width)


def comparison_renderable(comparison: Comparison, *, console: Console) -> RenderableType:
    return as_renderable(comparison_document(comparison), console=console)


def comparison_markdown(comparison: Comparison) -> str:
    return as_markdown(comparison_document(comparison))


def comparison_latex(comparison: Comparison) -> str:
    return as_latex(comparison_document(comparison))


def comparison_csv(comparison: Comparison) -> str:
    return as_csv(comparison_document(comparison))


def comparison_json(comparison: Comparison) -> str:
    return as_json(comparison_document(comparison))


def scaling_renderable(scaling: Scaling, *, console: Console) -> RenderableType:
    return as_renderable(scaling_document(scaling), console=console)


def scaling_markdown(scaling: Scaling) -> str:
    return as_markdown(scaling_document(scaling))


def scaling_csv(scaling: Scaling) -> str:
    return as_csv(scaling_document(scaling))


def scaling_json(scaling: Scaling) -> str:
    return as_json(scaling_document(scaling))


def attainment_renderable(attainment: Attainment, *, console: Console) -> RenderableType:
    return as_renderable(utilization_document(attainment), console=console)


def attainment_markdown(attainment: Attainment) -> str:
    return as_markdown(utilization_document(attainment))


def attainment_csv(attainment: Attainment) -> str:
    return as_csv(utilization_document(attainment))


def attainment_json(attainment: Attainment) -> str:
    return as_json(utilization_document(attainment))


def report_page(publication: Publication) -> str:
    return as_page(publication_document(publication))


def report_markdown(publication: Publication) -> str:
    return as_markdown_report(publication_document(publication))


def report_latex(publication: Publication) -> str:
    return as_latex_report(publication_document(publication))
