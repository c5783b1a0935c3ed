"""The document of a command: sections of tables, charts and remarks, before they are rendered as text, HTML or JSON.

A topic (`hpcml.report.comparison`, `.scaling`, `.utilization`, `.publication`) builds a `Document`;
`hpcml.report.render` makes the text of a terminal, Markdown, LaTeX, HTML, CSV or JSON of it. Each property of a table's
rows is defined once, as a `Quantity`: every output format gets its column from that.

Example, a column that every format of ``hpcml compare`` and ``hpcml report`` gets:

    Quantity(key="selected", heading="selected", unit="runs", section="cost", is_derived=True,
             value=lambda row: row.n_ok + row.n_failed)

Texts in a document are as the user gave them: each renderer escapes them for its format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Generic, Literal, TypeVar

from hpcml.codec import Json
from hpcml.model.comparison import Interval, Verdict
from hpcml.report.text import duration, ends, number, ratio_decimals, to_decimals

Tone = Literal["good", "bad", "doubt", "plain", "faint", "conclusion", "strong"]
Kind = Literal["number", "interval", "text", "bar"]
Wrap = Literal["fold", "narrow", "never"]  # where a terminal may break a cell: always, below 100 columns, never
RowT = TypeVar("RowT")
_READ_AS_A_LIST = 7  # conclusions: from here on a line for each verdict comes first
_MOST_NAMED = 12  # levels in such a line
_MANY_FINDINGS = 3  # conclusions: from here on, what weakens all of them is said once


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """The heading and the layout of a column; numbers are aligned to the right, their unit stands in the heading.

    What concerns terminals alone (`terminal_title`, `on_terminal`, `wrap`, `spare`) changes nothing in the other
    formats.
    """

    title: str
    unit: str = ""
    is_number: bool = False
    is_bar: bool = False  # a share, drawn as long as it is large
    terminal_title: str | None = None  # None: the same
    on_terminal: bool = True
    wrap: Wrap = "fold"
    spare: int = 0  # a narrow terminal leaves out the column with the smallest of these first; 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One cell of a table. `order` is its sort key where that is not its text; for a bar it is the share, 0 to 1.

    An empty `text` means that the value is not known, or that there is none. The `tone` decides on the colour, where a
    format has colours; it is never all that tells a difference.
    """

    text: str
    order: float | None = None
    tone: Tone = "plain"
    interval: str = ""  # behind the text, or below it where a terminal is narrow

    @property
    def whole(self) -> str:
        """The text and its interval."""
        return f"{self.text} {self.interval}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under headings, each with an entry for every column; the first entry of each row names it.

    An empty `caption` means that the heading of the section says what the table is.
    """

    caption: str
    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Entry]]
    is_dense: bool = False  # many wide columns: on a terminal each has one blank beside it, and a wrapped heading
    is_transposed: bool = False  # a line for each quantity; a terminal puts the columns that do not fit below


CurveRole = Literal["run", "mean", "band"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One line, bar or set of points of a chart; it is hidden and shown together with its level.

    `drawn` is a trace of plotly (https://plotly.com/javascript/reference/) without its x values, which depend on the
    view. Texts in it must have gone through `charts.drawn_text`. A level of None is always shown.
    """

    level: str | None
    drawn: Mapping[str, Json]  # plotly's words for it, without x
    xs: Mapping[str, Sequence[float | str | None]]  # for each view in which it is shown
    role: CurveRole | None = None  # of curves that readers can smooth; runs are chosen by the text `drawn["meta"]`


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A quantity that the horizontal axis can show (steps, seconds ...); readers of the HTML page choose one.

    `label` is the word to choose it by, `title` the title of the axis, with the unit.
    """

    key: str
    label: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart for HTML, with a description for those who cannot see it, and the numbers behind it as a table.

    Formats without drawings show the table in its place. `layout` is a layout of plotly.
    """

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
    """One conclusion of a report: what was asked, what was found, how sure that is, and what weakens it.

    `doubts` are lines that the reader must know before believing it, the weightiest first.
    """

    verdict: str
    tone: Tone
    about: str  # "tf32 against fp32"
    where: str  # in which runs: the settings that they have in common; "": there is nothing to tell
    asked: str
    found: str
    sure: str  # "": nothing was measured that could be sure
    doubts: Sequence[str] = ()
    level: str = ""  # "tf32"
    asked_of_all: str = ""  # as `asked`, of every level at once; "": there is no such question

    def told(self) -> list[tuple[str, str]]:
        """Return what is known with the words that it is told under: asked, found, how sure."""
        every = [("asked", self.asked), ("found", self.found), ("how sure", self.sure)]
        return [(label, text) for label, text in every if text]

    @property
    def text(self) -> str:
        """All in one line, but for the doubts."""
        said = "; ".join(f"{label}: {text}" for label, text in self.told())
        return f"{self.about}{f' ({self.where})' if self.where else ''}: {said}"


