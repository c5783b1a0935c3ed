"""The records of journals, sorted into points and events as the tables take them; texts that any database takes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hpcml.runs.journal import Event, Metrics
from hpcml.runs.state import moment_ms
from hpcml.store.curves import Columns, in_order

_INTEGERS = 2**63  # SQLite's and PostgreSQL's largest, plus one


@dataclass(slots=True, kw_only=True)
class JournalRecords:
    """The points and events of one journal, in its order.

    The journal began at *t0* (unix seconds); times are milliseconds since *epoch_ms* and may be negative. Values may be
    nan or infinite. A record with a time, number or step that 64 bits cannot hold is left out and counted.
    """

    t0: float
    epoch_ms: int
    events: list[tuple[int, str, Mapping[str, Any]]] = field(default_factory=list)  # t_ms, name, details
    records: int = 0  # that were taken
    next_seq: int | None = None  # the number of the last of them, plus one
    bad_lines: int = 0
    _points: defaultdict[str, tuple[list[int], list[int], list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: ([], [], []))
    )

    def take(self, records: Iterable[Metrics | Event]) -> None:
        """Take the *records* that follow."""
        base_ms = self.t0 * 1000 - self.epoch_ms
        for record in records:
            exact_ms = base_ms + record.t_s * 1000
            is_storable = -_INTEGERS < exact_ms < _INTEGERS and 0 <= record.seq < _INTEGERS - 1  # false for nan, too
            if isinstance(record, Metrics):
                is_storable = is_storable and -_INTEGERS <= record.step < _INTEGERS
            if not is_storable:
                self.bad_lines += 1
                continue
            self.records, self.next_seq = self.records + 1, record.seq + 1
            if isinstance(record, Event):
                t_ms = moment_ms(self.t0, record.t_s) - self.epoch_ms
                self.events.append((t_ms, storable(record.name), storable_json(record.details)))
                continue
            t_ms = round(exact_ms)
            for name, value in record.values.items():
                steps, times_ms, values = self._points[name]
                steps.append(record.step)
                times_ms.append(t_ms)
                values.append(value)

    def curves(self) -> dict[str, Columns]:
        """Return the points of each metric by step; of a step that is there twice the later value."""
        return {storable(name): _by_step(Columns(*columns)) for name, columns in self._points.items()}


def _by_step(columns: Columns) -> Columns:
    if all(step < after for step, after in pairwise(columns.steps)):
        return columns
    return in_order([zip(*columns, strict=True)])


def storable(text: str) -> str:
    """Return *text* without characters that JSON can hold and not every database can: lone surrogates, and NUL.

    Both become a replacement character: "?" for a surrogate, U+FFFD for NUL. Every text goes through here before it is
    stored, and every text that stored ones are compared with.
    """
    if text.isascii() and "\0" not in text:  # nearly all
        return text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")


def storable_json(value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Return *value* with its texts `storable`, and what is no finite number as journals write it ("nan", "inf")."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {storable(str(key)): storable_json(each) for key, each in value.items()}
    return [storable_json(each) for each in value] if isinstance(value, list | tuple) else value
