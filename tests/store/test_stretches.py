"""Records that become columns: the same points as when each is looked at by itself, in whatever order they come."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hpcml.runs.journal import Event, Metrics
from hpcml.store.curves import Columns
from hpcml.store.parse import JournalRecords

NAMES = st.sampled_from(["loss", "step_time_s", "val_accuracy", "a\ud800", "b\x00"])
RECORDS = st.builds(
    Metrics,
    seq=st.integers(0, 9),
    t_s=st.sampled_from([0.0, 1.5, 2e9, math.nan]),
    step=st.integers(0, 6) | st.sampled_from([2**63, -(2**70)]),
    values=st.dictionaries(NAMES, st.floats()),
)
EVENTS = st.builds(Event, seq=st.integers(0, 9), t_s=st.just(1.0), name=st.just("noted"))


@given(st.lists(RECORDS | EVENTS, max_size=30))
def test_points_are_those_of_the_records_one_by_one(records: list[Metrics | Event]) -> None:
    found = JournalRecords(t0=100.0, epoch_ms=5)
    found.take(records[:10])
    found.take(records[10:])

    taken = [record for record in records if not math.isnan(record.t_s)]
    taken = [record for record in taken if isinstance(record, Event) or -(2**63) <= record.step < 2**63]
    points: dict[str, dict[int, tuple[int, float]]] = {}
    for record in taken:
        if isinstance(record, Metrics):
            for name, value in record.values.items():
                points.setdefault(name, {})[record.step] = (round(100_000.0 - 5 + record.t_s * 1000), value)
    plain = {name.replace("\ud800", "?").replace("\x00", "\ufffd"): of for name, of in points.items()}
    assert {name: tuple(map(repr, as_tuples(of))) for name, of in found.curves().items()} == {
        name: tuple(repr((step, *point)) for step, point in sorted(of.items())) for name, of in plain.items()
    }
    assert (found.records, found.bad_lines) == (len(taken), len(records) - len(taken))
    assert found.next_seq == (taken[-1].seq + 1 if taken else None)


def as_tuples(columns: Columns) -> list[tuple[int, int, float]]:
    return list(zip(columns.steps, columns.times_ms, columns.values, strict=True))
