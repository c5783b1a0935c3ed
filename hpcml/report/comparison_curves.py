"""Whole learning curves and the margin's part in the verdict: their quantities, lines and charts in a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from hpcml.model.comparison import Cell, Comparison, CurveDifference, Row
from hpcml.report.charts import NEUTRAL, ONLY, drawn_text, named_axis, titled
from hpcml.report.comparison_costs import OUTCOME
from hpcml.report.document import (
    NOTHING,
    Chart,
    Entry,
    LevelStyle,
    Quantity,
    Short,
    Table,
    Trace,
    Value,
    View,
    between,
    figure,
    fixed,
    number_column,
    text_column,
    words,
)
from hpcml.report.text import ends, number, to_decimals

_SHOWN = 3.0  # margins are drawn up to so many times the largest that changes a verdict
_NOWHERE = "none"  # of the steps
_FAINT = 0.5  # of a shade
_ROOM = 0.025  # of a chart, for a letter in a bar
_MOST_BANDS = 6  # in one chart: more cover each other
_SHADES = {"inconclusive": 0.15, "worse": 0.4, "worse by more than the margin": 0.6, "non-inferior": 0.7}


def curve_quantities(decimals: int) -> list[Quantity[Row]]:
    """Return the quantities of the difference of curves; values have *decimals* decimals, as the metric's."""

    def of(read: Callable[[CurveDifference], Value]) -> Callable[[Row], Value]:
        return lambda row: read(row.curve) if row.curve else None

    def both(row: Row) -> Entry:
        if row.curve is None:
            return NOTHING
        value = to_decimals(row.curve.area, decimals, signed=True)
        return words(f"{value} {ends(row.curve.area_ci95, decimals, signed=True)}".strip())

    return [
        Quantity(key="curve_area", heading="difference over steps", value=of(lambda curve: curve.area), section=OUTCOME,
                 order=3, write=lambda row: fixed(row.curve.area, decimals, signed=True) if row.curve else NOTHING,
                 short=Short(heading="mean difference over steps [95\u00a0%]", as_line=True, write=both)),
        Quantity(key="curve_area_ci95", heading="its 95 % interval", kind="interval", section=OUTCOME, order=3,
                 value=of(lambda curve: curve.area_ci95), short=None,
                 write=lambda row: between(row.curve.area_ci95, decimals, signed=True) if row.curve else NOTHING),
        Quantity(key="curve_differs_at", heading="differs at steps", kind="text", section=OUTCOME, order=3,
                 value=lambda row: differs_at(row.curve) if row.curve else None, is_derived=True,
                 short=Short(heading="differs at steps (95\u00a0% for all)", as_line=True)),
    ]  # fmt: skip


def differs_at(curve: CurveDifference) -> str:
    """Return the stretches of steps in which the band does not hold zero; "none" where it always does.

    A place without any spread is left out: nothing says how certain it is.
    """
    apart = [low < high and (low > 0 or high < 0) for low, high in zip(curve.low, curve.high, strict=True)]
    stretches: list[list[float]] = []
    for at, is_apart in enumerate(apart):
        if is_apart and at and apart[at - 1]:
            stretches[-1].append(curve.steps[at])
        elif is_apart:
            stretches.append([curve.steps[at]])
    shown = [f"{of[0]:.0f}" if len(of) == 1 else f"{of[0]:.0f} to {of[-1]:.0f}" for of in stretches]
    return ", ".join(shown) or _NOWHERE


def margin_lines(cell: Cell) -> Iterator[str]:
    """Yield for each row from which margin on it would be called what, if it were the only row."""
    for row in cell.rows:
        told = row.difference.by_margin if row.difference else ()
        if told:
            shown = {number(each.above, 3): each.verdict for each in told[1:]}  # of two that look alike the last holds
            said = [told[0].verdict, *(f"{verdict} above {above}" for above, verdict in shown.items())]
            yield f"{row.level}: by margin, and alone: {', '.join(said)}"


