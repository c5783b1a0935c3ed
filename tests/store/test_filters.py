from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hpcml.errors import StoreError
from hpcml.precision import ALIASES, PrecisionName
from hpcml.store.filters import Filter, matches, parse_filter, sorted_by


@pytest.mark.parametrize(
    ("text", "key", "op", "value"),
    [
        ("precision=tf32", "precision", "=", "tf32"),
        ("val_accuracy > 0.9", "val_accuracy", ">", "0.9"),
        ("val_accuracy>=0.9", "val_accuracy", ">=", "0.9"),
        ("seed!=3", "seed", "!=", "3"),
        ("seed==3", "seed", "=", "3"),
        ("name~^base.*=1$", "name", "~", "^base.*=1$"),
        ("train/loss<1e-3", "train/loss", "<", "1e-3"),
        ("tag=a b", "tag", "=", "a b"),
        ("name=", "name", "=", ""),
    ],
)
def test_a_condition_is_read_as_it_is_written(text: str, key: str, op: str, value: str) -> None:
    assert parse_filter(text) == Filter(key=key, op=op, value=value)


@pytest.mark.parametrize("key", ["precision", "precision.name", "precision_effective"])
def test_a_precision_is_found_under_the_name_it_was_launched_with(key: str) -> None:
    assert matches(parse_filter(f"{key}=amp"), "amp_fp16")
    assert matches(parse_filter(f"{key}=AMP"), "amp_fp16")
    assert not matches(parse_filter(f"{key}!=amp"), "amp_fp16")
    assert not matches(parse_filter(f"{key}=amp"), "amp_bf16")
    assert matches(parse_filter(f"{key}~amp"), "amp_bf16")  # an expression is left as it is


def test_other_keys_know_no_such_names() -> None:
    assert matches(parse_filter("name=amp"), "amp")


def test_every_other_name_of_a_precision_is_known() -> None:
    configured = {path.stem for path in (Path(__file__).parents[2] / "conf" / "precision").glob("*.yaml")}

    assert configured - set(PrecisionName.__members__) == set(ALIASES)


@pytest.mark.parametrize("text", ["", "precision", "=tf32", "a b=3", ">3"])
def test_what_is_no_condition_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(StoreError, match="precision=tf32"):
        parse_filter(text)


def test_a_broken_expression_is_refused_before_it_is_used() -> None:
    with pytest.raises(StoreError, match="no regular expression"):
        parse_filter("name~(")


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
    ],
)
def test_what_meets_a_condition(text: str, stored: Any) -> None:  # noqa: ANN401
    assert matches(parse_filter(text), stored)


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
    ],
)
def test_what_does_not(text: str, stored: Any) -> None:  # noqa: ANN401
    assert not matches(parse_filter(text), stored)


def test_a_number_is_not_ordered_against_a_word() -> None:
    with pytest.raises(StoreError, match="val_accuracy is a number"):
        matches(parse_filter("val_accuracy>high"), 0.5)


def test_runs_without_a_value_come_last_in_either_direction() -> None:
    values = {1: 0.5, 2: None, 3: 0.1, 4: math.nan, 5: "text"}

    assert sorted_by(values, [1, 2, 3, 4, 5, 6], descending=False) == [3, 1, 5, 2, 4, 6]
    assert sorted_by(values, [1, 2, 3, 4, 5, 6], descending=True) == [5, 1, 3, 2, 4, 6]
