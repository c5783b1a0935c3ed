"""A journal written whole, of records whose times are known: what the client writes while a run lasts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hpcml.journal import FORMAT, Chunk, Event, Header, Metrics

_MS = 1000


def journal_text(header: Header, records: Iterable[Metrics | Event]) -> Iterator[str]:
    """Yield the lines of a journal; the records are numbered anew, in their order."""
    first = {
        "hpcml": FORMAT,
        "journal": header.journal,
        "run": header.run,
        "attempt": header.attempt,
        "writer": header.writer,
        "host": header.host,
        "pid": header.pid,
        "t0": header.t0,
    }
    yield _line(first)
    for seq, record in enumerate(records):
        begun = {"s": seq, "t": round(record.t_s, 6)}
        if isinstance(record, Metrics):
            values = {name: value if math.isfinite(value) else repr(value) for name, value in record.values.items()}
            yield _line({**begun, "k": "m", "i": record.step, "v": values})
        else:
            yield _line({**begun, "k": "e", "n": record.name, "d": record.details})


def not_in(known: Sequence[Chunk], records: Iterable[Metrics | Event], t0: float) -> list[Metrics | Event]:
    """Return of *records*, whose times count from *t0*, what no journal of *known* says already, to the millisecond."""
    points: set[tuple[str, int, int]] = set()
    events: set[tuple[str, int, str]] = set()
    for chunk in known:
        for record in chunk.records if chunk.header is not None else ():
            at_ms = _at_ms(chunk.header, record)
            if isinstance(record, Metrics):
                points.update((name, record.step, at_ms) for name in record.values)
            else:
                events.add(_event_key(record, at_ms))
    news: list[Metrics | Event] = []
    for record in records:
        at_ms = round((t0 + record.t_s) * _MS)
        if isinstance(record, Metrics):
            values = {name: value for name, value in record.values.items() if (name, record.step, at_ms) not in points}
            if values:
                news.append(replace(record, values=values))
        elif _event_key(record, at_ms) not in events:
            news.append(record)
    return news


def _at_ms(header: Header | None, record: Metrics | Event) -> int:
    assert header is not None
    return round((header.t0 + record.t_s) * _MS)


def _event_key(event: Event, at_ms: int) -> tuple[str, int, str]:
    return event.name, at_ms, json.dumps(event.details, sort_keys=True)


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"
