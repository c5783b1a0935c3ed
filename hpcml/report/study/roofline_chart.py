"""The two roofs of a device, memory and arithmetic, and where runs lie below them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcml.attainment import Attained
from hpcml.codec import Json
from hpcml.report.study.drawing import drawn_text, titled
from hpcml.report.study.entries import figure, number_column, text_column, words
from hpcml.report.study.parts import Chart, Table, Trace, View
from hpcml.report.study.styles import NEUTRAL, LevelStyle, level_styles

_MARGIN = 4.0  # times further than the outermost point or ridge
_AXIS = "FLOP for each byte of memory traffic"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """Runs whose memory traffic was measured."""

    name: str
    precision: str
    intensity: float
    achieved_tflops: float
    peak_tflops: float
    bandwidth_gbs: float

    @property
    def ridge(self) -> float:
        """The intensity above which arithmetic is the lower roof."""
        return self.peak_tflops * 1000 / self.bandwidth_gbs

    @property
    def roof_tflops(self) -> float:
        """The lower of both roofs there."""
        return min(self.peak_tflops, self.intensity * self.bandwidth_gbs / 1000)


def attained_name(each: Attained) -> str:
    """Return what tells *each* from the others in a chart."""
    model = each.where.get("model")
    return f"{model} · {each.precision}" if model else each.precision


def roofline_chart(attained: Sequence[Attained]) -> Chart | None:
    """Return the runs whose memory traffic was measured below their roofs, or None where that was measured of none."""
    points = [point for point in map(_point, attained) if point is not None]
    if not points:
        return None
    where = [x for point in points for x in (point.intensity, point.ridge)]
    ends = (min(where) / _MARGIN, max(where) * _MARGIN)
    roofs = {(point.peak_tflops, point.bandwidth_gbs): point for point in points}
    styles = level_styles([point.precision for point in points])
    spoken = [f"{p.name}: {p.achieved_tflops:.3g} TFLOP/s at {p.intensity:.3g} FLOP/byte" for p in points]
    columns = [text_column("runs"), number_column("intensity", "FLOP/byte")]
    columns += [number_column("achieved", "TFLOP/s"), number_column("lower roof", "TFLOP/s")]
    rows = [[words(p.name), *map(figure, (p.intensity, p.achieved_tflops, p.roof_tflops))] for p in points]
    return Chart(
        title="Roofs",
        described="The lower roof, of memory or of arithmetic, of each device and precision, and the runs below it. "
        f"{'; '.join(spoken)}.",
        traces=[*(_roof(point, ends) for point in roofs.values()), *(_dot(p, styles[p.precision]) for p in points)],
        views=[View(key="x", label=_AXIS, title=_AXIS)],
        layout={
            "xaxis": titled(_AXIS, type="log", dtick=1),
            "yaxis": titled("TFLOP/s of one device", type="log", dtick=1),
        },
        numbers=Table(caption="Memory traffic and rate of one device", columns=columns, rows=rows),
        repeats_a_table=True,
    )


def _point(each: Attained) -> _Point | None:
    intensity, achieved = each.intensity_flop_per_byte, each.achieved_tflops
    if not intensity or not achieved or not each.peak_tflops or not each.bandwidth_gbs:
        return None
    return _Point(
        name=attained_name(each),
        precision=each.precision,
        intensity=intensity,
        achieved_tflops=achieved,
        peak_tflops=each.peak_tflops,
        bandwidth_gbs=each.bandwidth_gbs,
    )


def _dot(point: _Point, style: LevelStyle) -> Trace:
    drawn: dict[str, Json] = {
        "type": "scatter",
        "mode": "markers+text",
        "text": [drawn_text(point.name)],
        "textposition": "bottom center",
        "y": [point.achieved_tflops],
        "marker": {"color": style.colour, "symbol": style.marker, "size": 12},
        "hovertemplate": f"{drawn_text(point.name)}: %{{y:.4g}} TFLOP/s",
        "name": "",
    }
    return Trace(level=None, drawn=drawn, xs={"x": [point.intensity]})


def _roof(point: _Point, ends: tuple[float, float]) -> Trace:
    drawn: dict[str, Json] = {
        "type": "scatter",
        "mode": "lines",
        "y": [ends[0] * point.bandwidth_gbs / 1000, point.peak_tflops, point.peak_tflops],
        "line": {"color": NEUTRAL, "width": 2},
        "hovertemplate": f"roof: {point.peak_tflops:g} TFLOP/s, {point.bandwidth_gbs:g} GB/s",
        "name": "",
    }
    return Trace(level=None, drawn=drawn, xs={"x": [ends[0], point.ridge, ends[1]]})
