"""`hpcml show --curve`: a metric of several runs as a small chart, as Markdown, CSV and JSON, and in a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType

from hpcml.codec import Json
from hpcml.model.choices import Numerics
from hpcml.model.publication import GroupCurves
from hpcml.model.query_results import Band, Curves, ReportGroup
from hpcml.model.records import MetricSummary, Point, RunRecord
from hpcml.report.charts import decimate, drawn_text, titled
from hpcml.report.document import (
    Chart,
    Entry,
    LevelStyle,
    Table,
    Trace,
    View,
    figure,
    number_column,
    text_column,
    words,
)
from hpcml.report.render.data import json_text
from hpcml.report.render.rows import value_csv, value_markdown, value_table, width_of
from hpcml.report.runs import metric_words, name_heading, name_words, precision_words, short_uid, title
from hpcml.report.text_charts import axes, sparkline

_NONE: Mapping[str, str] = {}
_HEADINGS = ("run", "name", "settings", "precision", "seed", "", "first", "last", "min", "max")
_NAME, _SETTINGS, _LINE = 1, 2, 5  # the columns of names, of what tells runs apart, and of the line
_WIDEST, _NARROWEST = 60, 12
_SHORT = 20  # a curve over so small a part of the steps has an axis of its own
_DIGITS = 4
_DISPENSABLE = ("name", "model", "first", "seed")  # left out in this order where there is no room
_DRAWN = 2  # what the table itself needs


def curves_table(curves: Curves, *, console: Console, apart: Mapping[str, str] = _NONE) -> RenderableType:
    """Return a line for each run with its curve, all drawn to the same scale; *apart* is by uid what tells a run apart.

    A curve is between 12 and 60 characters wide, as the console has room; other columns are left out first.
    """
    headings = _headings(curves, apart)
    taken = width_of(headings, _rows(curves, 0, apart), digits=_DIGITS)
    width = max(_NARROWEST, min(_WIDEST, console.width - taken - _DRAWN))
    rows = _rows(curves, width, apart)
    return value_table(headings, rows, console=console, dispensable=_DISPENSABLE, digits=_DIGITS)


def curves_markdown(curves: Curves, *, apart: Mapping[str, str] = _NONE) -> str:
    """Return the curves as a Markdown table, each curve as a line of characters; *apart* as in `curves_table`."""
    return value_markdown(_headings(curves, apart), _rows(curves, _WIDEST // 2, apart))


def curves_csv(curves: Curves) -> str:
    """Return the points as CSV, one line for each: uid, step, t_s and the metric.

    t_s is in seconds since the start of the run.
    """
    rows = [(run.uid, p.step, p.t_s, p.value) for run in curves.runs for p in curves.points[run.uid]]
    return value_csv(("uid", "step", "t_s", curves.metric), rows)


def curves_json(curves: Curves) -> str:
    """Return a JSON object with the metric's name, and for each run its uid and its points.

    A point has `step`, `t_s` in seconds since the start of the run, and `value`, a text where it is not finite.
    """
    listed = [{"uid": run.uid, "points": [point._asdict() for point in curves.points[run.uid]]} for run in curves.runs]
    return json_text({"metric": curves.metric, "curves": listed})


def _headings(curves: Curves, apart: Mapping[str, str]) -> list[str]:
    named = {_NAME: name_heading(curves.runs), _LINE: curves.metric}
    return [named.get(at, heading) for at, heading in enumerate(_HEADINGS) if at != _SETTINGS or apart]


def _rows(curves: Curves, width: int, apart: Mapping[str, str]) -> list[list[object]]:
    steps, values = axes([curves.points[run.uid] for run in curves.runs])
    rows: list[list[object]] = []
    for run in curves.runs:
        points = curves.points[run.uid]
        line = _line(points, width, steps, values)
        rows.append([*_who(run, curves.runs, apart), line, *_numbers(run.metrics.get(curves.metric), points)])
    return rows


def _line(points: Sequence[Point], width: int, steps: tuple[int, int], values: tuple[float, float]) -> str:
    """Return the curve of a run over *steps*, or, where these are few, over its own, and says to which."""
    (first, last), _ = axes([points])
    if width and len(points) > 1 and (last - first + 1) * _SHORT <= steps[1] - steps[0] + 1:
        own = sparkline(points, width=min(_NARROWEST, last - first + 1), steps=(first, last), values=values)
        return f"{own} to step {last}"
    return sparkline(points, width=width, steps=steps, values=values)


def _who(run: RunRecord, runs: Sequence[RunRecord], apart: Mapping[str, str]) -> list[object]:
    """Return what names a run in the table; the whole uid where another run's ends alike."""
    is_unique = sum(short_uid(other.uid) == short_uid(run.uid) for other in runs) == 1
    settings = [apart.get(run.uid, "")] if apart else []
    return [
        short_uid(run.uid) if is_unique else run.uid,
        name_words(run, name_heading(runs)),
        *settings,
        precision_words(run),
        run.seed,
    ]


