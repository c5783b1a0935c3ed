"""Intervals drawn to one scale, so that who lies inside the margin is seen before it is read."""

from __future__ import annotations

from dataclasses import dataclass

from hpcml.comparison import Cell, Interval

_ROOM = 1.25  # the axis ends a quarter beyond the margin, or where the longest interval does
_MOST_MARGINS = 10  # beyond, the margin itself could not be seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The characters of a drawing."""

    line: str
    point: str
    margin: str
    zero: str
    beyond: tuple[str, str]  # an end that lies outside


DRAWN = Marks(line="─", point="●", margin="┊", zero="│", beyond=("◂", "▸"))
PLAIN = Marks(line="-", point="o", margin=":", zero="|", beyond=("<", ">"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row's interval as text, as wide as all others of its cell."""

    level: str
    text: str


def interval_bars(cell: Cell, *, width: int, marks: Marks) -> list[Bar]:
    """Return the 90 % intervals of all differences in *cell* on one axis around 0, with the margin where there is one.

    Nothing where no row has an interval. An interval that goes far beyond the margin is cut, and shown to go on.
    """
    known = [(row.level, row.difference) for row in cell.rows if row.difference is not None]
    intervals = [(level, d.value, d.ci90) for level, d in known if d.ci90 is not None]
    ends = [max(abs(interval.low), abs(interval.high)) for _, _, interval in intervals]
    if not intervals or width < 9:
        return []
    span = max(ends) * 1.05
    if cell.margin is not None:
        span = max(cell.margin * _ROOM, min(span, cell.margin * _MOST_MARGINS))
    if span <= 0:
        return []
    return [
        Bar(level=level, text=_draw(value, interval, cell.margin, span, width, marks))
        for level, value, interval in intervals
    ]


def _draw(value: float, interval: Interval, margin: float | None, span: float, width: int, marks: Marks) -> str:
    def at(number: float) -> int:
        return max(0, min(width - 1, round((number / span + 1) / 2 * (width - 1))))

    cells = [" "] * width
    for place in range(at(interval.low), at(interval.high) + 1):
        cells[place] = marks.line
    cells[at(0.0)] = marks.zero
    if margin is not None:
        cells[at(-margin)] = cells[at(margin)] = marks.margin
    cells[at(value)] = marks.point
    if interval.low < -span:
        cells[0] = marks.beyond[0]
    if interval.high > span:
        cells[-1] = marks.beyond[1]
    return "".join(cells)
