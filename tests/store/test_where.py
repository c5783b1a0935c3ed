from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcml.errors import StoreError
from hpcml.model.precision import ALIASES, PrecisionName
from hpcml.store.where import Condition, Either, Every, Filter, Negated, meeting, parse_condition

NOW = datetime.fromisoformat("2026-11-21T12:00:00+00:00")
RUNS: dict[str, dict[int, Any]] = {
    "seed": {1: 1, 2: 2, 3: 3, 4: 4},
    "precision": {1: "fp32", 2: "tf32", 3: "tf32", 4: "amp_fp16"},
    "val accuracy": {1: 0.91, 2: 0.95},
    "name": {1: "salt and pepper", 2: "a(b", 3: "it's", 4: ""},
    "tag": {1: ["paper"], 2: ["paper", "final"], 3: [], 4: []},
}


def found(text: str) -> str:
    return "".join(map(str, sorted(meeting(parse_condition(text), [1, 2, 3, 4], RUNS.__getitem__, now=NOW))))


@pytest.mark.parametrize(
    ("text", "key", "op", "value"),
    [
        ("precision=tf32", "precision", "=", "tf32"),
        ("val_accuracy > 0.9", "val_accuracy", ">", "0.9"),
        ("val_accuracy>=0.9", "val_accuracy", ">=", "0.9"),
        ("seed!=3", "seed", "!=", "3"),
        ("seed==3", "seed", "=", "3"),
        ("name~^base.*=1$", "name", "~", "^base.*=1$"),
        ("name~^(a|b)+$", "name", "~", "^(a|b)+$"),
        ("(name~^(a|b)+$)", "name", "~", "^(a|b)+$"),
        ("train/loss<1e-3", "train/loss", "<", "1e-3"),
        ("loss(train)<3", "loss(train)", "<", "3"),
        ("tag=a b", "tag", "=", "a b"),
        (" tag = 'a and b' ", "tag", "=", "a and b"),
        (r'name="a\"b\d"', "name", "=", r'a"b\d'),
        ("'a key'=3", "a key", "=", "3"),
        ("orders=android", "orders", "=", "android"),
        ("note=Ä\n", "note", "=", "Ä"),
    ],
)
def test_a_comparison_is_read_as_it_is_written(text: str, key: str, op: str, value: str) -> None:
    assert parse_condition(text) == Filter(key=key, op=op, value=value)


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("precision=tf32 and seed>2", "3"),
        ("precision=tf32 AND seed>2", "3"),
        ("precision=fp32 or seed>3", "14"),
        ("seed=1 or seed=2 and precision=fp32", "1"),  # and binds closer
        ("(seed=1 or seed=2) and precision=tf32", "2"),
        ("not seed=1", "234"),
        ("not(seed=1 or seed=2)", "34"),
        ("not not seed=1", "1"),
        ("not 'val accuracy'>0.92", "134"),  # those without such a value too
        ("seed in (1, 3,4)", "134"),
        ("seed not in(1, 3)", "24"),
        ("precision in (amp, fp32)", "14"),
        ("name in ('salt and pepper', \"it's\", none)", "134"),
        ("name='salt and pepper' and tag=paper", "1"),
        ("name='a(b'", "2"),
        ('"val accuracy">0.92 or tag=paper', "12"),
        ("tag=paper and not tag=final", "1"),
        ("tag!=paper", "34"),
        ("name=none and seed=4", "4"),
        ("name!=none", "123"),
        ("name not in (none)", "123"),
        ("precision~^(tf|fp)32$ and seed<3", "12"),
    ],
)
def test_conditions_are_joined(text: str, runs: str) -> None:
    assert found(text) == runs


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected what the condition is about at its end"),
        ("precision", "after 'precision' expected one of = != < <= > >= ~ in at its end"),
        ("=tf32", "expected what the condition is about at character 1, '=tf32'"),
        ("a b=3", "after 'a' expected one of = != < <= > >= ~ in at character 3, 'b=3'"),
        (">3", "expected what the condition is about at character 1, '>3'"),
        ("a=1 and", "expected what the condition is about at its end"),
        ("a=1 and and b=2", "expected what the condition is about at character 9, 'and b=2'"),
        ("a=1 or (b=2", "expected ')' at its end"),
        ("a=1) or b=2", "expected 'and', 'or' or the end at character 4, ') or b=2'"),
        ("a=1 b=2", "expected 'and' or 'or', or the value in quotes, at character 5, 'b=2'"),
        ("'a' b", "expected one of"),
        ("a='x", "no ' closes what begins at character 3, \"'x\""),
        ("a='x' y", "expected 'and', 'or' or the end at character 7, 'y'"),
        ("a in (1", "expected ',' or ')' at its end"),
        ("a in 1", "after 'a' expected one of"),
        ("(" * 60 + "a=1", "more than 50 brackets in each other at character 51"),
        ("not " * 60 + "a=1", "more than 50 brackets"),
    ],
)
def test_what_is_no_condition_is_refused_at_its_place_in_one_line_with_an_example(text: str, says: str) -> None:
    with pytest.raises(StoreError) as refusal:
        parse_condition(text)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "precision=tf32" in str(refusal.value)


