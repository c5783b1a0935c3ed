from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from hpcml.config.from_python import setting_word, sweep_word
from hpcml.errors import ConfigError
from hpcml.model.precision import PrecisionName

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8"))
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
VALUES = st.recursive(
    SCALARS, lambda some: st.lists(some, max_size=3) | st.dictionaries(KEYS, some, max_size=3), max_leaves=6
)


def read_by_hydra(word: str) -> Any:  # noqa: ANN401
    (override,) = OverridesParser.create().parse_overrides([word])
    assert not override.is_sweep_override(), word
    return override.value()


@given(VALUES)
def test_hydra_reads_the_value_that_was_written(value: object) -> None:
    read = read_by_hydra(setting_word("key", value))

    assert read == value or repr(read) == repr(value)


@given(st.lists(SCALARS, min_size=2, max_size=4))
def test_hydra_sweeps_over_the_values_that_were_written(values: list[object]) -> None:
    (override,) = OverridesParser.create().parse_overrides([sweep_word("key", values)[0]])

    assert override.is_sweep_override()
    assert [getattr(one, "text", one) for one in override.value().list] == values


def test_kinds_of_values_that_notebooks_have() -> None:
    assert setting_word("+cluster", "karolina") == "+cluster=karolina"
    assert setting_word("precision", PrecisionName.tf32) == "precision=tf32"
    assert setting_word("data.path", Path("/data/a b")) == 'data.path="/data/a b"'
    assert setting_word("training.learning_rate", np.float64(0.1)) == "training.learning_rate=0.1"
    assert setting_word("tags", ("a", "1")) == 'tags=[a,"1"]'
    assert setting_word("x", np.array([1, 2])) == "x=[1,2]"
    assert setting_word("name", "\u00e9t\u00e9") == 'name="\u00e9t\u00e9"'  # Hydra's words are in ASCII
    assert sweep_word("seed", range(3)) == ("seed=0,1,2", True)
    assert sweep_word("seed", np.arange(1)) == ("seed=0", False)
    assert math.isnan(read_by_hydra(setting_word("x", math.nan)))


@pytest.mark.parametrize(
    ("written", "named"),
    [
        (lambda: setting_word("model options", 1), "'model options'"),
        (lambda: setting_word("a=b", 1), "'a=b'"),
        (lambda: setting_word("x", object()), "x="),
        (lambda: setting_word("x", b"raw"), "x="),
        (lambda: setting_word("x", {"a b": 1}), "'a b'"),
        (lambda: setting_word("x", {1: 1}), "1"),
        (lambda: sweep_word("seed", "0,1"), "sweep['seed']='0,1'"),
        (lambda: sweep_word("seed", []), "sweep['seed']"),
        (lambda: sweep_word("seed", 3), "sweep['seed']=3"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_written_is_named(written: Any, named: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError) as refused:
        written()

    assert named in str(refused.value)