def curve_chart_of(comparison: Comparison, cell: Cell, styles: Mapping[str, LevelStyle]) -> Chart | None:
    """Return the chart of the differences of curves over steps with their bands; None where none is known."""
    known = [(row.level, row.curve) for row in cell.rows if row.curve is not None]
    if not known:
        return None
    traces: list[Trace] = []
    has_bands = len(known) <= _MOST_BANDS
    for level, curve in known:
        style = styles[level]
        band = Trace(
            level=level,
            drawn={"type": "scatter", "mode": "lines", "y": [*curve.low, *reversed(curve.high)], "fill": "toself",
                   "fillcolor": style.faint(0.2), "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False},
            xs={ONLY: [*curve.steps, *reversed(curve.steps)]},
        )  # fmt: skip
        traces += [
            *([band] if has_bands else []),
            Trace(
                level=level,
                drawn={"type": "scatter", "mode": "lines", "y": list(curve.difference), "name": drawn_text(level),
                       "line": {"color": style.colour, "dash": style.dash}},
                xs={ONLY: list(curve.steps)},
            ),
        ]  # fmt: skip
    what = f"{comparison.metric} minus that of {cell.reference}, over steps"
    rows = [
        [words(level), *map(figure, values)]
        for level, curve in known
        for values in zip(curve.steps, curve.difference, curve.low, curve.high, strict=True)
    ]
    places = [(level, differs_at(curve)) for level, curve in known]
    said = "; ".join(
        f"{level} differs at {'no step' if where == _NOWHERE else f'steps {where}'}" for level, where in places
    )
    told = (
        "The band is a"
        if has_bands
        else f"{len(known)} bands would cover each other and stand in the numbers: each is a"
    )
    return Chart(
        title=what,
        described=f"{what}. {told} 95 % band for all steps at once. {said}.",
        traces=traces,
        views=[View(key=ONLY, label="steps", title="step")],
        layout={"xaxis": titled("step"), "yaxis": titled("difference", zeroline=True)},
        numbers=Table(
            caption=f"{what}, with the 95 % band for all steps at once",
            columns=[text_column("level"), *map(number_column, ("step", "difference", "low", "high"))],
            rows=rows,
        ),
        levels=[level for level, _ in known],
        is_wide=False,
    )


def margin_chart(cell: Cell, styles: Mapping[str, LevelStyle]) -> Chart | None:
    """Return the chart of the verdict that each row would have at which margin, alone; None where none is known."""
    known = [(row.level, row.difference.by_margin) for row in cell.rows if row.difference and row.difference.by_margin]
    if not known:
        return None
    last = max(cell.margin or 0.0, *(each.above for _, told in known for each in told)) * _SHOWN / 2
    traces, rows = [], []
    for level, told in known:
        for each, end in zip(told, [*(one.above for one in told[1:]), last], strict=True):
            rows.append([words(level), figure(each.above), words(each.verdict)])
            traces.append(
                Trace(
                    level=level,
                    drawn={"type": "bar", "orientation": "h", "y": [drawn_text(level)], "base": [each.above],
                           "text": [each.verdict if _has_room(each.verdict, (end - each.above) / last) else ""],
                           "textposition": "inside", "insidetextanchor": "middle", **_written_on(each.verdict),
                           "hovertemplate": drawn_text(each.verdict), "showlegend": False,
                           "marker": {"color": styles[level].faint(_SHADES.get(each.verdict, 1.0))}},
                    xs={ONLY: [end - each.above]},
                )
            )  # fmt: skip
    at = [] if cell.margin is None else [_margin_line(cell.margin)]
    what = "Verdict by margin, each row alone"
    return Chart(
        title=what,
        described=f"{what}. {'; '.join(margin_lines(cell))}.",
        traces=traces,
        views=[View(key=ONLY, label="margin", title="margin")],
        layout={
            "xaxis": titled("margin"),
            "yaxis": named_axis([level for level, _ in known]),
            "barmode": "overlay",
            "shapes": at,
        },
        numbers=Table(
            caption=what,
            columns=[text_column("level"), number_column("margin above"), text_column("verdict")],
            rows=rows,
        ),
        height_px=96 + 36 * len(known),
        is_wide=False,
    )


def _has_room(word: str, share: float) -> bool:
    """Tell whether *word* can stand in a bar over this *share* of a chart that may be as narrow as a phone."""
    return share >= _ROOM * len(word)


def _written_on(verdict: str) -> dict[str, object]:
    """Return the colour of words in a faint bar, which lets light or dark paper through; else plotly chooses it."""
    return {"insidetextfont": {"color": NEUTRAL}} if _SHADES.get(verdict, 1.0) < _FAINT else {}


def _margin_line(margin: float) -> dict[str, object]:
    return {"type": "line", "xref": "x", "yref": "paper", "x0": margin, "x1": margin, "y0": 0, "y1": 1,
            "line": {"width": 1.5, "dash": "dash", "color": "gray"}}  # fmt: skip


def charts_beyond(comparison: Comparison, cell: Cell, styles: Mapping[str, LevelStyle]) -> Sequence[Chart]:
    """Return the charts of curves and margins of *cell*, those of which something is known."""
    charts = (curve_chart_of(comparison, cell, styles), margin_chart(cell, styles))
    return [chart for chart in charts if chart is not None]
