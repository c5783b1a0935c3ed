"""The records of a journal, sorted into points and events as the tables take them. Pure."""

from __future__ import annotations

import json
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from hpcml.runs.journal import Event, Loads, Metrics
from hpcml.runs.state import moment_ms
from hpcml.store.curves import Columns, in_order

quickly: Loads | None
try:
    from orjson import loads as quickly  # the extra "fast"
except ImportError:
    quickly = None

_INTEGERS = 2**63  # SQLite's and PostgreSQL's largest, plus one
_PLACE = operator.itemgetter(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The points and events of a part of one journal. Where it has a step twice, the later value is kept.

    Times are milliseconds since the run's epoch and may be negative. Values may be nan or infinite.
    """

    events: Sequence[tuple[int, str, str]]  # t_ms, name, details as JSON
    details: Sequence[Mapping[str, Any]]  # of each event
    points: Mapping[str, Columns]  # by metric
    records: int  # that were taken in
    last_seq: int | None  # the number of the last of them
    bad_lines: int  # records whose numbers no table can hold

    @property
    def n_points(self) -> int:
        """The number of points."""
        return sum(len(columns.steps) for columns in self.points.values())


def take_in(records: Iterable[Metrics | Event], *, t0: float, epoch_ms: int) -> Stretch:
    """Return the points and events of *records*.

    The journal began at *t0* (unix seconds), times count from *epoch_ms*. *records* are those of one journal, in their
    order. A record with a time, number or step that 64 bits cannot hold is left out and counted in `bad_lines`. Nothing
    is raised for what a record says.
    """
    base_ms = t0 * 1000 - epoch_ms
    events: list[tuple[int, str, str]] = []
    details: list[Mapping[str, Any]] = []
    alike: dict[tuple[str, ...], _Alike] = {}
    taken = bad_lines = 0
    last_seq: int | None = None
    for record in records:
        exact_ms = base_ms + record.t_s * 1000
        if not (-_INTEGERS < exact_ms < _INTEGERS and 0 <= record.seq < _INTEGERS - 1):  # false for nan, too
            bad_lines += 1
            continue
        if isinstance(record, Event):
            events.append((moment_ms(t0, record.t_s) - epoch_ms, storable(record.name), json.dumps(record.details)))
            details.append(record.details)
        elif -_INTEGERS <= record.step < _INTEGERS:
            names = tuple(record.values)
            if (found := alike.get(names)) is None:
                found = alike[names] = _Alike([], [], [], [])
            found.places.append(taken)
            found.steps.append(record.step)
            found.times_ms.append(round(exact_ms))
            found.rows.append(record.values.values())
        else:
            bad_lines += 1
            continue
        taken, last_seq = taken + 1, record.seq
    return Stretch(
        events=events,
        details=details,
        points=_by_metric(alike),
        records=taken,
        last_seq=last_seq,
        bad_lines=bad_lines,
    )


class _Alike(NamedTuple):
    """Records that have values of the same metrics, in columns but for the values: most of a journal are alike."""

    places: list[int]  # among all records
    steps: list[int]
    times_ms: list[int]
    rows: list[ValuesView[float]]


def _by_metric(alike: Mapping[tuple[str, ...], _Alike]) -> dict[str, Columns]:
    parts: defaultdict[str, list[tuple[_Alike, Sequence[float]]]] = defaultdict(list)
    ascending = {id(found): all(map(operator.lt, found.steps, found.steps[1:])) for found in alike.values()}
    for names, found in alike.items():
        for name, values in zip(names, zip(*found.rows, strict=True), strict=True):
            parts[name].append((found, values))
    points: dict[str, Columns] = {}
    for name, of_metric in parts.items():
        first, column = of_metric[0]
        if len(of_metric) == 1 and ascending[id(first)]:
            points[storable(name)] = Columns(first.steps, first.times_ms, column)
        else:
            rows = (zip(of.places, of.steps, of.times_ms, values, strict=True) for of, values in of_metric)
            points[storable(name)] = in_order([(row[1:] for row in sorted(chain.from_iterable(rows), key=_PLACE))])
    return points


def storable(text: str) -> str:
    """Return *text* without characters that JSON can hold and not every database can: lone surrogates, and NUL.

    Both become a replacement character: "?" for a surrogate, U+FFFD for NUL. Every text goes through here before it is
    stored, and every text that stored ones are compared with.
    """
    if text.isascii() and "\0" not in text:  # nearly all, and this is done for each setting of each run
        return text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
