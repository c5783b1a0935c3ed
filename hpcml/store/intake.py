"""The records of a journal, turned into what the tables take: pure."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcml.journal import Event, Header, Metrics

_INTEGERS = 2**63  # SQLite's and PostgreSQL's largest, plus one


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What a stretch of one journal holds. Where it names a step twice, the later value is here."""

    events: Sequence[tuple[int, str, str]]  # t_ms, name, details as JSON
    points: Mapping[str, dict[int, tuple[int, float]]]  # metric -> step -> (t_ms, value)
    records: int  # that were taken in
    last_seq: int | None  # the number of the last of them
    bad_lines: int  # records whose numbers no table can hold


def take_in(records: Iterable[Metrics | Event], *, t0: float, epoch_ms: int) -> Stretch:
    """Sort *records* of a journal that began at *t0* (unix seconds), with times counted from *epoch_ms*."""
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
            events.append((round(exact_ms), storable(record.name), json.dumps(record.details)))
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


def is_usable(header: Header) -> bool:
    """Whether the tables can hold what *header* says."""
    return math.isfinite(header.t0) and abs(header.t0) < 1e12 and abs(header.attempt) < 2**31


def storable(text: str) -> str:
    """Return *text* without what JSON can name and not every database can keep: half characters, and NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
