"""Curves of a metric: `hpcml show --curve` as lines of characters and as points, and the chart of a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcml.analysis.compare.result import Band, ReportGroup
from hpcml.model.choices import Numerics
from hpcml.model.query_results import Curves
from hpcml.model.records import Point, RunRecord
from hpcml.report.charts import LOG_AXIS, LevelStyle, Styles, choices, decimate, drawn_text, plot, titled
from hpcml.report.contents import GroupCurves
from hpcml.report.document import Column, Document, Figure, Listing, Section
from hpcml.report.runs import (
    metric_words,
    name_heading,
    name_words,
    precision_words,
    title,
    uid_words,
)
from hpcml.report.text import number
from hpcml.report.text_charts import axes, sparkline

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

_NONE: Mapping[str, str] = {}
_WIDTH, _NARROW = 32, 12  # characters of a curve
_SHORT = 20  # a curve over so small a part of the steps has an axis of its own


def curves_document(curves: Curves, *, apart: Mapping[str, str] = _NONE) -> Document:
    """Return a line for each run with its curve, all drawn to the same scale; *apart* is by uid what tells a run apart.

    CSV has a line for each point: uid, step, t_s (seconds since the start of the run) and the metric. JSON has the
    metric's name, and for each run its uid and its points.
    """
    points = [(run, point) for run in curves.runs for point in curves.points[run.uid]]
    flat: Listing[tuple[RunRecord, Point]] = Listing(
        columns=[
            Column("uid", None, lambda row: row[0].uid),
            Column("step", None, lambda row: row[1].step),
            Column("t_s", None, lambda row: row[1].t_s),
            Column(curves.metric, None, lambda row: row[1].value),
        ],
        rows=points,
    )
    listed = [{"uid": run.uid, "points": [point._asdict() for point in curves.points[run.uid]]} for run in curves.runs]
    return Document(
        sections=[Section(parts=[Listing(columns=list(_columns(curves, apart)), rows=curves.runs)])],
        data=[flat],
        record={"metric": curves.metric, "curves": listed},
    )


def _columns(curves: Curves, apart: Mapping[str, str]) -> Iterator[Column[RunRecord]]:
    named = name_heading(curves.runs)
    steps, values = axes([curves.points[run.uid] for run in curves.runs])

    def summary(run: RunRecord, name: str) -> float | None:
        found = run.metrics.get(curves.metric)
        return None if found is None else getattr(found, name)

    def first(run: RunRecord) -> float | None:
        points = curves.points[run.uid]
        return points[0].value if points else summary(run, "first")

    show_uid = uid_words(curves.runs)
    yield Column("", "run", lambda run: run.uid, lambda run: show_uid(run.uid))
    yield Column("", named, lambda run: name_words(run, named))
    yield Column("", "settings", lambda run: apart.get(run.uid, ""))
    yield Column("", "precision", precision_words)
    yield Column("", "seed", lambda run: run.seed)
    yield Column("", curves.metric, lambda run: _line(curves.points[run.uid], steps, values))
    yield Column("", "first", first, is_short=False)
    yield Column("", "last", lambda run: summary(run, "last_or_nan"), lambda run: _last(run, curves), is_number=True)
    yield Column("", "min", lambda run: summary(run, "min"), is_number=True)
    yield Column("", "max", lambda run: summary(run, "max"), is_number=True)


def _last(run: RunRecord, curves: Curves) -> str:
    """Return the last value; only the points know whether one that is not finite is nan or an infinity."""
    summary, points = run.metrics.get(curves.metric), curves.points[run.uid]
    if summary is not None and summary.last is None and points and points[-1].step == summary.last_step:
        return number(points[-1].value)
    return metric_words(None if summary is None else summary.last_or_nan)


def _line(points: Sequence[Point], steps: tuple[int, int], values: tuple[float, float]) -> str:
    """Return the curve of a run over *steps*, or, where these are few, over its own, and says to which."""
    (first, last), _ = axes([points])
    if len(points) > 1 and (last - first + 1) * _SHORT <= steps[1] - steps[0] + 1:
        own = sparkline(points, width=min(_NARROW, last - first + 1), steps=(first, last), values=values)
        return f"{own} to step {last}"
    return sparkline(points, width=_WIDTH, steps=steps, values=values)


POINTS = 90_000  # of all curves of a report: about 2 MB of its file
_MOST, _FEWEST = 1000, 20  # of one curve
_MOST_CURVES = 1500  # with more, a drawing of each is a blot and no browser likes it: then means alone
_LISTED = 10  # places of a mean that the table names
_VIEWS = {"step": "step", "time": "seconds since the start"}


def curve_chart(found: GroupCurves, group: ReportGroup, styles: Styles, *, curves: int) -> Figure | None:
    """Return the chart of one group, or None where nothing was recorded.

    Its horizontal axis can show steps or seconds. Thin lines are runs, dotted where a
    run does not count, thick ones means over seeds with their 95 % interval.

    *curves* is the number of curves in the whole report: the more there are, the fewer points each of them keeps,
    `POINTS` in all. With more than 1500 only the means are drawn. *styles* has the style of each level.
    """
    points = {uid: points for uid, points in found.curves.points.items() if points}
    levels = [level.name for level in group.levels if any(uid in points for uid in level.uids)]
    if not levels:
        return None
    most = max(_FEWEST, min(_MOST, POINTS // curves))
    metric, are_drawn = found.curves.metric, curves <= _MOST_CURVES
    is_cut = any(len(one) > most for one in points.values())
    described = [
        _described(metric, len(points), is_cut=is_cut, most=most, are_drawn=are_drawn),
        *_without(found, found.curves.runs),
    ]
    return Figure(
        title=metric,
        described=" ".join(described),
        draw=partial(_curve_plot, found, group, styles, most if are_drawn else 0),
        numbers=_curve_numbers(found, levels),
        is_wide=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trace:
    """A line of the chart: plotly's properties, and its x values for each quantity that the axis can show."""

    drawn: Mapping[str, Any]
    xs: Mapping[str, Sequence[float | None]]


