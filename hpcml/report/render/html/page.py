"""A report as one HTML file: opens from a disk, loads nothing from the network, and escapes all text."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hpcml.codec import Json
from hpcml.report.charts import drawn_text
from hpcml.report.document import Chart, Document, Entry, LevelStyle, Part, Section, Table, TableColumn
from hpcml.report.text import safe

_BEGINNING = b"<!doctype html>\n<!-- hpcml report -->"
_DIGITS = 6  # of a number that is drawn: more than a screen can show
_LONG = 24  # characters, from which on a cell has a line of a card for itself
_LAID_OUT = 500  # rows of a longer table; the others are values, of which a script makes rows when they are asked for
_FILTERED = 30  # rows, from which on a table can be searched
_SIGNS = {"good": "✓", "bad": "▼", "doubt": "?", "plain": "·"}

_DASHES: Mapping[str, str] = {
    "solid": "none",
    "dash": "7 4",
    "dot": "2 3",
    "dashdot": "7 3 2 3",
    "longdash": "11 5",
    "longdashdot": "11 3 2 3",
}


def is_report_page(head: bytes) -> bool:
    """Whether a file that begins with *head* is a report written by `as_page`; no other file is replaced."""
    return head.startswith(_BEGINNING)


def as_page(document: Document) -> str:
    """Return the whole file; it contains plotly.js, deflated, where there is a chart.

    A Content-Security-Policy in it lets nothing be loaded and no script run but these. Every name that a run brought
    along is escaped, in the text as well as in the charts.
    """
    has_charts = any(_charts(section) for section in document.sections)
    plotly, script = _plotly() if has_charts else None, _script()
    # what a name could do is known to be nothing in HTML; what it could hide from a reader is spelt out
    environment = Environment(
        loader=PackageLoader("hpcml.report.render.html", "files"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Markup) or not isinstance(value, str) else safe(value),
    )
    return environment.get_template("report.html").render(
        document=document,
        version=document.made_by,
        policy=_policy([*([plotly.sha256] if plotly else []), _sha256(script)]),
        css=Markup(_file("report.css")),  # noqa: S704 - our own file
        plotly=Markup(plotly.text) if plotly else "",  # noqa: S704 - base64
        script=Markup(script),  # noqa: S704 - our own file
        numbered=_numbering(),
        beside=_beside,
        kind_of=lambda part: type(part).__name__,
        figure=_figure,
        attributes=_attributes,
        laid_out=_LAID_OUT,
        filtered=_FILTERED,
        values=_values,
        swatch=lambda level: _swatch(document.styles[level]),
        signs=_SIGNS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packed:
    """A script in base64, as zlib deflates it, a third as long; charts.js unpacks it. `sha256` is its digest."""

    text: str
    sha256: str


@cache  # a page that follows its runs is made again and again, and this takes longer than all the rest
def _plotly() -> _Packed:
    # from its file: the package itself is not needed, and takes its time
    text = (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return _Packed(text=base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii"), sha256=_sha256(text))


def _sha256(script: str) -> str:
    """Return the digest of *script* as a policy names it; a parser makes every end of a line one character, as here."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _file(name: str) -> str:
    return (resources.files("hpcml.report.render.html") / "files" / name).read_text(encoding="utf-8")


def _script() -> str:
    """Return the page's own script, which is cut into files by topic."""
    parts = [_file(name) for name in ("curves.js", "charts.js", "tables.js", "page.js")]
    return "\n".join(['"use strict";', "(() => {", "const root = document.documentElement;", *parts, "})();"])


def _attributes(entry: Entry, column: TableColumn) -> Markup:
    """Return the attributes of a cell: none of a plain word.

    A number that is written as it is sorted needs no order besides.
    """
    classes: list[str] = [entry.tone] if entry.tone != "plain" else []
    classes += ["number"] if column.is_number else []
    classes += ["long"] if len(entry.text) > _LONG else []
    told = Markup(' class="{}"').format(" ".join(classes)) if classes else Markup("")
    order = _order(entry, column)
    return told if order is None else told + Markup(' data-order="{}"').format(order)


def _order(entry: Entry, column: TableColumn) -> float | None:
    """Return what sorts the cell; None: its text does, as a number where the column is one of numbers."""
    if entry.order is None or not column.is_number:
        return entry.order
    try:
        return None if float(entry.text) == entry.order else entry.order
    except ValueError:
        return entry.order


