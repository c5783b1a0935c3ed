"""What is exported: runs whole, one after the other, so that ten thousand need no more memory than one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcml.codec import Json
from hpcml.records import Point, RunRecord, StoredEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """One run with its curves and events."""

    record: RunRecord
    t_zero: float  # unix seconds: where the times of its points and events count from
    curves: Mapping[str, Sequence[Point]]
    events: Sequence[StoredEvent]

    def unix_ms(self, t_s: float) -> int:
        """Return the moment *t_s* of this run in unix milliseconds."""
        return round((self.t_zero + t_s) * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The runs of one export. `runs` can be gone through once, in the order of `records`."""

    records: Sequence[RunRecord]
    t_zero: Mapping[str, float]  # by uid, unix seconds
    runs: Iterable[WholeRun]


def last_value(record: RunRecord, metric: str) -> float | None:
    """Return the last value of *metric*, nan where it is known not to be finite."""
    summary = record.metrics[metric]
    return math.nan if summary.last is None and summary.n_nonfinite else summary.last


def clean(text: str) -> str:
    """Return *text* without the half characters that JSON can name and UTF-8 cannot write."""
    return text.encode("utf-8", "replace").decode("utf-8")


def json_ready(value: Json) -> Json:
    """Return *value* with what JSON has no number for as text: "nan", "inf", "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return value
