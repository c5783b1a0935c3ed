"""A report as one HTML file: opens from a disk, asks for nothing from outside, and lets nothing in it be markup."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hpcml.codec import Json
from hpcml.publication import Publication
from hpcml.report.html.swatches import swatch
from hpcml.report.plain_text import safe
from hpcml.report.study.drawing import drawn_text
from hpcml.report.study.parts import Chart, Section
from hpcml.report.study.study import study_of, styles_of

_BEGINNING = b"<!doctype html>\n<!-- hpcml report -->"
_DIGITS = 6  # of a number that is drawn: more than a screen can show
_SIGNS = {"good": "✓", "bad": "▼", "doubt": "?", "plain": "·"}


def is_report_page(head: bytes) -> bool:
    """Whether a file that begins with *head* is a report of ours."""
    return head.startswith(_BEGINNING)


def report_page(publication: Publication) -> str:
    """Return the whole file."""
    study = study_of(publication)
    styles = styles_of(publication)
    plotly = _plotly() if any(_charts(section) for section in study.sections) else ""
    script = _file("report.js")
    # what a name could do is known to be nothing in HTML; what it could hide from a reader is spelt out
    environment = Environment(
        loader=PackageLoader("hpcml.report.html", "files"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Markup) or not isinstance(value, str) else safe(value),
    )
    return environment.get_template("report.html").render(
        study=study,
        version=publication.hpcml_version,
        policy=_policy(filter(None, (plotly, script))),
        css=Markup(_file("report.css")),  # noqa: S704 - our own file
        plotly=Markup(plotly),  # noqa: S704 - plotly's own file
        script=Markup(script),  # noqa: S704 - our own file
        numbered=_numbering(),
        kind_of=lambda part: type(part).__name__,
        figure=_figure,
        swatch=lambda level: swatch(styles[level]),
        signs=_SIGNS,
    )


def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - 5 MB that are read for this alone

    # A parser turns every line's end into one character before the text is hashed
    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")


def _file(name: str) -> str:
    return (resources.files("hpcml.report.html") / "files" / name).read_text(encoding="utf-8")


def _policy(scripts: Iterator[str]) -> str:
    """Return what a browser may do with the page: run these very scripts, and get nothing from anywhere.

    Styles are allowed inline, since plotly sets them; images are what it makes of a chart for saving it.
    """
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _charts(section: Section) -> bool:
    return any(isinstance(part, Chart) for part in section.parts) or any(_charts(one) for one in section.sections)


def _numbering() -> Callable[[str], str]:
    """Return a maker of ids: t0, t1, c0 ..."""
    counters: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    return lambda prefix: f"{prefix}{next(counters[prefix])}"


def _figure(chart: Chart) -> Markup:
    """Return what report.js draws, as JSON that ends no script and no line."""
    value = {
        "traces": [
            {"level": trace.level, "drawn": _brief(dict(trace.drawn)), "xs": _brief(dict(trace.xs))}
            for trace in chart.traces
        ],
        "views": [{"key": view.key, "title": drawn_text(view.title)} for view in chart.views],
        "layout": _brief(dict(chart.layout)),
        "levels": list(chart.levels),
    }
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII alone: U+2028 is an escape in it
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - nothing is left in it that HTML knows


def _brief(value: Json) -> Json:
    """Return *value* with no more digits than can be seen, and without what JSON has no number for."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.{_DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    if isinstance(value, dict):
        return {key: _brief(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_brief(item) for item in value]
    return value
