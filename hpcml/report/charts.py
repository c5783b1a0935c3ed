"""Charts of a report (plotly): axes, bars and dots with their intervals, colours; all text is escaped.

Levels are told apart by colour, dash and marker, never by colour alone. The dictionaries that are built here are traces
and layouts as https://plotly.com/javascript/reference/ describes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcml.codec import Json
from hpcml.model.records import Point
from hpcml.report.document import Chart, LevelStyle, Table, Trace, View, figure, number_column, text_column, words
from hpcml.report.text import safe

ONLY = "x"  # the view of a chart whose axis can stand for one thing alone
_INERT = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "%": "&#37;"}
_LINE_PX, _AROUND_PX = 36, 96
_LONGEST_NAME = 32  # characters beside an axis: a longer one would leave no room for what is drawn

# M. Okabe, K. Ito, Color Universal Design (2008), without its black and its yellow, which vanish on one background
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")  # 7: with 6 colours, 42 pairs
NEUTRAL = "#808080"  # of what belongs to no level; visible on white and on black


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelValue:
    """A level's value, with the ends of its interval; None where there is none.

    All three are in the unit of the chart.
    """

    level: str
    value: float
    low: float | None = None
    high: float | None = None


def drawn_text(text: object) -> str:
    """Return *text* escaped for plotly, which would read some HTML, formulas and templates in it.

    >>> drawn_text("<b>fp16</b>")
    '&lt;b&gt;fp16&lt;/b&gt;'
    """
    return "".join(_INERT.get(character, character) for character in safe(text))


def titled(text: str, **more: Json) -> dict[str, Json]:
    """Return a plotly axis with a title; *more* are further properties of the axis, as plotly names them."""
    return {"title": {"text": drawn_text(text)}, "automargin": True, **more}


def named_axis(names: Sequence[str]) -> dict[str, Json]:
    """Return a vertical plotly axis with *names* from top to bottom; long ones lose their middle, and are not lost.

    "category": names that are numbers, or look like dates, are names all the same.
    """
    axis: dict[str, Json] = {"type": "category", "autorange": "reversed", "automargin": True}
    if all(len(name) <= _LONGEST_NAME for name in names):
        return axis
    half = _LONGEST_NAME // 2
    short = [name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}...{name[2 - half :]}" for name in names]
    drawn = {drawn_text(name): drawn_text(cut) for name, cut in zip(names, short, strict=True)}
    return {**axis, "tickmode": "array", "tickvals": list(drawn), "ticktext": list(drawn.values())}


def bars(
    title: str, unit: str, whiskers: str, measured: Sequence[LevelValue], styles: Mapping[str, LevelStyle]
) -> Chart:
    """Return horizontal bars from zero; *whiskers* says in words what the intervals are.

    There is a bar for each of *measured*, from top to bottom, in the colour of its level in *styles*. The values are in
    *unit*, which may be "".
    """
    traces = [
        Trace(
            level=each.level,
            drawn={
                "type": "bar",
                "orientation": "h",
                "y": [drawn_text(each.level)],
                "error_x": _whisker(each),
                "marker": {"color": styles[each.level].colour},
                "hovertemplate": f"%{{x:.4g}} {drawn_text(unit)}",
                "name": drawn_text(each.level),
            },
            xs={ONLY: [each.value]},
        )
        for each in measured
    ]
    return _levelled(title, unit, whiskers, measured, traces, {"rangemode": "tozero"})


def dots(
    title: str,
    unit: str,
    whiskers: str,
    measured: Sequence[LevelValue],
    styles: Mapping[str, LevelStyle],
    *,
    line_at: float,
    within: tuple[float, float] | None = None,
) -> Chart:
    """Return dots with intervals beside a line at *line_at*; the range *within* is shaded.

    For differences the line is at 0, for ratios at 1. *measured* must not be empty; values, line and range are in
    *unit*, which may be "".
    """
    traces = [
        Trace(
            level=each.level,
            drawn={
                "type": "scatter",
                "mode": "markers",
                "y": [drawn_text(each.level)],
                "error_x": {**_whisker(each), "color": styles[each.level].colour, "thickness": 2.5, "width": 7},
                "marker": {"color": styles[each.level].colour, "symbol": styles[each.level].marker, "size": 12},
                "hovertemplate": f"%{{x:.4g}} {drawn_text(unit)}",
                "name": drawn_text(each.level),
            },
            xs={ONLY: [each.value]},
        )
        for each in measured
    ]
    shapes: list[Json] = [_upright(line_at, line_at, line={"width": 1.5, "dash": "dash", "color": "gray"})]
    if within is not None:
        shapes.append(_upright(*within, line={"width": 0}, fillcolor="gray", opacity=0.15))
    chart = _levelled(title, unit, whiskers, measured, traces, {})
    # A shape does not make room for itself: the ends of what is shaded are drawn as points that nobody sees
    unseen = {"type": "scatter", "mode": "markers", "marker": {"opacity": 0}, "hoverinfo": "skip"}
    ends = [line_at, *(within or ())]
    first = drawn_text(measured[0].level)
    room = Trace(level=None, drawn={**unseen, "y": [first] * len(ends)}, xs={ONLY: ends})
    return Chart(
        title=chart.title,
        described=chart.described,
        traces=[*chart.traces, room],
        views=chart.views,
        layout={**chart.layout, "shapes": shapes},
        numbers=chart.numbers,
        height_px=chart.height_px,
        is_wide=False,
        repeats_a_table=True,
    )


def _levelled(
    title: str,
    unit: str,
    whiskers: str,
    measured: Sequence[LevelValue],
    traces: Sequence[Trace],
    axis: Mapping[str, Json],
) -> Chart:
    """Return a chart with a line for each level, described in words and with its numbers as a table."""
    has_whiskers = any(each.low is not None for each in measured)
    with_unit = f" in {unit}" if unit else ""
    what = f"{title}{with_unit}{f'; whiskers: {whiskers}' if has_whiskers else ''}"
    columns = [text_column("level"), number_column("value", unit)]
    rows = [[words(each.level), figure(each.value)] for each in measured]
    if has_whiskers:
        columns += [number_column("low", unit), number_column("high", unit)]
        rows = [[*row, figure(each.low), figure(each.high)] for row, each in zip(rows, measured, strict=True)]
    return Chart(
        title=title,
        described=f"{what}. {'; '.join(_spoken(each) for each in measured)}.",
        traces=traces,
        views=[View(key=ONLY, label=title, title=unit)],
        layout={
            "xaxis": {"automargin": True, **axis},
            "yaxis": named_axis([each.level for each in measured]),
            "barmode": "overlay",
        },
        numbers=Table(caption=what, columns=columns, rows=rows),
        height_px=_AROUND_PX + _LINE_PX * len(measured),
        is_wide=False,
        repeats_a_table=True,
    )


def _whisker(each: LevelValue) -> dict[str, Json]:
    if each.low is None or each.high is None:
        return {"visible": False}
    return {
        "type": "data",
        "symmetric": False,
        "array": [each.high - each.value],
        "arrayminus": [each.value - each.low],
        "color": "gray",
    }


def _spoken(each: LevelValue) -> str:
    interval = "" if each.low is None or each.high is None else f" from {_said(each.low)} to {_said(each.high)}"
    return f"{each.level}: {_said(each.value)}{interval}"


def _said(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"


def _upright(left: float, right: float, **how: Json) -> dict[str, Json]:
    """Return a plotly shape: a rectangle from *left* to *right* over the whole height, a line where they are equal."""
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": left,
        "x1": right,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        **how,
    }


def level_styles(levels: Sequence[str]) -> Mapping[str, LevelStyle]:
    """Return a style for each of *levels*; the first styles go to the first levels.

    A level may be named several times and still has one style. With 6 colours and 7 markers, 42 levels differ in at
    least one of them. The colours are those of Okabe and Ito, which people with colour blindness can tell apart.
    """
    return {
        level: LevelStyle(
            colour=_COLOURS[at % len(_COLOURS)], dash=_DASHES[at % len(_DASHES)], marker=_MARKERS[at % len(_MARKERS)]
        )
        for at, level in enumerate(dict.fromkeys(levels))
    }


def decimate(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most *most* (8 or more) of *points*; all of them where they are so few.

    The points are cut into stretches of equal number; of each the smallest and the largest value stay, in their order,
    and one that is not finite, if there is any: a gap must stay a gap. The first and the last point stay.
    """
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    count = (most - 2) // 3  # stretches; a gap is the third point that one may keep
    kept: list[Point] = []
    for at in range(count):
        stretch = inner[at * len(inner) // count : (at + 1) * len(inner) // count]
        finite = [at for at, point in enumerate(stretch) if math.isfinite(point.value)]
        chosen = {next((at for at, point in enumerate(stretch) if not math.isfinite(point.value)), None)}
        if finite:
            chosen |= {min(finite, key=lambda at: stretch[at].value), max(finite, key=lambda at: stretch[at].value)}
        kept += [stretch[at] for at in sorted(at for at in chosen if at is not None)]
    return [points[0], *kept, points[-1]]
