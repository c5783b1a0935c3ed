"""The records of a journal, sorted into points and events as the tables take them. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcml.runs.journal import Event, Loads, Metrics
from hpcml.runs.state import moment_ms

quickly: Loads | None
try:
    from orjson import loads as quickly  # the extra "fast"
except ImportError:
    quickly = None

_INTEGERS = 2**63  # SQLite's and PostgreSQL's largest, plus one


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The points and events of a part of one journal. Where it has a step twice, the later value is kept.

    Times are milliseconds since the run's epoch and may be negative. Values may be nan or infinite.
    """

    events: Sequence[tuple[int, str, str]]  # t_ms, name, details as JSON
    points: Mapping[str, dict[int, tuple[int, float]]]  # metric -> step -> (t_ms, value)
    records: int  # that were taken in
    last_seq: int | None  # the number of the last of them
    bad_lines: int  # records whose numbers no table can hold


def take_in(records: Iterable[Metrics | Event], *, t0: float, epoch_ms: int) -> Stretch:
    """Return the points and events of *records*.

    The journal began at *t0* (unix seconds), times count from *epoch_ms*. *records* are those of one journal, in their
    order. A record with a time, number or step that 64 bits cannot hold is left out and counted in `bad_lines`. Nothing
    is raised for what a record says.
    """
    base_ms = t0 * 1000 - epoch_ms
    events: list[tuple[int, str, str]] = []
    points: defaultdict[str, dict[int, tuple[int, float]]] = defaultdict(dict)
    taken = bad_lines = 0
    last_seq: int | None = None
    for record in records:
        exact_ms = base_ms + record.t_s * 1000
        if not (-_INTEGERS < exact_ms < _INTEGERS and 0 <= record.seq < _INTEGERS - 1):  # false for nan, too
            bad_lines += 1
            continue
        if isinstance(record, Event):
            events.append((moment_ms(t0, record.t_s) - epoch_ms, storable(record.name), json.dumps(record.details)))
        elif -_INTEGERS <= record.step < _INTEGERS:
            step, t_ms = record.step, round(exact_ms)
            for name, value in record.values.items():
                points[name][step] = (t_ms, value)
        else:
            bad_lines += 1
            continue
        taken, last_seq = taken + 1, record.seq
    return Stretch(
        events=events,
        points={storable(name): of for name, of in points.items()},
        records=taken,
        last_seq=last_seq,
        bad_lines=bad_lines,
    )


def storable(text: str) -> str:
    """Return *text* without characters that JSON can hold and not every database can: lone surrogates, and NUL.

    Both become a replacement character: "?" for a surrogate, U+FFFD for NUL. Every text goes through here before it is
    stored, and every text that stored ones are compared with.
    """
    if text.isascii() and "\0" not in text:  # nearly all, and this is done for each setting of each run
        return text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
