from __future__ import annotations

import math
import time
from datetime import datetime
from typing import Any

import pytest

from hpcml.errors import StoreError
from hpcml.store.where import Filter, meets, parse_condition, sorted_by

NOW = datetime.fromisoformat("2026-11-21T12:00:00+01:00")


def matches(text: str, stored: object) -> bool:
    condition = parse_condition(text)
    assert isinstance(condition, Filter)
    return meets(condition, now=NOW)(stored)


def test_a_broken_expression_is_refused_before_it_is_used() -> None:
    with pytest.raises(StoreError, match="no regular expression"):
        parse_condition("name~(")


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("k=3", 3),
        ("k=3.0", 3),
        ("k=1e-3", 0.001),
        ("k=completed", "COMPLETED"),
        ("k=3", "3"),
        ("k=true", True),
        ("k=none", None),
        ("k!=tf32", None),
        ("k!=3", 4),
        ("k<3", 2.5),
        ("k>=3", 3),
        ("k>2026-05", "2026-06-01T00:00:00"),
        ("k~cnn$", "digits_cnn"),
        ("k~0", 10),
        ("k=inf", math.inf),
        ("k=b", ["a", "b"]),
        ("k!=c", ["a", "b"]),
        ("k!=c", []),
        ("submitted_at>2026-11-01", "2026-11-01T00:00:01+01:00"),
        ("submitted_at>=2026-11-01", "2026-10-31T23:00:00+00:00"),
        ("submitted_at=2026-11-01", "2026-11-01T22:59:59+00:00"),
        ("submitted_at='2026-11-01 08:30'", "2026-11-01T07:30:59+00:00"),
        ("submitted_at=2026-11", "2026-11-30T22:00:00Z"),
        ("submitted_at=2026", "2026-11-30T22:00:00Z"),
        ("submitted_at<2026-11-01T08:30:00Z", "2026-11-01T08:29:59+00:00"),
        ("submitted_at=today", "2026-11-21T00:00:00+01:00"),
        ("submitted_at=yesterday", "2026-11-20T23:59:59+01:00"),
        ("submitted_at!=today", None),
        ("submitted_at=none", None),
        ("t_start<now", NOW.timestamp() - 1),
        ("t_start>2026-11-21", NOW.timestamp()),
        ("t_end>=1780000000", 1_780_000_000.0),
        ("age<7d", 6 * 86400.0),
        ("age>=1.5h", 5400.0),
        ("wall_s>2h30m", 9001.0),
        ("wall_s<01:00:00", 3599.0),
        ("wall_s>=1w", 604_800.0),
        ("state=Failed", "FAILED"),
    ],
)
def test_what_meets_a_condition(text: str, stored: Any) -> None:  # noqa: ANN401
    assert matches(text, stored)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("k=3", 4),
        ("k=three", 3),
        ("k=1", True),
        ("k!=none", None),
        ("k>0", None),
        ("k~.", None),
        ("k<3", math.nan),
        ("k!=b", ["a", "b"]),
        ("k=a", []),
        ("submitted_at=2026-11-01", "2026-11-01T23:00:00+00:00"),
        ("submitted_at<2026-11-01", "2026-11-01T00:00:00+01:00"),
        ("submitted_at>2026-11-01", None),
        ("submitted_at>2026-11-01", "some day"),
        ("submitted_at!=none", None),
        ("submitted_at=today", "2026-11-20T23:59:59+01:00"),
        ("age<7d", 7 * 86400.0),
        ("age<7d", None),
    ],
)
def test_what_does_not(text: str, stored: Any) -> None:  # noqa: ANN401
    assert not matches(text, stored)


def test_a_number_is_not_ordered_against_a_word() -> None:
    with pytest.raises(StoreError, match="val_accuracy is a number"):
        matches("val_accuracy>high", 0.5)


@pytest.mark.parametrize("word", ["soon", "2026-13", "2026-02-30", "2026-11-01 25:00", "7d", "9999"])
def test_what_is_no_time_is_refused_with_an_example(word: str) -> None:
    with pytest.raises(StoreError, match=f"filter 't_start>{word}': '{word}' is no time: "):
        matches(f"t_start>{word}", 1.0)


@pytest.mark.parametrize("text", ["age<soon", "wall_s>2x"])
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    with pytest.raises(StoreError, match="is a number"):
        matches(text, 1.0)


def test_an_hour_of_summer_is_an_hour_of_summer_in_winter_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Prague")
    time.tzset()
    winter = datetime(2026, 12, 1, 12)  # noqa: DTZ001 - this machine's zone
    condition = Filter(key="submitted_at", op="=", value="2026-07-01 12:00")

    is_met = meets(condition, now=winter)("2026-07-01T10:00:00+00:00")

    monkeypatch.undo()
    time.tzset()
    assert is_met


def test_an_unknown_state_is_refused_with_what_is_near() -> None:
    with pytest.raises(StoreError, match="'faild' is no state: choose FAILED"):
        parse_condition("state=faild")


def test_runs_without_a_value_come_last_in_either_direction() -> None:
    values = {1: 0.5, 2: None, 3: 0.1, 4: math.nan, 5: "text"}

    assert sorted_by(values, [1, 2, 3, 4, 5, 6], descending=False) == [3, 1, 5, 2, 4, 6]
    assert sorted_by(values, [1, 2, 3, 4, 5, 6], descending=True) == [5, 1, 3, 2, 4, 6]
