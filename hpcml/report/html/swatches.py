"""The little pictures beside the names of levels: what plotly draws, in the same colour, dash and marker."""

from __future__ import annotations

import math
from collections.abc import Mapping

from markupsafe import Markup

from hpcml.report.study.styles import LevelStyle

_DASHES: Mapping[str, str] = {
    "solid": "none",
    "dash": "7 4",
    "dot": "2 3",
    "dashdot": "7 3 2 3",
    "longdash": "11 5",
    "longdashdot": "11 3 2 3",
}


def swatch(style: LevelStyle) -> Markup:
    """Return an SVG of a line with a marker; it says nothing to those who do not see it."""
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
