from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcml.analysis.compare.result import Interval
from hpcml.report.render.data import json_ready
from hpcml.report.render.markdown import safe_markdown
from hpcml.report.text import decimals_for, duration, number, p_value, ratio, safe, to_decimals


@settings(deadline=None)
@given(st.text())
def test_no_text_can_move_the_cursor_or_break_the_line(text: str) -> None:
    assert not [c for c in safe(text) if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def test_control_characters_are_spelt_out_and_the_rest_is_left_alone() -> None:
    assert safe("a\x1b[31m\nb\u202ec") == "a\\x1b[31m\\nb\\u202ec"
    assert safe("Größe ±1 [x] 模型") == "Größe ±1 [x] 模型"


def test_text_stays_in_its_markdown_cell_and_is_no_markup() -> None:
    assert safe_markdown("a|b") == "a\\|b"
    assert safe_markdown("<script>&") == "&lt;script>&amp;"
    assert safe_markdown("[x](http://y) *b* _i_ `c`") == "[x\\](http://y) \\*b\\* \\_i\\_ \\`c\\`"
    assert safe_markdown("val_accuracy [90 %]") == "val_accuracy [90 %]"
    assert safe_markdown("$x$") == "\\$x\\$"  # a formula on GitHub


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.0, "0.000"),
        (0.91234, "0.9123"),
        (12.3456, "12.35"),
        (3205.25, "3205"),
        (-0.5, "-0.5000"),
        (1e-7, "1.00e-07"),
        (2.5e9, "2.50e+09"),
        (math.nan, "nan"),
    ],
)
def test_numbers_have_four_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.04, "0.0s"),
        (9.94, "9.9s"),
        (59.4, "59s"),
        (59.9, "1m00s"),
        (3725, "1h02m"),
        (90000, "1d01h"),
        (-1.0, "0.0s"),
    ],
)
def test_durations_have_two_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_zero_among_tiny_numbers_is_no_row_of_zeros() -> None:
    assert to_decimals(0.0, 302, signed=True) == "+0"
    assert to_decimals(1.5e-300, 302, signed=True) == "+1.50e-300"
    assert to_decimals(0.0, 4) == "0.0000"
    assert to_decimals(math.inf, 302) == "inf"


def test_decimals_follow_the_spread() -> None:
    assert decimals_for(0.0019, 0.91) == 4
    assert decimals_for(12.0, 300.0) == 0
    assert decimals_for(None, 0.91) == 4
    assert decimals_for(None, None) == 3
    assert decimals_for(1e-12, 0.91) == 6
    assert decimals_for(math.inf, 0.91) == 4


def test_small_p_values_are_not_zero() -> None:
    assert (p_value(0.0), p_value(0.0321), p_value(None)) == ("< 0.001", "0.032", "")


def test_json_gets_text_where_it_has_no_number() -> None:
    assert json_ready({"a": [math.nan, math.inf, -math.inf, 1.5, None]}) == {"a": ["nan", "inf", "-inf", 1.5, None]}


def test_a_ratio_has_the_digits_that_tell_whether_one_lies_inside() -> None:
    def told(value: float, low: float, high: float) -> str:
        return ratio(value, Interval(low=low, high=high, confidence=0.95))

    assert told(1.0081, 1.0042, 1.0112) == "1.008 [1.004, 1.011]"
    assert told(1.83, 1.822, 1.848) == "1.83 [1.82, 1.85]"
    assert told(0.5114, 0.51139, 0.51141) == "0.51140 [0.51139, 0.51141]"
    assert told(2.0, 2.0, 2.0) == "2.00 [2.00, 2.00]"
    assert ratio(0.87, None) == "0.87"
