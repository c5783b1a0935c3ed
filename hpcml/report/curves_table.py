"""A metric of several runs: its shape on the terminal, its points for programs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType

from hpcml.answers import Curves
from hpcml.records import RunRecord
from hpcml.report.run_words import last_value, precision_words, short_uid, title
from hpcml.report.sparkline import axes, sparkline
from hpcml.report.value_table import as_json, value_csv, value_markdown, value_table, width_of

_HEADINGS = ("run", "name", "precision", "seed", "", "first", "last", "min", "max")
_LINE = 4  # the column of the line
_WIDEST, _NARROWEST = 60, 12
_DIGITS = 4
_DISPENSABLE = ("name", "first", "seed")  # left out in this order where there is no room
_DRAWN = 2  # what the table itself needs


def curves_table(curves: Curves, *, console: Console) -> RenderableType:
    """Return a line for each run, all drawn to the same scale."""
    taken = width_of(_headings(curves), _rows(curves, 0), digits=_DIGITS)
    width = max(_NARROWEST, min(_WIDEST, console.width - taken - _DRAWN))
    rows = _rows(curves, width)
    return value_table(_headings(curves), rows, console=console, dispensable=_DISPENSABLE, digits=_DIGITS)


def curves_markdown(curves: Curves) -> str:
    """Return the same as Markdown."""
    return value_markdown(_headings(curves), _rows(curves, _WIDEST // 2))


def curves_csv(curves: Curves) -> str:
    """Return one line for each point."""
    rows = [(run.uid, p.step, p.t_s, p.value) for run in curves.runs for p in curves.points[run.uid]]
    return value_csv(("uid", "step", "t_s", curves.metric), rows)


def curves_json(curves: Curves) -> str:
    """Return the metric's name, and for each run its id and its points."""
    listed = [{"uid": run.uid, "points": [point._asdict() for point in curves.points[run.uid]]} for run in curves.runs]
    return as_json({"metric": curves.metric, "curves": listed})


def _headings(curves: Curves) -> list[str]:
    return [curves.metric if at == _LINE else heading for at, heading in enumerate(_HEADINGS)]


def _rows(curves: Curves, width: int) -> list[list[object]]:
    steps, values = axes([curves.points[run.uid] for run in curves.runs])
    rows: list[list[object]] = []
    for run in curves.runs:
        points = curves.points[run.uid]
        line = sparkline(points, width=width, steps=steps, values=values)
        rows.append([*_who(run, curves.runs), line, *_numbers(run, curves.metric)])
    return rows


def _who(run: RunRecord, runs: Sequence[RunRecord]) -> list[object]:
    is_unique = sum(short_uid(other.uid) == short_uid(run.uid) for other in runs) == 1
    return [short_uid(run.uid) if is_unique else run.uid, title(run), precision_words(run), run.seed]


def _numbers(run: RunRecord, metric: str) -> list[object]:
    summary = run.metrics.get(metric)
    return [None] * 4 if summary is None else [summary.first, last_value(summary), summary.min, summary.max]
