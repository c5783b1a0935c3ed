"""The columns that somebody asked for, of many runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcml.record_keys import value_of
from hpcml.records import RunRecord


def keys_in(columns: str | None) -> list[str]:
    """Return the keys in ``uid,state,val_accuracy``; none where nothing was asked for."""
    return [key.strip() for key in (columns or "").split(",") if key.strip()]


def rows_of(runs: Sequence[RunRecord], keys: Sequence[str], *, now: float) -> list[list[Any]]:
    """Return what each run has under each key; *now* is in unix seconds."""
    return [[value_of(run, key, now=now) for key in keys] for run in runs]