def _curve_plot(found: GroupCurves, group: ReportGroup, styles: Styles, most: int) -> Plot:
    """Return the chart, of each run with *most* of its points (0: means alone); buttons choose the horizontal axis."""
    traces = [*(_runs(found, group, styles, most) if most else ()), *_means(found, group, styles)]
    drawn = plot(x=titled("step"), y=titled(found.curves.metric), height_px=420)
    for trace in traces:
        drawn.add_scatter(x=trace.xs.get("step"), visible="step" in trace.xs, **trace.drawn)
    buttons = [
        (
            view,
            "update",
            [
                {"x": [trace.xs.get(view) for trace in traces], "visible": [view in trace.xs for trace in traces]},
                {"xaxis.title.text": _VIEWS[view], "xaxis.autorange": True},
            ],
        )
        for view in _VIEWS
    ]
    drawn.update_layout(updatemenus=[choices(buttons, x=0), choices(LOG_AXIS, x=0.5)], margin_t=48)
    return drawn


def _runs(found: GroupCurves, group: ReportGroup, styles: Styles, most: int) -> Iterator[_Trace]:
    runs = {run.uid: run for run in found.curves.runs}
    for level in group.levels:
        style, names_level = styles[level.name], not found.bands.get(level.name)
        for uid in level.uids:
            if points := found.curves.points.get(uid):
                kept, counts = decimate(points, most), uid in level.counted
                name = f"{uid} {title(runs[uid])}, {level.name}, seed {runs[uid].seed}"
                yield _Trace(
                    drawn={
                        "mode": "lines" if len(kept) > 1 else "markers",
                        "y": [point.value if math.isfinite(point.value) else None for point in kept],
                        "line": {"width": 1, "color": style.faint(0.45), "dash": "solid" if counts else "dot"},
                        "marker": {"color": style.colour, "symbol": style.marker},
                        "hovertemplate": "%{x:.6g}: %{y:.5g}<br>%{meta}<extra></extra>",
                        "meta": drawn_text(f"{name}{'' if counts else ', does not count'}"),
                        "name": drawn_text(level.name),
                        "legendgroup": drawn_text(level.name),
                        "showlegend": names_level,
                    },
                    xs={"step": [point.step for point in kept], "time": [point.t_s for point in kept]},
                )
                names_level = False


