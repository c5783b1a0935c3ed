"""A report as one HTML file: opens from a disk, loads nothing from the network, and escapes all text."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hpcml.report.document import Document, Figure, Part, Section
from hpcml.report.text import safe

_BEGINNING = b"<!doctype html>\n<!-- hpcml report -->"
_SIGNS = {"good": "✓", "bad": "▼", "doubt": "?", "plain": "·"}


def is_report_page(head: bytes) -> bool:
    """Whether a file that begins with *head* is a report written by `as_page`; no other file is replaced."""
    return head.startswith(_BEGINNING)


def as_page(document: Document) -> str:
    """Return the whole file; it contains plotly.js where there is a chart.

    Every name that a run brought along is escaped, in the text as well as in the charts.
    """
    # what a name could do is known to be nothing in HTML; what it could hide from a reader is spelt out
    environment = Environment(
        loader=PackageLoader("hpcml.report.render.html", "files"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Markup) or not isinstance(value, str) else safe(value),
    )
    scripts = [_plotly()] if any(map(_has_charts, document.sections)) else []
    scripts.append(Markup(_file("report.js")))  # noqa: S704 - our own file
    return environment.get_template("report.html").render(
        document=document,
        css=Markup(_file("report.css")),  # noqa: S704 - our own file
        scripts=scripts,
        policy=_policy(scripts),
        plot=_plot,
        numbered=_numbering(),
        beside=_beside,
        kind_of=lambda part: type(part).__name__,
        signs=_SIGNS,
    )


@cache  # a page that follows its runs is made again and again
def _plotly() -> Markup:
    text = (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704 - plotly's own file, made to stand in a page


def _policy(scripts: Sequence[str]) -> str:
    """Return the Content-Security-Policy of a page in which *scripts* run and no other, and which asks for nothing.

    Plotly writes styles as it draws, and saves a chart as a picture by way of data: and blob: addresses.
    """
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii") for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _file(name: str) -> str:
    return (resources.files("hpcml.report.render.html") / "files" / name).read_text(encoding="utf-8")


def _plot(figure: Figure) -> Markup:
    """Return the chart as JSON, escaped so that it ends no script element."""
    text = str(figure.draw().to_json(engine="json"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - nothing is left in it that HTML knows


def _beside(parts: Sequence[Part]) -> list[tuple[bool, list[Part]]]:
    """Return neighbours that stand beside each other, which are charts that are not wide, together, in their order."""
    grouped = itertools.groupby(parts, key=lambda part: isinstance(part, Figure) and not part.is_wide)
    return [(is_small, list(members)) for is_small, members in grouped]


def _has_charts(section: Section) -> bool:
    return any(isinstance(part, Figure) for part in section.parts) or any(map(_has_charts, section.sections))


def _numbering() -> Callable[[str], str]:
    """Return a function that makes ids: t0, t1, c0 ..."""
    counters: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    return lambda prefix: f"{prefix}{next(counters[prefix])}"
