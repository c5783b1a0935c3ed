"""What a command answers, before it is written in any form: sections of listings, figures and lines of text.

A module of this room makes a `Document` of an answer; `hpcml.report.render` writes it for a terminal and as Markdown,
LaTeX, HTML, CSV or JSON. A property of a listing's rows is defined once, as a `Column`, and every form has it from
there:

    Column("step_ms", "step", lambda row: row.step_ms, unit="ms")

Texts in a document are as the user gave them: each renderer escapes them for its format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from hpcml.analysis.compare.result import Interval
from hpcml.codec import Json, encode
from hpcml.report.text import ends, number, ratio_decimals

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

Tone = Literal["good", "bad", "doubt", "plain", "faint", "conclusion", "strong"]
RowT = TypeVar("RowT")
_NUMBERED = 3  # conclusions: two have everything beside them


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """One property of each row: its name for programs, its heading for people, and its value with all digits.

    Without a `heading` it is for programs alone (CSV and JSON), without a `key` for people alone. None is a value that
    is not known, or that there is not.
    """

    key: str
    heading: str | None
    value: Callable[[RowT], object]
    text: Callable[[RowT], str | None] | None = None  # for people; None: as `written` says
    _: KW_ONLY
    unit: str = ""
    is_number: bool | None = None  # aligned to the right; None: where all that is known are numbers
    is_short: bool = True  # shown on a narrow terminal, too
    is_interval: bool = False  # values are `Interval`s, which are two fields of CSV: ``KEY_low`` and ``KEY_high``
    tone: Callable[[RowT], Tone] | None = None  # a colour, which is never all that tells a difference

    @property
    def title(self) -> str:
        """The heading with the unit."""
        return f"{self.heading} ({self.unit})" if self.unit else self.heading or ""

    def written(self, row: RowT) -> str:
        """Return the cell of *row* for people."""
        if self.text is not None:
            return self.text(row) or ""
        return written(self.value(row))

    def tone_of(self, row: RowT) -> Tone:
        """Return the tone of the cell of *row*."""
        return "plain" if self.tone is None else self.tone(row)

    def order_of(self, row: RowT) -> float | None:
        """Return what sorts the cell of *row*; None: its text does."""
        value = self.value(row)
        value = value.low if isinstance(value, Interval) else value
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    def fields(self, row: RowT) -> dict[str, object]:
        """Return what CSV has of *row*, with all digits: nothing, a field, or two for an interval."""
        value = self.value(row)
        if not self.key:
            return {}
        if self.is_interval:
            low, high = (value.low, value.high) if isinstance(value, Interval) else (None, None)
            return dict(zip(self.names, (low, high), strict=True))
        return {self.key: value}

    @property
    def names(self) -> list[str]:
        """The fields that CSV has of it."""
        return [f"{self.key}_low", f"{self.key}_high"] if self.is_interval else [self.key] if self.key else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[RowT]):
    """A table: a row for each of *rows*, the first column names it. Notes stand below it."""

    columns: Sequence[Column[RowT]]
    rows: Sequence[RowT]
    caption: str = ""  # "": the heading of the section says what it is
    notes: Sequence[str] = ()

    def shown(self) -> list[Column[RowT]]:
        """Return the columns for people that say something in any row, and the first."""
        kept = [each for each in self.columns if each.heading is not None]
        return [
            each
            for index, each in enumerate(kept)
            if index == 0 or not self.rows or any(each.written(row) for row in self.rows)
        ]

    def is_number(self, column: Column[RowT]) -> bool:
        """Whether *column* is aligned to the right."""
        if column.is_number is not None:
            return column.is_number
        known = [value for value in map(column.value, self.rows) if value is not None]
        return bool(known) and all(
            isinstance(value, int | float | Interval) and not isinstance(value, bool) for value in known
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart, which HTML draws, with a description in words and its numbers; other forms have the numbers alone."""

    title: str
    described: str
    draw: Callable[[], Plot]  # made only where it is drawn: plotly takes its time
    numbers: Listing[Any]
    is_wide: bool = False  # has a line of the page for itself
    repeats_a_table: bool = False  # of its section: forms without drawings leave it out


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One conclusion: what was asked, what was found, how sure that is, and what weakens it, the weightiest first."""

    verdict: str
    tone: Tone
    about: str  # "tf32 against fp32"
    where: str  # in which runs: the settings that they have in common; "": there is nothing to tell
    asked: str
    found: str
    sure: str  # "": nothing was measured that could be sure
    doubts: Sequence[str] = ()

    @property
    def answers(self) -> list[tuple[str, str]]:
        """What is known, each with its question in a word: asked, found, how sure."""
        every = [("asked", self.asked), ("found", self.found), ("how sure", self.sure)]
        return [(label, text) for label, text in every if text]

    @property
    def text(self) -> str:
        """All in one line, but for the doubts."""
        answers = "; ".join(f"{label}: {text}" for label, text in self.answers)
        return f"{self.about}{f' ({self.where})' if self.where else ''}: {answers}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The conclusions of a report, in order; what weakens them is numbered, since several may share it."""

    findings: Sequence[Finding]

    @property
    def are_numbered(self) -> bool:
        """Whether what weakens them stands below them once, with its number beside each; else beside each itself."""
        return len(self.findings) >= _NUMBERED

    @property
    def doubts(self) -> list[str]:
        """What weakens any of them, each once."""
        return list(dict.fromkeys(doubt for finding in self.findings for doubt in finding.doubts))

    def marks(self, finding: Finding) -> list[int]:
        """Return the numbers of what weakens *finding*, from 1."""
        every = self.doubts
        return [every.index(doubt) + 1 for doubt in dict.fromkeys(finding.doubts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Running text."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """Separate lines of text; as a list where the format has lists."""

    lines: Sequence[str]
    tones: Sequence[Tone] = ()  # of each line; none: plain
    hint: str = ""  # a last line for the one who asked, and not for who reads a paper

    def toned(self) -> list[tuple[str, Tone]]:
        """Return each line with its tone."""
        tones: Sequence[Tone] = self.tones or ["plain"] * len(self.lines)
        told = list(zip(self.lines, tones, strict=True))
        return [*told, (self.hint, "plain")] if self.hint else told


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """What is known of one thing, each value with its label; what is None or "" is left out."""

    values: Mapping[str, object]

    @property
    def known(self) -> dict[str, str]:
        """The labels with what people read."""
        return {label: text for label, value in self.values.items() if (text := written(value))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Lines for a shell, to be copied: they are not broken and not changed."""

    lines: Sequence[str]


Part = Findings | Paragraph | Remarks | Pairs | Commands | Listing[Any] | Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with its parts and subsections; a section without heading closes the document."""

    heading: str = ""
    parts: Sequence[Part] = ()
    sections: Sequence[Section] = ()

    def listings(self) -> list[Listing[Any]]:
        """Return its tables, and those of its subsections."""
        own = [part for part in self.parts if isinstance(part, Listing)]
        return [*own, *(listing for section in self.sections for listing in section.listings())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """All that one command answers, for people (`sections`) and for programs (`record`, `data`).

    `introduction` is one line above the sections. JSON has `record`, or where that is None an object for each row of
    `data`; CSV has a line for each. Without `data` these are the rows of the document's tables.
    """

    title: str = ""  # "": it is put below somebody else's
    introduction: str = ""
    sections: Sequence[Section] = ()
    record: Json | Callable[[], Json] = None
    data: Sequence[Listing[Any]] | None = None
    made_by: str = ""  # the version of hpcml

    @classmethod
    def of(cls, listing: Listing[Any], **more: Any) -> Document:  # noqa: ANN401 - further fields
        """Return a document of one table."""
        return cls(sections=[Section(parts=[listing])], **more)

    @property
    def flat(self) -> list[dict[str, object]]:
        """The rows as lines of CSV, by field."""
        return [
            {name: value for column in listing.columns for name, value in column.fields(row).items()}
            for listing in self._flat_listings()
            for row in listing.rows
        ]

    @property
    def fields(self) -> list[str]:
        """The names of the fields of CSV."""
        return list(
            dict.fromkeys(name for each in self._flat_listings() for column in each.columns for name in column.names)
        )

    def _flat_listings(self) -> Sequence[Listing[Any]]:
        return [each for one in self.sections for each in one.listings()] if self.data is None else self.data


def written(value: object) -> str:
    """Return *value* as people read it: four significant digits, lists with commas, "" for None.

    >>> written(0.123456), written(True), written(["a", "b"])
    ('0.1235', 'true', 'a, b')
    """
    if isinstance(value, Interval):
        return ends(value, ratio_decimals(value))
    value = encode(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return number(value, 4)
    if isinstance(value, list | tuple) and all(isinstance(each, str | int) for each in value):
        return ", ".join(map(str, value))
    if isinstance(value, list | dict):
        return json.dumps(value, sort_keys=True, default=str)
    return "" if value is None else str(value)


def percent(value: float | None) -> float | None:
    """Return a share of 0 to 1 in percent; None for None."""
    return None if value is None else value * 100
