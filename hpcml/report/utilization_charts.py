"""The chart of utilization: the roofline of memory bandwidth and arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hpcml.analysis.attained import Attained
from hpcml.model.record_keys import ARGUMENTS
from hpcml.report.charts import NEUTRAL, drawn_text, level_styles, plot, titled
from hpcml.report.document import Column, Figure, Listing

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

_MARGIN = 4.0  # of a chart of roofs: times further than the outermost point or ridge
_AXIS = "FLOP for each byte of memory traffic"


def attained_names(attained: Sequence[Attained]) -> list[str]:
    """Return a name for each of *attained* that distinguishes it from the others, in their order.

    That is the model and the precision, and between them each other setting, and the device, in which these differ.
    """
    told: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for each in attained for key in each.where):
        told[key.removeprefix(ARGUMENTS)] = [each.where.get(key, "not set") for each in attained]
    told["device"] = [each.device or "not known" for each in attained]
    telling = [key for key, values in told.items() if key != "model" and len(set(values)) > 1]
    return [
        " · ".join(
            [
                *([each.where["model"]] if "model" in each.where else []),
                *(f"{key} {told[key][at]}" for key in telling),
                each.precision,
            ]
        )
        for at, each in enumerate(attained)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _BelowRoofs:
    """A cell whose memory traffic was measured, with both roofs of its device."""

    name: str
    precision: str
    intensity: float
    achieved_tflops: float
    peak_tflops: float
    bandwidth_gbs: float

    @property
    def ridge(self) -> float:
        """The intensity in FLOP/byte above which arithmetic is the lower roof."""
        return self.peak_tflops * 1000 / self.bandwidth_gbs

    @property
    def roof_tflops(self) -> float:
        """The lower of both roofs at the cell's intensity."""
        return min(self.peak_tflops, self.intensity * self.bandwidth_gbs / 1000)


def roofline_chart(attained: Sequence[Attained]) -> Figure | None:
    """Return the roofline (S. Williams et al., Commun. ACM 52, 2009) of the cells with measured memory traffic.

    Both axes are logarithmic: FLOP for each byte of memory traffic, and TFLOP/s of one device. Each device and
    precision has a roof, the lower of bandwidth times intensity and of the peak; each cell is a point below it. None
    where no cell has all four numbers.
    """
    points = [point for point in map(_point, attained_names(attained), attained) if point is not None]
    if not points:
        return None
    spoken = [f"{p.name}: {p.achieved_tflops:.3g} TFLOP/s at {p.intensity:.3g} FLOP/byte" for p in points]
    columns: list[Column[_BelowRoofs]] = [
        Column("runs", "runs", lambda point: point.name),
        Column("intensity", "intensity", lambda point: point.intensity, unit="FLOP/byte"),
        Column("achieved_tflops", "achieved", lambda point: point.achieved_tflops, unit="TFLOP/s"),
        Column("roof_tflops", "lower roof", lambda point: point.roof_tflops, unit="TFLOP/s"),
    ]
    return Figure(
        title="Roofs",
        described="The lower roof, of memory or of arithmetic, of each device and precision, and the runs below it. "
        f"{'; '.join(spoken)}.",
        draw=partial(_roofline_plot, points),
        numbers=Listing(caption="Memory traffic and rate of one device", columns=columns, rows=points),
        is_wide=True,
        repeats_a_table=True,
    )


def _roofline_plot(points: Sequence[_BelowRoofs]) -> Plot:
    """Return the roofs, which rise with the bandwidth up to the ridge and are flat from there on, and the points."""
    where = [x for point in points for x in (point.intensity, point.ridge)]
    first, last = min(where) / _MARGIN, max(where) * _MARGIN
    styles = level_styles([point.precision for point in points])
    drawn = plot(
        x=titled(_AXIS, type="log", dtick=1),
        y=titled("TFLOP/s of one device", type="log", dtick=1),
        showlegend=False,
    )
    for point in {(point.peak_tflops, point.bandwidth_gbs): point for point in points}.values():
        drawn.add_scatter(
            mode="lines",
            x=[first, point.ridge, last],
            y=[first * point.bandwidth_gbs / 1000, point.peak_tflops, point.peak_tflops],
            line={"color": NEUTRAL, "width": 2},
            hovertemplate=f"roof: {point.peak_tflops:g} TFLOP/s, {point.bandwidth_gbs:g} GB/s<extra></extra>",
        )
    for point in points:
        style = styles[point.precision]
        drawn.add_scatter(
            mode="markers+text",
            text=[drawn_text(point.name)],
            textposition="bottom center",
            x=[point.intensity],
            y=[point.achieved_tflops],
            marker={"color": style.colour, "symbol": style.marker, "size": 12},
            hovertemplate=f"{drawn_text(point.name)}: %{{y:.4g}} TFLOP/s<extra></extra>",
        )
    return drawn


def _point(name: str, each: Attained) -> _BelowRoofs | None:
    """Return the point of a cell below its roofs; None where one of the four numbers is not known."""
    intensity, achieved = each.intensity_flop_per_byte, each.achieved_tflops
    if not intensity or not achieved or not each.peak_tflops or not each.bandwidth_gbs:
        return None
    return _BelowRoofs(
        name=name,
        precision=each.precision,
        intensity=intensity,
        achieved_tflops=achieved,
        peak_tflops=each.peak_tflops,
        bandwidth_gbs=each.bandwidth_gbs,
    )