def _numbers(summary: MetricSummary | None, points: Sequence[Point]) -> list[object]:
    if summary is None:
        return [None] * 4
    last: object = summary.last_or_nan
    if summary.last is None and last is not None:  # only the points know whether it is nan or an infinity
        last = points[-1].value if points and points[-1].step == summary.last_step else metric_words(math.nan)
    return [points[0].value if points else summary.first, last, summary.min, summary.max]


POINTS = 90_000  # of all curves of a report: about 2 MB of its file
_MOST, _FEWEST = 1000, 20  # of one curve
_MOST_CURVES = 1500  # with more, a drawing of each is a blot and no browser likes it: then means alone
_LISTED = 10  # places of a mean that the table names
_VIEWS = (
    View(key="step", label="step", title="step"),
    View(key="time", label="time", title="seconds since the start"),
    View(key="energy", label="energy", title="kJ of all GPUs since the start"),
)


def curve_chart(
    found: GroupCurves, group: ReportGroup, styles: Mapping[str, LevelStyle], *, curves: int
) -> Chart | None:
    """Return the chart of one group, or None where nothing was recorded.

    Its horizontal axis can show steps, seconds, and where it was measured energy. Thin lines are runs, dotted where a
    run does not count, thick ones means over seeds with their 95 % interval.

    *curves* is the number of curves in the whole report: the more there are, the fewer points each of them keeps,
    `POINTS` in all. With more than 1500 only the means are drawn. *styles* has the style of each level.
    """
    runs = {run.uid: run for run in found.curves.runs}
    points = {uid: points for uid, points in found.curves.points.items() if points}
    levels = [level for level in group.levels if any(uid in points for uid in level.uids)]
    if not levels:
        return None
    most = max(_FEWEST, min(_MOST, POINTS // curves))
    traces: list[Trace] = []
    if curves <= _MOST_CURVES:
        for level in levels:
            style = styles[level.name]
            drawn = [uid for uid in level.uids if uid in points]
            traces += [
                _thin(runs[uid], _Line.of(found, uid, most), level.name, style, counts=uid in level.counted)
                for uid in drawn
            ]
    for level in levels:
        for view, band in found.bands.get(level.name, {}).items():
            traces += _thick(band, view, level.name, styles[level.name])
    metric = found.curves.metric
    is_cut = any(len(one) > most for one in points.values())
    return Chart(
        title=metric,
        described=" ".join(
            [
                _described(metric, len(points), is_cut=is_cut, most=most, are_drawn=curves <= _MOST_CURVES),
                *_without(found, runs.values()),
            ]
        ),
        traces=traces,
        views=_VIEWS if found.energy_kj else _VIEWS[:2],
        layout={"xaxis": titled("step"), "yaxis": titled(metric), "hovermode": "closest"},
        numbers=_curve_numbers(found, [level.name for level in levels]),
        levels=[level.name for level in levels],
        height_px=420,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The curve of one run with the energy used until each of its points."""

    points: Sequence[Point]
    energy_kj: Sequence[float]  # empty: not known

    @classmethod
    def of(cls, found: GroupCurves, uid: str, most: int) -> _Line:
        points = found.curves.points[uid]
        kept = decimate(points, most)
        energy = found.energy_kj.get(uid, ())
        at_step = dict(zip((point.step for point in points), energy, strict=True)) if energy else {}
        return cls(points=kept, energy_kj=[at_step[point.step] for point in kept] if energy else ())


def _thin(run: RunRecord, line: _Line, level: str, style: LevelStyle, *, counts: bool) -> Trace:
    kept = line.points
    name = f"{run.uid} {title(run)}, {level}, seed {run.seed}{'' if counts else ', does not count'}"
    xs: dict[str, Sequence[float | None]] = {
        "step": [point.step for point in kept],
        "time": [point.t_s for point in kept],
        "energy": line.energy_kj,
    }
    return Trace(
        level=level,
        drawn={
            "type": "scatter",
            "mode": "lines" if len(kept) > 1 else "markers",
            "y": [point.value if math.isfinite(point.value) else None for point in kept],
            "line": {"width": 1, "color": style.faint(0.45), "dash": "solid" if counts else "dot"},
            "marker": {"color": style.colour, "symbol": style.marker},
            "hovertemplate": "%{x:.6g}: %{y:.5g}<br>%{meta}",
            "meta": drawn_text(name),
            "name": "",
        },
        xs={view: x for view, x in xs.items() if x},
        role="run",
    )


def _thick(band: Band, view: str, level: str, style: LevelStyle) -> Iterator[Trace]:
    sides = [
        (x, low, high) for x, low, high in zip(band.x, band.low, band.high, strict=True) if None not in (low, high)
    ]
    if len(sides) > 1:
        around: dict[str, Json] = {
            "type": "scatter",
            "mode": "lines",
            "y": [*(high for _, _, high in sides), *(low for _, low, _ in reversed(sides))],
            "fill": "toself",
            "fillcolor": style.faint(0.2),
            "line": {"width": 0},
            "hoverinfo": "skip",
        }
        there_and_back = [*(x for x, *_ in sides), *(x for x, *_ in reversed(sides))]
        yield Trace(level=level, drawn=around, xs={view: there_and_back}, role="band")
    drawn: dict[str, Json] = {
        "type": "scatter",
        "mode": "lines+markers",
        "y": list(band.mean),
        "line": {"width": 3, "color": style.colour, "dash": style.dash},
        "marker": {"color": style.colour, "symbol": style.marker, "size": 9, "maxdisplayed": 8},
        "hovertemplate": f"%{{x:.6g}}: %{{y:.5g}}<br>{drawn_text(level)}, mean of {band.seeds} seeds",
        "name": "",
    }
    yield Trace(level=level, drawn=drawn, xs={view: band.x}, role="mean")


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
    of = [run for run in runs if found.curves.metric in run.metrics and run.numerics != Numerics.native.name]
    without = sum(not found.curves.points.get(run.uid) for run in of)
    if without:
        yield f"Left out: runs whose numerics are not native ({without}); their times say nothing about the device."


def _curve_numbers(found: GroupCurves, levels: Sequence[str]) -> Table:
    rows: list[list[Entry]] = []
    for level in levels:
        band = found.bands.get(level, {}).get("step")
        for at in _spread(len(band.x)) if band else []:
            assert band is not None
            place = band.x[at]
            shown = (int(place) if place.is_integer() else place, band.mean[at], band.low[at], band.high[at])
            rows.append([words(level), *map(figure, shown), figure(band.seeds)])
    columns = [text_column("level"), number_column("step"), number_column("mean")]
    columns += [number_column("95 % from"), number_column("to"), number_column("seeds")]
    return Table(caption=f"Mean {found.curves.metric} over seeds", columns=columns, rows=rows)


def _spread(count: int) -> list[int]:
    """Return at most `_LISTED` indices of *count* places, evenly spread, the first and the last among them."""
    if count <= _LISTED:
        return list(range(count))
    return [at * (count - 1) // (_LISTED - 1) for at in range(_LISTED)]
