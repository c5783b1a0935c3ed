"""Quantities of comparisons, scaling studies and utilization: properties of a row that stand in several tables.

Each becomes a `Column` of a `Listing`; a module that defines its columns itself needs nothing of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from hpcml.codec import Json
from hpcml.model.comparison import Interval, Verdict
from hpcml.report.document import Column, Listing, Tone
from hpcml.report.text import duration, ends, number, ratio_decimals, to_decimals

Kind = Literal["number", "interval", "text", "bar"]
RowT = TypeVar("RowT")
_READ_AS_A_LIST = 7  # conclusions: from here on a line for each verdict comes first
_MOST_NAMED = 12  # levels in such a line


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """The heading of a column; numbers are aligned to the right, their unit stands in the heading."""

    title: str
    unit: str = ""
    is_number: bool = False
    is_short: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One cell of a table. `order` is its sort key where that is not its text."""

    text: str
    order: float | None = None
    tone: Tone = "plain"
    interval: str = ""  # behind the text

    @property
    def whole(self) -> str:
        """The text and its interval."""
        return f"{self.text} {self.interval}".strip()


def table(caption: str, columns: Sequence[TableColumn], rows: Sequence[Sequence[Entry]]) -> Listing[Sequence[Entry]]:
    """Return a listing of *rows* that are written already."""
    return Listing(
        caption=caption, columns=[_written(index, column) for index, column in enumerate(columns)], rows=rows
    )


def _written(index: int, column: TableColumn) -> Column[Sequence[Entry]]:
    return Column(
        "",
        column.title,
        lambda row: row[index].order if row[index].order is not None else row[index].text,
        lambda row: row[index].whole,
        unit=column.unit,
        is_number=column.is_number,
        is_short=column.is_short,
        tone=lambda row: row[index].tone,
    )


def flat_listing(lines: Sequence[Mapping[str, object]]) -> Listing[Mapping[str, object]]:
    """Return *lines*, which all have the same keys, as the data of a document."""
    return Listing(columns=[_field(key) for key in (lines[0] if lines else ())], rows=lines)


def _field(key: str) -> Column[Mapping[str, object]]:
    return Column(key, None, lambda line: line[key])


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


Value = float | str | bool | Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Short(Generic[RowT]):
    """The column of a quantity in a command's own table, which is shorter than a report's.

    With `as_line` it is a line of the table below instead, labelled with the quantity's heading and unit.
    """

    heading: str = ""  # "": the quantity's own
    write: Callable[[RowT], Entry] | None = None  # None: as in a report
    as_line: bool = False
    order: int = 0  # the smallest first, else as they were defined
    is_number: bool | None = None  # None: as its kind says
    on_terminal: bool = True


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
) -> Listing[Any]:
    """Return a report's table of *rows*; a column that is empty in all rows is left out, unless *keeps_empty*.

    The columns are in the order of their `order`, and equal ones in that of *quantities*; `section` must have been
    chosen by the caller. The first column is always there: it names the rows.
    """
    listed = sorted(quantities, key=lambda quantity: quantity.order)
    lines = [[quantity.entry(row) for quantity in listed] for row in rows]
    shown = [at for at in range(len(listed)) if at == 0 or keeps_empty or any(line[at].text for line in lines)]
    columns = [_column(listed[at]) for at in shown]
    return table(caption, columns, [[line[at] for at in shown] for line in lines])


def short_table(
    quantities: Sequence[Quantity[RowT]], rows: Sequence[RowT], *, keeps_empty: bool = False
) -> Listing[Any]:
    """Return a command's own table of *rows*; a column that is empty in all rows is left out, unless *keeps_empty*.

    Its columns are the quantities that have a `short` without `as_line`.
    """
    listed = [(each, each.short) for each in quantities if each.short is not None and not each.short.as_line]
    listed.sort(key=lambda pair: pair[1].order)
    lines = [[quantity.short_entry(row) for quantity, _ in listed] for row in rows]
    shown = [at for at in range(len(listed)) if keeps_empty or any(line[at].text for line in lines)]
    columns = [_short_column(*listed[at]) for at in shown]
    return table("", columns, [[line[at] for at in shown] for line in lines])


def line_table(quantities: Sequence[Quantity[RowT]], rows: Sequence[RowT], names: Sequence[str]) -> Listing[Any] | None:
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
    return table("", columns, known)


def _label(quantity: Quantity[RowT], short: Short[RowT]) -> str:
    return short.heading or ", ".join(filter(None, (quantity.heading, quantity.unit)))


def _column(quantity: Quantity[RowT]) -> TableColumn:
    return TableColumn(title=quantity.heading, unit=quantity.unit, is_number=quantity.kind != "text")


def _short_column(quantity: Quantity[RowT], short: Short[RowT]) -> TableColumn:
    is_number = quantity.kind not in ("text", "bar") if short.is_number is None else short.is_number
    return TableColumn(title=_label(quantity, short), is_number=is_number, is_short=short.on_terminal)


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
