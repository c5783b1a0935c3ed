"""`hpcml tune`: where a study stands, its best points, and its charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from math import log10
from typing import TYPE_CHECKING, Any

from hpcml.analysis.search import PointState, Tried
from hpcml.model.choices import Goal
from hpcml.model.records import RunRecord
from hpcml.model.search import Axis, Search, Value
from hpcml.report.charts import NEUTRAL, drawn_text, level_styles, plot, titled
from hpcml.report.contents import StudyContents
from hpcml.report.document import Column, Document, Figure, Listing, Part, Remarks, Section
from hpcml.report.runs import short_uid
from hpcml.report.text import number, safe
from hpcml.units import one_or_many

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

_BEST = 5  # rows of the table
_ROW_PX, _AROUND_PX = 36, 96


def ended_line(run: RunRecord, tried: Tried, search: Search, axes: Sequence[Axis]) -> str:
    """Return one line on how a point ended."""
    value = "no value" if tried.value is None else f"{search.metric}={number(tried.value, 6)}"
    word = "pruned" if tried.outcome is PointState.PRUNED else run.state.value
    return safe("  ".join([short_uid(run.uid), word, value, point_words(tried.point, axes)]))


def point_words(point: Mapping[str, Value], axes: Sequence[Axis]) -> str:
    """Return a point as the words that set it: ``lr=0.01 width=64``."""
    return safe(" ".join(f"{axis.name}={point[axis.key]}" for axis in axes))


def standing_line(search: Search, tried: Sequence[Tried], *, submitted: int, under_way: int) -> str:
    """Return one line on how far the study is; *submitted* counts all points, *under_way* those that have not ended."""
    told = _told(tried)
    best = _best_first(told, search)
    found = f"best {search.metric} {number(best[0].value, 6)} of {len(told)}" if best else f"no {search.metric} yet"
    return f"study {search.study}: {submitted} of {search.runs} points, {under_way} under way, {found}"


def search_document(
    search: Search, axes: Sequence[Axis], tried: Sequence[Tried], runs: Mapping[str, RunRecord], *, under_way: int
) -> Document:
    """Return the best points as a table, and that they were selected.

    JSON has all points in the order of submission: `value` is null where a run told none.
    """
    record = {
        "study": search.study,
        "metric": search.metric,
        "goal": search.goal.name,
        "runs": search.runs,
        "under_way": under_way,
        "points": [
            {
                "uid": each.uid,
                "state": runs[each.uid].state.value,
                "outcome": each.outcome.value,
                "value": each.value,
                "point": {axis.name: each.point[axis.key] for axis in axes},
            }
            for each in tried
        ],
    }
    best = _best_first(_told(tried), search)[:_BEST]
    parts: list[Part] = []
    if best:
        parts = [_table(search, axes, best, runs), Remarks(lines=[_selection_words(search, tried)])]
    return Document(sections=[Section(parts=parts)], record=record)


def search_section(study: StudyContents) -> Section:
    """Return the section of a report on a study: how many points were tried, the best, and the charts."""
    search, told = study.search, _told(study.tried)
    parts: list[Part] = [Remarks(lines=[_selection_words(search, study.tried)])]
    if told:
        best = _best_first(told, search)[:_BEST]
        parts += [
            _table(search, study.axes, best, study.runs),
            *_charts(search, study.axes, told, study.importances),
        ]
    return Section(heading="Search", parts=parts)


def _told(tried: Sequence[Tried]) -> list[Tried]:
    return [each for each in tried if each.value is not None]


def _best_first(told: Sequence[Tried], search: Search) -> list[Tried]:
    sign = -1 if search.goal is Goal.max else 1
    return sorted(told, key=lambda each: (sign * (each.value or 0.0), each.uid))


def _selection_words(search: Search, tried: Sequence[Tried]) -> str:
    ended = [each for each in tried if each.outcome is not PointState.UNDER_WAY]
    without = sum(each.value is None for each in ended)
    of_them = f", {without} of them without a value" if without else ""
    told = len(ended) - without
    return (
        f"{len(ended)} {one_or_many(len(ended), 'points')} ended{of_them}. The best is the winner among {told}: a part "
        "of its lead is luck, and grows with their number. "
        f"hpcml tune --confirm 1 {search.study} runs it and the default again with fresh seeds"
    )


def _table(
    search: Search, axes: Sequence[Axis], best: Sequence[Tried], runs: Mapping[str, RunRecord]
) -> Listing[Tried]:
    return Listing(columns=list(_columns(search, axes, runs)), rows=best, caption="Best points")


def _columns(search: Search, axes: Sequence[Axis], runs: Mapping[str, RunRecord]) -> Iterator[Column[Tried]]:
    yield Column("uid", "run", lambda each: each.uid, lambda each: short_uid(each.uid))
    yield Column("value", search.metric, lambda each: each.value, lambda each: number(each.value, 6))
    for axis in axes:
        yield Column(axis.name, axis.name, partial(_value_on, axis), partial(_words_on, axis))
    yield Column("seed", "seed", lambda each: runs[each.uid].seed)


def _value_on(axis: Axis, each: Tried) -> Value:
    return each.point[axis.key]


def _words_on(axis: Axis, each: Tried) -> str:
    return str(each.point[axis.key])


# The charts.


def _charts(
    search: Search, axes: Sequence[Axis], told: Sequence[Tried], importances: Mapping[str, float]
) -> Iterator[Figure]:
    """Yield the charts of points with a value, which are in the order of submission."""
    better = max if search.goal is Goal.max else min
    best = list(accumulate((each.value or 0.0 for each in told), better))
    rows = [(at + 1, each.value, so_far) for at, (each, so_far) in enumerate(zip(told, best, strict=True))]
    yield Figure(
        title=f"{search.metric} by point",
        described=f"{search.metric} of each point in the order of submission, and the best so far: {best[-1]:.6g}.",
        draw=partial(_history_plot, search.metric, rows),
        numbers=Listing(
            columns=[
                Column("point", "point", lambda row: row[0]),
                Column("value", search.metric, lambda row: row[1]),
                Column("best", "best so far", lambda row: row[2]),
            ],
            rows=rows,
        ),
    )
    if importances:
        shares = sorted(importances.items(), key=lambda each: -each[1])
        yield Figure(
            title="Importance",
            described="How much of the spread of the value each setting explains among the better points, by PED-ANOVA "
            f"(Watanabe et al. 2023): {', '.join(f'{name} {share:.0%}' for name, share in shares)}.",
            draw=partial(_importance_plot, shares),
            numbers=Listing(
                columns=[
                    Column("setting", "setting", lambda row: row[0]),
                    Column("importance", "importance", lambda row: row[1]),
                ],
                rows=shares,
            ),
        )
    yield Figure(
        title="All points",
        described=f"A line for each point through its settings, coloured by {search.metric}.",
        draw=partial(_parallel_plot, search, axes, told),
        numbers=Listing(
            columns=[
                *(Column(axis.name, axis.name, partial(_value_on, axis)) for axis in axes),
                Column("value", search.metric, lambda each: each.value),
            ],
            rows=told,
        ),
        is_wide=True,
    )


def _history_plot(metric: str, rows: Sequence[tuple[int, float | None, float]]) -> Plot:
    colour = level_styles(["best"])["best"].colour
    drawn = plot(x=titled("point"), y=titled(metric))
    at = [row[0] for row in rows]
    drawn.add_scatter(mode="markers", x=at, y=[row[1] for row in rows], name="point", marker={"color": NEUTRAL})
    best = [row[2] for row in rows]
    drawn.add_scatter(mode="lines", x=at, y=best, name="best so far", line={"color": colour, "shape": "hv"})
    return drawn


def _importance_plot(shares: Sequence[tuple[str, float]]) -> Plot:
    axis = {"type": "category", "autorange": "reversed"}
    drawn = plot(x=titled("importance", rangemode="tozero"), y=axis, height_px=_ROW_PX * len(shares) + _AROUND_PX)
    drawn.add_bar(
        orientation="h",
        x=[share for _, share in shares],
        y=[drawn_text(name) for name, _ in shares],
        marker={"color": level_styles(["all"])["all"].colour},
        name="",
    )
    return drawn


def _parallel_plot(search: Search, axes: Sequence[Axis], told: Sequence[Tried]) -> Plot:
    values = [each.value for each in told]
    drawn = plot(x={}, y={}, margin={"l": 64, "r": 64, "t": 48, "b": 24})
    drawn.add_parcoords(
        line={"color": values, "colorscale": "Cividis", "showscale": True},
        dimensions=[*(_dimension(axis, told) for axis in axes), {"label": drawn_text(search.metric), "values": values}],
    )
    return drawn


def _dimension(axis: Axis, told: Sequence[Tried]) -> dict[str, Any]:
    """Return what plotly draws of *axis*: choices by their places, a logarithmic scale by its powers of ten."""
    values = [each.point[axis.key] for each in told]
    label = {"label": drawn_text(axis.name)}
    if axis.choices:
        places = {choice: at for at, choice in enumerate(axis.choices)}
        ticks = {"tickvals": list(places.values()), "ticktext": list(map(drawn_text, places))}
        return {**label, **ticks, "values": [places[str(value)] for value in values]}
    if axis.is_log:
        ends = [axis.low, (axis.low * axis.high) ** 0.5, axis.high]
        ticks = {"tickvals": list(map(log10, ends)), "ticktext": [f"{end:.3g}" for end in ends]}
        return {**label, **ticks, "values": [log10(float(value)) for value in values]}
    return {**label, "values": values}