def _values(table: Table) -> Markup:
    """Return all cells of *table* as JSON for tables.js: for each column its different cells, and which each row has.

    A cell is its text, or a list of its text, its order and its tone.
    """
    columns = []
    for at, column in enumerate(table.columns):
        known: dict[Entry, int] = {}
        places = [known.setdefault(row[at], len(known)) for row in table.rows]
        in_order = len(known) == len(places)  # all are different: the places would only count
        columns.append({"cells": [_cell(entry, column) for entry in known], "at": None if in_order else places})
    return _json(columns)


def _cell(entry: Entry, column: TableColumn) -> Json:
    order = _order(entry, column)
    text = safe(entry.text)
    if order is None and entry.tone == "plain":
        return text
    return [text, order if order is not None and math.isfinite(order) else None, entry.tone]


def _beside(parts: Sequence[Part]) -> list[tuple[bool, list[Part]]]:
    """Return neighbours that stand beside each other, which are charts that are not wide, together, in their order."""
    grouped = itertools.groupby(parts, key=lambda part: isinstance(part, Chart) and not part.is_wide)
    return [(is_small, list(those)) for is_small, those in grouped]


def _policy(digests: Sequence[str]) -> str:
    """Return the page's Content-Security-Policy: the scripts with these SHA-256 may run, nothing is loaded.

    Styles are allowed inline, since plotly sets them; images are
    what it makes of a chart for saving it.
    """
    allowed = " ".join(f"'sha256-{one}'" for one in digests) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _charts(section: Section) -> bool:
    return any(isinstance(part, Chart) for part in section.parts) or any(_charts(one) for one in section.sections)


def _numbering() -> Callable[[str], str]:
    """Return a function that makes ids: t0, t1, c0 ..."""
    counters: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    return lambda prefix: f"{prefix}{next(counters[prefix])}"


def _figure(chart: Chart) -> Markup:
    """Return the chart as JSON for charts.js, escaped so that it ends no script element and no line."""
    value = {
        "traces": [
            {"level": trace.level, "role": trace.role, "drawn": _brief(dict(trace.drawn)), "xs": _brief(dict(trace.xs))}
            for trace in chart.traces
        ],
        "views": [{"key": view.key, "title": drawn_text(view.title)} for view in chart.views],
        "layout": _brief(dict(chart.layout)),
        "levels": list(chart.levels),
    }
    return _json(value)


def _json(value: object) -> Markup:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII alone: U+2028 is an escape in it
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - nothing is left in it that HTML knows


def _brief(value: Json) -> Json:
    """Return *value* with no more digits than can be seen, and None in place of nan and infinities."""
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


def _swatch(style: LevelStyle) -> Markup:
    """Return an SVG of the level's line and marker, hidden from screen readers."""
    picture = Markup(
        '<svg width="36" height="14" viewBox="0 0 36 14" aria-hidden="true" focusable="false">'
        '<line x1="0" x2="36" y1="7" y2="7" stroke="{colour}" stroke-width="3" stroke-dasharray="{dash}"/>'
        '<polygon points="{points}" fill="{colour}"/></svg>'
    )
    return picture.format(colour=style.colour, dash=_DASHES[style.dash], points=_outline(style.marker))


def _outline(marker: str) -> str:
    corners: Mapping[str, list[tuple[float, float]]] = {
        "circle": _ring(24),
        "square": [(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)],
        "diamond": [(0, -6), (6, 0), (0, 6), (-6, 0)],
        "triangle-up": [(0, -6), (6, 5), (-6, 5)],
        "cross": _cross(0),
        "x": _cross(math.pi / 4),
        "star": [
            (r * math.sin(at * math.pi / 5), -r * math.cos(at * math.pi / 5)) for at, r in enumerate([6.5, 2.6] * 5)
        ],
    }
    return " ".join(f"{18 + x:.1f},{7 + y:.1f}" for x, y in corners[marker])


def _ring(count: int) -> list[tuple[float, float]]:
    return [(5 * math.cos(2 * math.pi * at / count), 5 * math.sin(2 * math.pi * at / count)) for at in range(count)]


def _cross(turned: float) -> list[tuple[float, float]]:
    long, short = 6.0, 2.0
    arm = [(-short, -long), (short, -long), (short, -short)]
    corners = []
    for quarter in range(4):
        angle = turned + quarter * math.pi / 2
        corners += [
            (x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)) for x, y in arm
        ]
    return corners