def _means(found: GroupCurves, group: ReportGroup, styles: Styles) -> Iterator[_Trace]:
    for level in group.levels:
        for view, band in found.bands.get(level.name, {}).items():
            yield from _mean(band, view, level.name, styles[level.name])


def _mean(band: Band, view: str, level: str, style: LevelStyle) -> Iterator[_Trace]:
    """Yield the interval around a mean, as far as there is one, and the mean."""
    sides = [
        (x, low, high) for x, low, high in zip(band.x, band.low, band.high, strict=True) if None not in (low, high)
    ]
    if len(sides) > 1:
        yield _Trace(
            drawn={
                "mode": "lines",
                "y": [*(high for _, _, high in sides), *(low for _, low, _ in reversed(sides))],
                "fill": "toself",
                "fillcolor": style.faint(0.2),
                "line": {"width": 0},
                "hoverinfo": "skip",
                "legendgroup": drawn_text(level),
                "showlegend": False,
            },
            xs={view: [*(x for x, *_ in sides), *(x for x, *_ in reversed(sides))]},
        )
    yield _Trace(
        drawn={
            "mode": "lines+markers",
            "y": list(band.mean),
            "line": {"width": 3, "color": style.colour, "dash": style.dash},
            "marker": {"color": style.colour, "symbol": style.marker, "size": 9, "maxdisplayed": 8},
            "hovertemplate": f"%{{x:.6g}}: %{{y:.5g}}<br>{drawn_text(level)}, mean of {band.seeds} seeds"
            "<extra></extra>",
            "name": drawn_text(level),
            "legendgroup": drawn_text(level),
        },
        xs={view: band.x},
    )


def _described(metric: str, count: int, *, is_cut: bool, most: int, are_drawn: bool) -> str:
    thin = "Thin line: the run" if count == 1 else f"Thin lines: each of {count} runs"
    each = f"{thin}, dotted where a run does not count."
    parts = [
        f"{metric}.",
        each if are_drawn else f"The {count} runs are too many to draw each of them.",
        "Thick lines: the mean over seeds as far as all of them go, with a 95 % interval for each point by itself.",
        f"Each line has at most {most} of its points, the peaks and dips among them." if is_cut else "",
    ]
    return " ".join(filter(None, parts))


def _without(found: GroupCurves, runs: Iterable[RunRecord]) -> Iterator[str]:
    """Yield why runs that reported the metric have no curve: times of emulated steps, which say nothing of a device."""
    reported = [run for run in runs if found.curves.metric in run.metrics and run.numerics != Numerics.native.name]
    without = sum(not found.curves.points.get(run.uid) for run in reported)
    if without:
        yield f"Left out: runs whose numerics are not native ({without}); their times say nothing about the device."


def _curve_numbers(found: GroupCurves, levels: Sequence[str]) -> Listing[tuple[str, Band, int]]:
    """Return the means of *levels* at a few steps, with their intervals."""
    rows = [
        (level, band, index)
        for level in levels
        if (band := found.bands.get(level, {}).get("step")) is not None
        for index in _spread(len(band.x))
    ]
    return Listing(
        caption=f"Mean {found.curves.metric} over seeds",
        columns=[
            Column("level", "level", lambda row: row[0]),
            Column("step", "step", lambda row: row[1].x[row[2]], lambda row: f"{row[1].x[row[2]]:g}"),
            Column("mean", "mean", lambda row: row[1].mean[row[2]]),
            Column("mean_low", "95 % from", lambda row: row[1].low[row[2]]),
            Column("mean_high", "to", lambda row: row[1].high[row[2]]),
            Column("seeds", "seeds", lambda row: row[1].seeds),
        ],
        rows=rows,
    )


def _spread(count: int) -> list[int]:
    """Return at most `_LISTED` indices of *count* places, evenly spread, the first and the last among them."""
    if count <= _LISTED:
        return list(range(count))
    return [index * (count - 1) // (_LISTED - 1) for index in range(_LISTED)]
