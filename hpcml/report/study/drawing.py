"""What all charts of a report share: axes, horizontal bars and dots with their intervals, text that stays text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcml.codec import Json
from hpcml.report.plain_text import safe
from hpcml.report.study.entries import figure, number_column, text_column, words
from hpcml.report.study.parts import Chart, Table, Trace, View
from hpcml.report.study.styles import LevelStyle

ONLY = "x"  # the view of a chart whose axis can stand for one thing alone
_INERT = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "%": "&#37;"}
_LINE_PX, _AROUND_PX = 36, 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A level's number, with the ends of its whisker where there is one."""

    level: str
    value: float
    low: float | None = None
    high: float | None = None


def drawn_text(text: object) -> str:
    """Return *text* for a place where plotly understands some HTML, formulas and names of values: none of it is any."""
    return "".join(_INERT.get(character, character) for character in safe(text))


def titled(text: str, **more: Json) -> dict[str, Json]:
    """Return an axis with a title."""
    return {"title": {"text": drawn_text(text)}, "automargin": True, **more}


def bars(title: str, unit: str, whiskers: str, measured: Sequence[Measured], styles: Mapping[str, LevelStyle]) -> Chart:
    """Return horizontal bars from zero; *whiskers* says what their whiskers are."""
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
    measured: Sequence[Measured],
    styles: Mapping[str, LevelStyle],
    *,
    line_at: float,
    within: tuple[float, float] | None = None,
) -> Chart:
    """Return dots with whiskers against a line; what lies *within* a range is shaded."""
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
    measured: Sequence[Measured],
    traces: Sequence[Trace],
    axis: Mapping[str, Json],
) -> Chart:
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
        # "category": levels that are numbers, or look like dates, are names all the same
        layout={
            "xaxis": {"automargin": True, **axis},
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
            "barmode": "overlay",
        },
        numbers=Table(caption=what, columns=columns, rows=rows),
        height_px=_AROUND_PX + _LINE_PX * len(measured),
        is_wide=False,
        repeats_a_table=True,
    )


def _whisker(each: Measured) -> dict[str, Json]:
    if each.low is None or each.high is None:
        return {"visible": False}
    return {
        "type": "data",
        "symmetric": False,
        "array": [each.high - each.value],
        "arrayminus": [each.value - each.low],
        "color": "gray",
    }


def _spoken(each: Measured) -> str:
    interval = "" if each.low is None or each.high is None else f" from {_said(each.low)} to {_said(each.high)}"
    return f"{each.level}: {_said(each.value)}{interval}"


def _said(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"


def _upright(left: float, right: float, **how: Json) -> dict[str, Json]:
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
