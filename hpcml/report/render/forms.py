"""What a command answers, and how it is written in each form that can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Generic, TypeVar

from rich.console import RenderableType

from hpcml.report.document import Document
from hpcml.report.render.data import as_csv, as_json
from hpcml.report.render.latex import as_latex
from hpcml.report.render.markdown import as_markdown
from hpcml.report.render.terminal import as_renderable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Output(Generic[T]):
    """A value, and what writes it in each form that there is: for a terminal as a table, lines and a remark.

    `table` is called with the value and ``console=``; `lines` follow it, and `remark` is for standard error.
    """

    value: T
    _: KW_ONLY
    table: Callable[..., RenderableType] | None = None
    lines: Iterable[str] = ()
    remark: str | None = None
    json: Callable[[T], str] | None = None
    csv: Callable[[T], str] | None = None
    md: Callable[[T], str] | None = None
    latex: Callable[[T], str] | None = None
    code: int = 0  # the exit code


def document_output(
    document: Document, *, lines: Iterable[str] = (), remark: str | None = None, code: int = 0
) -> Output[Document]:
    """Return *document* as an output in every form; *remark* is for standard error, *code* the exit code."""
    return Output(
        document,
        table=as_renderable,
        lines=lines,
        remark=remark,
        json=as_json,
        csv=as_csv if document.fields else None,
        md=as_markdown,
        latex=as_latex,
        code=code,
    )
