"""Charts of a report, drawn by plotly: bars and dots with their intervals, the style of each level, and the axes.

Levels are told apart by colour, dash and marker, never by colour alone. Each chart is a function that returns a
`plotly.graph_objects.Figure`; plotly is loaded where one is drawn, since that takes its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcml.model.records import Point
from hpcml.report.document import Column, Figure, Listing
from hpcml.report.text import safe

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

_INERT = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "%": "&#37;"}
_LINE_PX, _AROUND_PX = 36, 96
_BELOW_PX = 60  # what an axis and its title take
_LONGEST_NAME = 32  # characters beside an axis: a longer one would leave no room for what is drawn

# M. Okabe, K. Ito, Color Universal Design (2008), without its black and its yellow, which vanish on one background
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")  # 7: with 6 colours, 42 pairs
NEUTRAL = "#808080"  # of what belongs to no level


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelStyle:
    """The colour (``#rrggbb``), line and marker of a level in all charts of a report, as plotly names them."""

    colour: str
    dash: str
    marker: str

    def faint(self, opacity: float) -> str:
        """Return the colour with *opacity* between 0 and 1, as CSS's ``rgba()``."""
        red, green, blue = (int(self.colour[index : index + 2], 16) for index in (1, 3, 5))
        return f"rgba({red},{green},{blue},{opacity:g})"


Styles = Mapping[str, LevelStyle]


def level_styles(levels: Sequence[str]) -> Styles:
    """Return a style for each of *levels*, which may repeat; 42 levels differ in colour or marker at least.

    The colours are those of Okabe and Ito, which people with colour blindness can tell apart.
    """
    return {
        level: LevelStyle(
            colour=_COLOURS[index % len(_COLOURS)],
            dash=_DASHES[index % len(_DASHES)],
            marker=_MARKERS[index % len(_MARKERS)],
        )
        for index, level in enumerate(dict.fromkeys(levels))
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelValue:
    """A level's value in the unit of the chart, with the ends of its interval; None where there is none."""

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


def plot(*, x: Mapping[str, Any], y: Mapping[str, Any], height_px: int = 340, **layout: Any) -> Plot:  # noqa: ANN401
    """Return an empty plot with these axes, as plotly names their properties; a legend stands below it."""
    from plotly.graph_objects import Figure as Plot  # noqa: PLC0415 - takes its time

    axis = {"automargin": True, "gridcolor": "#d5dae0", "linecolor": "#d5dae0", "zerolinecolor": "#a7b0ba"}
    return Plot(
        layout={
            "template": "none",
            "height": height_px,
            "margin": {"l": 48, "r": 16, "t": 12, "b": 44},
            "font": {"size": 12, "color": "#1b1f24"},
            "legend": {"orientation": "h", "y": -_BELOW_PX / (height_px - _BELOW_PX), "yanchor": "top"},
            "hovermode": "closest",
            "xaxis": {**axis, **x},
            "yaxis": {**axis, **y},
            **layout,
        }
    )


def titled(text: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - plotly's values
    """Return a plotly axis with a title; *more* are further properties of the axis, as plotly names them."""
    return {"title": {"text": drawn_text(text)}, **more}


def named_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return a vertical plotly axis with *names* from top to bottom; of long ones the middle is left out.

    "category": names that are numbers, or look like dates, are names all the same.
    """
    half = _LONGEST_NAME // 2
    short = [name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}...{name[2 - half :]}" for name in names]
    return {
        "type": "category",
        "autorange": "reversed",
        "tickmode": "array",
        "tickvals": [drawn_text(name) for name in names],
        "ticktext": [drawn_text(name) for name in short],
    }


def choices(buttons: Sequence[tuple[str, str, Sequence[Any]]], *, x: float) -> dict[str, Any]:
    """Return a row of buttons for `updatemenus` of a plot, each a label, plotly's method and its arguments."""
    return {
        "type": "buttons",
        "direction": "right",
        "showactive": True,
        "x": x,
        "xanchor": "left",
        "y": 1.02,
        "yanchor": "bottom",
        "pad": {"t": 0, "b": 4},
        "buttons": [
            {"label": drawn_text(label), "method": method, "args": list(arguments)}
            for label, method, arguments in buttons
        ],
    }


LOG_AXIS = (("linear", "relayout", [{"yaxis.type": "linear"}]), ("log", "relayout", [{"yaxis.type": "log"}]))


def bars(title: str, unit: str, whiskers: str, measured: Sequence[LevelValue], styles: Styles) -> Figure:
    """Return horizontal bars from zero, one for each of *measured*; *whiskers* says what the intervals are."""
    return _levelled(title, unit, whiskers, measured, partial(_bars, title, unit, measured, styles))


def _bars(title: str, unit: str, measured: Sequence[LevelValue], styles: Styles) -> Plot:
    drawn = _level_plot(title, unit, measured, rangemode="tozero")
    for each in measured:
        drawn.add_bar(
            orientation="h",
            x=[each.value],
            y=[drawn_text(each.level)],
            error_x={**_whisker(each), "color": "gray"},
            marker={"color": styles[each.level].colour},
            hovertemplate=f"%{{x:.4g}} {drawn_text(unit)}",
            name="",
        )
    return drawn


def dots(
    title: str,
    unit: str,
    whiskers: str,
    measured: Sequence[LevelValue],
    styles: Styles,
    *,
    line_at: float,
    within: tuple[float, float] | None = None,
) -> Figure:
    """Return dots with intervals beside a line at *line_at*; the range *within* is shaded.

    For differences the line is at 0, for ratios at 1. *measured* must not be empty.
    """
    draw = partial(_dots, title, unit, measured, styles, line_at=line_at, within=within)
    return _levelled(title, unit, whiskers, measured, draw)


def _dots(
    title: str,
    unit: str,
    measured: Sequence[LevelValue],
    styles: Styles,
    *,
    line_at: float,
    within: tuple[float, float] | None,
) -> Plot:
    drawn = _level_plot(title, unit, measured)
    for each in measured:
        style = styles[each.level]
        drawn.add_scatter(
            mode="markers",
            x=[each.value],
            y=[drawn_text(each.level)],
            error_x={**_whisker(each), "color": style.colour, "thickness": 2.5, "width": 7},
            marker={"color": style.colour, "symbol": style.marker, "size": 12},
            hovertemplate=f"%{{x:.4g}} {drawn_text(unit)}",
            name="",
        )
    drawn.add_vline(x=line_at, line={"width": 1.5, "dash": "dash", "color": "gray"}, layer="below")
    if within is not None:
        drawn.add_vrect(*within, fillcolor="gray", opacity=0.15, line={"width": 0}, layer="below")
    # a shape makes no room for itself: its ends are drawn as points that nobody sees
    ends = [line_at, *(within or ())]
    drawn.add_scatter(
        mode="markers",
        x=ends,
        y=[drawn_text(measured[0].level)] * len(ends),
        marker={"opacity": 0},
        hoverinfo="skip",
    )
    return drawn


def _level_plot(title: str, unit: str, measured: Sequence[LevelValue], **axis: Any) -> Plot:  # noqa: ANN401
    return plot(
        x=titled(unit or title, **axis),
        y=named_axis([each.level for each in measured]),
        height_px=_AROUND_PX + _LINE_PX * len(measured),
        showlegend=False,
    )


def _levelled(title: str, unit: str, whiskers: str, measured: Sequence[LevelValue], draw: Callable[[], Plot]) -> Figure:
    """Return a figure with a line for each level, described in words and with its numbers as a table."""
    has_whiskers = any(each.low is not None for each in measured)
    with_unit = f" in {unit}" if unit else ""
    what = f"{title}{with_unit}{f'; whiskers: {whiskers}' if has_whiskers else ''}"
    columns: list[Column[LevelValue]] = [
        Column("level", "level", lambda each: each.level),
        Column("value", "value", lambda each: each.value, unit=unit),
        Column("low", "low", lambda each: each.low, unit=unit),
        Column("high", "high", lambda each: each.high, unit=unit),
    ]
    return Figure(
        title=title,
        described=f"{what}. {'; '.join(map(_spoken, measured))}.",
        draw=draw,
        numbers=Listing(caption=what, columns=columns, rows=measured),
        repeats_a_table=True,
    )


def _whisker(each: LevelValue) -> dict[str, Any]:
    if each.low is None or each.high is None:
        return {"visible": False}
    return {
        "type": "data",
        "symmetric": False,
        "array": [each.high - each.value],
        "arrayminus": [each.value - each.low],
    }


def _spoken(each: LevelValue) -> str:
    interval = "" if each.low is None or each.high is None else f" from {_short(each.low)} to {_short(each.high)}"
    return f"{each.level}: {_short(each.value)}{interval}"


def _short(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"


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
    for number in range(count):
        stretch = inner[number * len(inner) // count : (number + 1) * len(inner) // count]
        finite = [index for index, point in enumerate(stretch) if math.isfinite(point.value)]
        chosen = {next((index for index, point in enumerate(stretch) if not math.isfinite(point.value)), None)}
        if finite:
            chosen |= {min(finite, key=lambda index: stretch[index].value)}
            chosen |= {max(finite, key=lambda index: stretch[index].value)}
        kept += [stretch[index] for index in sorted(index for index in chosen if index is not None)]
    return [points[0], *kept, points[-1]]
