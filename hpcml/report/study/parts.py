"""What a report is put together from: sections of words, tables and charts, in no form yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hpcml.codec import Json

Tone = Literal["good", "bad", "doubt", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What stands in a column; numbers are to the right, their unit in the heading."""

    title: str
    unit: str = ""
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One place of a table. `order` is what it is sorted by, where that is not its text."""

    text: str
    order: float | None = None
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under headings; the first entry of each row names it."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Entry]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One thing that is drawn. What belongs to a level goes and comes with it."""

    level: str | None
    drawn: Mapping[str, Json]  # plotly's words for it, without x
    xs: Mapping[str, Sequence[float | str | None]]  # for each view in which it is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the horizontal axis may stand for."""

    key: str
    label: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing, the words that stand for it, and the numbers behind it."""

    title: str
    described: str
    traces: Sequence[Trace]
    views: Sequence[View]  # the first is shown at first
    layout: Mapping[str, Json]
    numbers: Table
    levels: Sequence[str] = ()  # those that can be hidden
    height_px: int = 340
    is_wide: bool = True  # has a whole line of the page for itself
    repeats_a_table: bool = False  # of its section: forms without drawings leave it out


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that the report concludes."""

    verdict: str
    tone: Tone
    about: str  # which arm of what
    text: str
    doubts: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the report concludes, one after the other."""

    of: Sequence[Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Some sentences."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Some lines, each for itself."""

    lines: Sequence[str]
    tones: Sequence[Tone] = ()  # of each line; none: plain

    def toned(self) -> list[tuple[str, Tone]]:
        """Return each line with its tone."""
        return list(zip(self.lines, self.tones or ["plain"] * len(self.lines), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What can be typed."""

    lines: Sequence[str]


Part = Findings | Paragraph | Listed | Commands | Table | Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with what stands below it."""

    heading: str
    parts: Sequence[Part] = ()
    sections: Sequence[Section] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A whole report."""

    title: str
    subtitle: str
    sections: Sequence[Section]