@pytest.mark.parametrize("op", ["=", "==", "!=", "~", "<", ">="])
@pytest.mark.parametrize("value", ["", " ", "''", '""', " and seed=4"])
def test_a_value_that_is_not_there_as_of_an_unset_variable_is_refused(op: str, value: str) -> None:
    with pytest.raises(StoreError, match=r"^filter 'name\S{1,2}' has no value: name=none is what has none$"):
        parse_condition(f"name{op}{value}")


@pytest.mark.parametrize("values", ["", "''", "a, ", "a, ''", ", a"])
def test_nor_may_one_of_a_list_be_empty(values: str) -> None:
    with pytest.raises(StoreError, match="has no value: name=none is what has none"):
        parse_condition(f"name in ({values})")


def test_a_precision_is_found_under_the_name_it_was_launched_with() -> None:
    assert found("precision=amp") == "4"
    assert found("precision=AMP") == "4"
    assert found("precision!=amp") == "123"
    assert found("precision~amp") == "4"  # an expression is left as it is
    assert found("name=amp") == ""  # other keys know no such names


def test_every_other_name_of_a_precision_is_known() -> None:
    configured = {path.stem for path in (Path(__file__).parents[2] / "conf" / "precision").glob("*.yaml")}

    assert configured - set(PrecisionName.__members__) == set(ALIASES)


def written(condition: Condition) -> str:
    match condition:
        case Filter():
            value = condition.value.replace("'", "\\'")
            return f"\"{condition.key}\" {condition.op} '{value}'"
        case Negated():
            return f"not ({written(condition.of)})"
        case Every() | Either():
            word = " and " if isinstance(condition, Every) else " or "
            return word.join(f"({written(part)})" for part in condition.of)


def leaves() -> st.SearchStrategy[Condition]:
    texts = st.text(st.characters(exclude_characters="\\", exclude_categories=("Cs",)), max_size=8)
    keys = texts.filter(lambda text: text and '"' not in text and text != "state")
    return st.builds(Filter, key=keys, op=st.sampled_from(["=", "!=", "<", ">="]), value=texts.filter(bool))


def trees(of: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    several = st.lists(of, min_size=2, max_size=3).map(tuple)
    return st.builds(Negated, of=of) | st.builds(Every, of=several) | st.builds(Either, of=several)


@settings(deadline=None)
@given(st.recursive(leaves(), trees, max_leaves=12))
def test_what_is_written_with_quotes_and_brackets_is_read_back_as_it_was(condition: Condition) -> None:
    assert parse_condition(written(condition)) == condition


@settings(deadline=None)
@given(st.text(alphabet="ab=<>~!()'\"\\, andornti1\n", max_size=40))
def test_no_text_does_anything_but_mean_something_or_be_refused(text: str) -> None:
    try:
        condition = parse_condition(text)
    except StoreError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - it may come or not
        return
    assert list(parts(condition))


def parts(condition: Condition) -> Iterator[Filter]:
    match condition:
        case Filter():
            yield condition
        case Negated():
            yield from parts(condition.of)
        case Every() | Either():
            for part in condition.of:
                yield from parts(part)