def tallied(verdicts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each of *verdicts*, which come with a level, and how many and which levels have it; [] for a few.

    >>> tallied([("better", "a"), *(("worse", name) for name in "bcdefg")])
    [('better', '1 of 7: a'), ('worse', '6 of 7: b, c, d, e, f, g')]
    """
    if len(verdicts) < _READ_AS_A_LIST:
        return []
    levels = {word: [level for each, level in verdicts if each == word] for word, _ in verdicts}
    told = []
    for word, of in levels.items():
        more = len(of) - _MOST_NAMED
        named = f"{', '.join(of[:_MOST_NAMED])} and {more} more" if more > 1 else ", ".join(of)
        told.append((word, f"{len(of)} of {len(verdicts)}: {named}"))
    return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The conclusions of a report, in order."""

    of: Sequence[Finding]

    def together(self) -> list[tuple[str, str, list[str], list[Finding]]]:
        """Return the conclusions about the same runs: which these are, what was asked of all, doubts that all share.

        Then each, without these. Only from three conclusions on: of two, each has everything beside it.
        """
        found = []
        for where, of in groupby(self.of, key=lambda finding: finding.where):
            alike = list(of)
            shared = [
                doubt
                for doubt in (alike[0].doubts if len(alike) >= _MANY_FINDINGS else ())
                if all(doubt in each.doubts for each in alike)
            ]
            questions = {each.asked_of_all for each in alike} if len(alike) >= _MANY_FINDINGS else set()
            asked = questions.pop() if len(questions) == 1 else ""
            own = [
                replace(
                    each,
                    asked="" if asked else each.asked,
                    doubts=[doubt for doubt in each.doubts if doubt not in shared],
                )
                for each in alike
            ]
            found.append((where, asked, shared, own))
        return found

    @staticmethod
    def tally(of: Sequence[Finding]) -> list[tuple[str, Tone, str]]:
        """Return each verdict of the conclusions *of* the same runs, its tone and who has it (`tallied`)."""
        tones = {each.verdict: each.tone for each in of}
        return [(verdict, tones[verdict], who) for verdict, who in tallied([(each.verdict, each.level) for each in of])]


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
    terminal_only: bool = False  # says what the other forms have a column for
    hint: str = ""  # a last line for the one who asked, and not for who reads a paper: in LaTeX a comment

    def toned(self) -> list[tuple[str, Tone]]:
        """Return each line with its tone; raise `ValueError` where there are tones for some lines only."""
        tones: Sequence[Tone] = self.tones or ["plain"] * len(self.lines)
        told = list(zip(self.lines, tones, strict=True))
        return [*told, (self.hint, "plain")] if self.hint else told


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Lines for a shell, to be copied: they are not broken and not changed."""

    lines: Sequence[str]


Part = Findings | Paragraph | Remarks | Commands | Table | Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with its parts and subsections; a section without heading closes the document."""

    heading: str
    parts: Sequence[Part] = ()
    sections: Sequence[Section] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelStyle:
    """The colour, line and marker of a level in all charts of a report, as plotly names them.

    `colour` is ``#rrggbb``.
    """

    colour: str
    dash: str
    marker: str

    def faint(self, opacity: float) -> str:
        """Return the colour with *opacity* between 0 and 1, as CSS's ``rgba()``."""
        red, green, blue = (int(self.colour[at : at + 2], 16) for at in (1, 3, 5))
        return f"rgba({red},{green},{blue},{opacity:g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """All that one command shows, for people (`sections`) and for programs (`record`, `lines`).

    `introduction` is one line above the sections. Every renderer takes what it can show: CSV only `lines`, JSON only
    `record`, the others all the rest.
    """

    title: str = ""  # "": it is put below somebody else's
    introduction: str = ""
    sections: Sequence[Section] = ()
    record: Mapping[str, Json] = field(default_factory=dict)  # everything, for JSON
    lines: Sequence[Mapping[str, object]] = ()  # flat, for CSV: all with the same keys
    styles: Mapping[str, LevelStyle] = field(default_factory=dict)  # by level, for charts
    made_by: str = ""  # the version of hpcml


Value = float | str | bool | Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Short(Generic[RowT]):
    """The column of a quantity in a command's own table, which is shorter than a report's.

    With `as_line` it is a line of the table below instead, labelled with the quantity's heading and unit. `spare` is as
    in `TableColumn`: a narrow terminal leaves out the column with the smallest number first, and one with 0 never.
    """

    heading: str = ""  # "": the quantity's own
    write: Callable[[RowT], Entry] | None = None  # None: as in a report
    as_line: bool = False
    order: int = 0  # the smallest first, else as they were defined
    is_number: bool | None = None  # None: as its kind says
    terminal: str | None = None  # another heading on a terminal
    on_terminal: bool = True
    wrap: Wrap = "fold"
    spare: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity(Generic[RowT]):
    """One property of each row: its name, its unit, its value, and how the value is written.

    It decides on up to four places, each of which can be switched off: CSV and JSON (`key`), a table of a report
    (`section`), the table of a command (`short`), and the lines below that table (`short.as_line`). `value` is in
    `unit`, but for shares, which are 0 to 1 for programs and percent for people.

        >>> steps = Quantity(key="step_ms", heading="step", unit="ms", value=lambda row: row * 1000)
        >>> steps.entry(0.0123456).text, steps.flat(0.5)
        ('12.35', {'step_ms': 500.0})
    """

    heading: str = ""
    unit: str = ""
    kind: Kind = "number"
    value: Callable[[RowT], Value] = lambda _: None  # as programs get it; None: not known
    key: str | None = None  # in CSV, of an interval with _low and _high; None: not for programs
    is_derived: bool = False  # no field of the record, so that JSON needs it under its key as well
    write: Callable[[RowT], Entry] | None = None  # as people get it; None: by its kind, with 4 digits
    section: str | None = None  # the table of a report in which it stands; None: in none
    order: int = 0  # in that table: the smallest first, else as they were defined
    short: Short[RowT] | None = Short(as_line=True)  # None: not in the command's own table

    def entry(self, row: RowT) -> Entry:
        """Return the cell of a report's table: as `write` says, else by the kind of the value."""
        if self.write is not None:
            return self.write(row)
        value = self.value(row)
        if isinstance(value, Interval):
            return between(value, ratio_decimals(value))
        return figure(value) if isinstance(value, int | float) else words(value)

    def short_entry(self, row: RowT) -> Entry:
        """Return the cell of the command's own table, which is that of a report where `short` has no `write`."""
        return self.short.write(row) if self.short is not None and self.short.write is not None else self.entry(row)

    def flat(self, row: RowT) -> dict[str, object]:
        """Return the fields of a line of CSV: none, one, or for an interval two (``KEY_low`` and ``KEY_high``).

        The values have all their digits; None where the value is not known.
        """
        value = self.value(row)
        if self.key is None:
            return {}
        if self.kind == "interval":
            low, high = (value.low, value.high) if isinstance(value, Interval) else (None, None)
            return {f"{self.key}_low": low, f"{self.key}_high": high}
        return {self.key: value}


def flat_line(quantities: Sequence[Quantity[RowT]], row: RowT) -> dict[str, object]:
    """Return *row* as a line of CSV, by field, in the order of *quantities*."""
    return {key: value for quantity in quantities for key, value in quantity.flat(row).items()}


def derived(quantities: Sequence[Quantity[RowT]], row: RowT) -> dict[str, Json]:
    """Return the fields that JSON has of *row* besides those of its record: those of quantities with `is_derived`."""
    return {key: value for each in quantities if each.is_derived for key, value in each.flat(row).items()}


def report_table(
    caption: str, quantities: Sequence[Quantity[RowT]], rows: Sequence[RowT], *, keeps_empty: bool = False
) -> Table:
    """Return a report's table of *rows*; a column that is empty in all rows is left out, unless *keeps_empty*.

    The columns are in the order of their `order`, and equal ones in that of *quantities*; `section` must have been
    chosen by the caller. The first column is always there: it names the rows.
    """
    listed = sorted(quantities, key=lambda quantity: quantity.order)
    lines = [[quantity.entry(row) for quantity in listed] for row in rows]
    shown = [at for at in range(len(listed)) if at == 0 or keeps_empty or any(line[at].text for line in lines)]
    columns = [_column(listed[at]) for at in shown]
    return Table(caption=caption, columns=columns, rows=[[line[at] for at in shown] for line in lines])


def without_empty_columns(table: Table) -> Table:
    """Return *table* without the columns that say nothing in any row; the first stays, which names the rows."""
    shown = [at for at in range(len(table.columns)) if at == 0 or any(row[at].text for row in table.rows)]
    return replace(
        table, columns=[table.columns[at] for at in shown], rows=[[row[at] for at in shown] for row in table.rows]
    )


def short_table(
    quantities: Sequence[Quantity[RowT]], rows: Sequence[RowT], *, keeps_empty: bool = False, is_dense: bool = False
) -> Table:
    """Return a command's own table of *rows*; a column that is empty in all rows is left out, unless *keeps_empty*.

    Its columns are the quantities that have a `short` without `as_line`. *is_dense* is as in `Table`.
    """
    listed = [(each, each.short) for each in quantities if each.short is not None and not each.short.as_line]
    listed.sort(key=lambda pair: pair[1].order)
    lines = [[quantity.short_entry(row) for quantity, _ in listed] for row in rows]
    shown = [at for at in range(len(listed)) if keeps_empty or any(line[at].text for line in lines)]
    columns = [_short_column(*listed[at]) for at in shown]
    return Table(caption="", columns=columns, rows=[[line[at] for at in shown] for line in lines], is_dense=is_dense)


def line_table(quantities: Sequence[Quantity[RowT]], rows: Sequence[RowT], names: Sequence[str]) -> Table | None:
    """Return the table below a command's own, with a line for each quantity and a column for each row; None if empty.

    Its lines are the quantities whose `short` has `as_line`; those that are not known of any row are left out. *names*
    are the headings of the columns, in the order of *rows*.
    """
    listed = [(each, each.short) for each in quantities if each.short is not None and each.short.as_line]
    listed.sort(key=lambda pair: pair[1].order)
    lines = [[words(_label(*pair)), *(pair[0].short_entry(row) for row in rows)] for pair in listed]
    known = [line for line in lines if any(entry.text for entry in line[1:])]
    if not known:
        return None
    columns = [TableColumn(title=""), *(TableColumn(title=name, is_number=True) for name in names)]
    return Table(caption="", columns=columns, rows=known, is_transposed=True)


def _label(quantity: Quantity[RowT], short: Short[RowT]) -> str:
    return short.heading or ", ".join(filter(None, (quantity.heading, quantity.unit)))


def _column(quantity: Quantity[RowT]) -> TableColumn:
    return TableColumn(title=quantity.heading, unit=quantity.unit, is_number=quantity.kind != "text")


def _short_column(quantity: Quantity[RowT], short: Short[RowT]) -> TableColumn:
    is_bar = quantity.kind == "bar"
    is_number = quantity.kind not in ("text", "bar") if short.is_number is None else short.is_number
    return TableColumn(
        title=_label(quantity, short),
        is_number=is_number,
        is_bar=is_bar,
        terminal_title=short.terminal,
        on_terminal=short.on_terminal,
        wrap=short.wrap,
        spare=short.spare,
    )


NOTHING = Entry(text="")
VERDICT_TONES: dict[Verdict, Tone] = {
    "equivalent": "good",
    "better": "good",
    "non-inferior": "good",
    "worse by more than the margin": "bad",
    "worse": "bad",
    "unstable": "bad",
    "unstable reference": "bad",
    "identical": "doubt",
    "inconclusive": "doubt",
    "no goal": "doubt",
    "not proven": "doubt",
    "not as requested": "doubt",
}


def words(value: object, tone: Tone = "plain") -> Entry:
    """Return *value* as text, sorted by it; an empty cell for None."""
    return NOTHING if value is None else Entry(text=str(value), tone=tone)


def figure(value: float | None, digits: int = 4) -> Entry:
    """Return a number with *digits* significant digits, a whole number in full; an empty cell for None.

    A value that is not finite has no sort key.

    >>> figure(0.123456).text, figure(1234567).text
    ('0.1235', '1234567')
    """
    if value is None:
        return NOTHING
    text = f"{value:d}" if isinstance(value, int) else number(value, digits)
    return Entry(text=text, order=float(value) if math.isfinite(value) else None)


def fixed(value: float | None, decimals: int, *, signed: bool = False) -> Entry:
    """Return a number with *decimals* decimals; an empty cell for None. *signed* gives positive ones a sign, too."""
    return NOTHING if value is None else Entry(text=to_decimals(value, decimals, signed=signed), order=value)


def share(value: float | None) -> Entry:
    """Return a share of 0 to 1 in percent, without the sign, which the heading has.

    >>> share(0.5).text
    '50.0'
    """
    return NOTHING if value is None else Entry(text=number(value * 100, 3), order=value)


def between(interval: Interval | None, decimals: int, *, signed: bool = False) -> Entry:
    """Return an interval, sorted by its lower end; an empty cell for None."""
    return NOTHING if interval is None else Entry(text=ends(interval, decimals, signed=signed), order=interval.low)


def span(seconds: float | None) -> Entry:
    """Return a span of time in its two largest units, sorted by its seconds; an empty cell for None."""
    return NOTHING if seconds is None else Entry(text=duration(seconds), order=seconds)


def text_column(title: str) -> TableColumn:
    """Return a column of words."""
    return TableColumn(title=title)


def number_column(title: str, unit: str = "") -> TableColumn:
    """Return a column of numbers."""
    return TableColumn(title=title, unit=unit, is_number=True)
