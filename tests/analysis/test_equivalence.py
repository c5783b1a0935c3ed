from __future__ import annotations

import importlib
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import ratio_of as ratio
from statsmodels_said import said
from verdict_by_interval import verdict

from hpcml.analysis.compare.result import Interval
from hpcml.analysis.plan import pooled
from hpcml.analysis.stats import correlation, mean, paired, sd, welch

FP32 = [0.910, 0.913, 0.908, 0.912, 0.911]
AMP = [0.905, 0.909, 0.907, 0.911, 0.906]
values = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False).map(lambda x: round(x, 6))
margins = st.floats(min_value=1e-6, max_value=1e6)


def statsmodels_p(name: str, arm: list[float], reference: list[float], margin: float) -> float:
    def ask() -> list[float]:
        test = getattr(importlib.import_module("statsmodels.stats.weightstats"), name)
        options = {"usevar": "unequal"} if name == "ttost_ind" else {}
        return [test(np.asarray(arm), np.asarray(reference), -margin, margin, **options)[0]]

    (p,) = said(f"{name} of {arm} and {reference} within {margin}", ask)
    return p


@pytest.mark.parametrize("margin", [0.002, 0.005, 0.01])
def test_p_values_agree_with_statsmodels(margin: float) -> None:
    assert welch(AMP, FP32).p_tost(margin) == pytest.approx(statsmodels_p("ttost_ind", AMP, FP32, margin))
    assert paired(AMP, FP32).p_tost(margin) == pytest.approx(statsmodels_p("ttost_paired", AMP, FP32, margin))
    assert welch(AMP[:3], FP32).p_tost(margin) == pytest.approx(statsmodels_p("ttost_ind", AMP[:3], FP32, margin))


def test_intervals_are_students() -> None:
    interval = mean([1.0, 2.0, 3.0]).interval(0.95)

    assert interval is not None
    assert interval.high - 2.0 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)  # t(0.975, 2)


@settings(deadline=None)
@given(st.lists(values, min_size=2, max_size=8), st.lists(values, min_size=2, max_size=8), margins)
def test_the_90_percent_interval_and_the_two_one_sided_tests_say_the_same(
    arm: list[float], reference: list[float], margin: float
) -> None:
    contrast = welch(arm, reference)
    interval, p = contrast.interval(0.90), contrast.p_tost(margin)

    assert interval is not None
    assert p is not None
    if abs(p - 0.05) > 1e-3:
        assert (p < 0.05) == (verdict(interval, margin, higher_is_better=True) == "equivalent")


@settings(deadline=None)
@given(st.lists(st.tuples(values, values), min_size=2, max_size=8))
def test_swapping_the_arms_mirrors_the_difference(pairs: list[tuple[float, float]]) -> None:
    arm, reference = [a for a, _ in pairs], [r for _, r in pairs]
    for contrast in (paired, welch):
        there, back = contrast(arm, reference).interval(0.9), contrast(reference, arm).interval(0.9)

        assert there is not None
        assert back is not None
        assert there.low == pytest.approx(-back.high, abs=1e-9)
        assert there.high == pytest.approx(-back.low, abs=1e-9)


@settings(deadline=None)
@given(values, values, margins, st.booleans())
def test_equivalent_is_never_said_of_an_interval_that_leaves_the_margin(
    one: float,
    other: float,
    margin: float,
    higher_is_better: bool,  # noqa: FBT001
) -> None:
    interval = Interval(low=min(one, other), high=max(one, other), confidence=0.9)

    word = verdict(interval, margin, higher_is_better=higher_is_better)

    inside = -margin < interval.low and interval.high < margin
    assert (word == "equivalent") == inside
    worst = interval.low if higher_is_better else -interval.high
    if word in ("better", "non-inferior"):
        assert worst > -margin


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (-0.009, 0.009, "equivalent"),
        (0.001, 0.009, "equivalent"),
        (-0.010, 0.009, "inconclusive"),  # the margin itself is outside
        (0.001, 0.020, "better"),
        (-0.005, 0.020, "non-inferior"),
        (-0.020, -0.001, "worse"),
        (-0.020, 0.020, "inconclusive"),
    ],
)
def test_the_interval_decides_the_verdict(low: float, high: float, word: str) -> None:
    assert verdict(Interval(low=low, high=high, confidence=0.9), 0.01, higher_is_better=True) == word
    assert verdict(Interval(low=-high, high=-low, confidence=0.9), 0.01, higher_is_better=False) == word


def test_without_a_margin_or_without_an_interval_there_is_no_claim() -> None:
    assert verdict(Interval(low=1.0, high=2.0, confidence=0.9), None, higher_is_better=True) == "no margin"
    assert verdict(None, 0.01, higher_is_better=True) == "inconclusive"


def test_one_run_an_arm_has_a_difference_and_no_interval() -> None:
    contrast = welch([0.91], [0.90, 0.92])

    assert contrast.value == pytest.approx(0.0)
    assert contrast.interval(0.9) is None
    assert contrast.p_tost(0.01) is None
    assert sd([0.91]) is None


def test_arms_without_any_spread_have_an_interval_without_width() -> None:
    contrast = paired([0.3, 0.2, 0.5], [0.2, 0.1, 0.4])  # 0.1 each, but for the last bits

    interval = contrast.interval(0.9)

    assert interval is not None
    assert interval.low == interval.high == pytest.approx(0.1)
    assert contrast.p_tost(0.2) == 0.0
    assert contrast.p_tost(0.05) == 1.0
    assert welch([1.0, 1.0], [1.0, 1.0, 1.0]).p_tost(0.1) == 0.0


def test_huge_and_tiny_values_neither_overflow_nor_vanish() -> None:
    huge, tiny = [1e300, 2e300, 3e300], [1e-300, 2e-300, 3e-300]

    assert sd(huge) == pytest.approx(1e300)
    assert sd(tiny) == pytest.approx(1e-300)
    assert welch(tiny, [1e-300, 1e-300, 2e-300]).standard_error > 0
    assert correlation(huge, tiny) == pytest.approx(1.0)


def test_the_largest_number_that_a_c_program_prints_as_the_best_so_far_has_a_mean() -> None:
    largest = 1.79769e308

    assert mean([largest] * 5).value == largest
    assert welch([largest, 0.1, largest], [largest, largest, 0.3]).value == pytest.approx(0.0)
    spread = pooled([[1e200, 2e200]])
    assert spread is not None
    assert spread.sd == pytest.approx(1e200 / math.sqrt(2))


@pytest.mark.parametrize("offset", [1e9, -1e9, 1e6, 0.0])
def test_a_small_spread_on_a_large_number_is_a_spread(offset: float) -> None:
    small, smaller = [1.0, 2, 4, 7, 11], [2.0, 2, 3, 8, 12]
    few, others = ([offset + value * 2.0**-10 for value in of] for of in (small, smaller))  # no bit is rounded

    assert sd(few) == pytest.approx(np.std(small, ddof=1) / 1024, rel=1e-12)
    for test in (paired, welch):
        assert test(few, others).standard_error == pytest.approx(test(small, smaller).standard_error / 1024, rel=1e-12)


def test_the_correlation_needs_three_pairs_and_spread_in_both() -> None:
    assert correlation([1.0, 2.0], [2.0, 1.0]) is None
    assert correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None
    assert correlation([1.0, 2.0, 3.0], [6.0, 4.0, 2.0]) == pytest.approx(-1.0)


def test_a_ratio_is_that_of_geometric_means() -> None:
    found = ratio([2.0, 8.0], [1.0, 1.0], pairs=False)

    assert found is not None
    assert found[0] == pytest.approx(4.0)
    assert found[1] is not None
    assert found[1].low * found[1].high == pytest.approx(16.0)  # symmetric in the logarithm


def test_a_ratio_of_single_runs_has_no_interval_and_of_zeros_does_not_exist() -> None:
    assert ratio([2.0], [1.0], pairs=False) == (pytest.approx(2.0), None)
    assert ratio([0.0, 1.0], [1.0, 1.0], pairs=True) is None
    assert ratio([], [1.0], pairs=False) is None


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("pairs", [True, False])
def test_the_interval_of_a_speed_ratio_covers_the_truth_as_often_as_it_says(n: int, pairs: bool) -> None:  # noqa: FBT001
    noise, hits, trials = random.Random(7), 0, 1500  # noqa: S311
    for _ in range(trials):
        slow = [0.020 * math.exp(noise.gauss(0, 0.03)) for _ in range(n)]
        fast = [0.010 * math.exp(noise.gauss(0, 0.05)) for _ in range(n)]
        found = ratio(slow, fast, pairs=pairs)
        assert found is not None
        assert found[1] is not None
        hits += found[1].low <= 2.0 <= found[1].high

    assert 0.935 <= hits / trials <= 0.985  # nominal 95 %; Welch with 3 an arm is a little cautious


def test_two_arms_at_the_margin_are_called_equivalent_in_at_most_six_percent() -> None:
    noise, claims, trials = random.Random(11), 0, 1500  # noqa: S311
    for _ in range(trials):
        arm = [noise.gauss(1.0, 1.0) for _ in range(10)]
        reference = [noise.gauss(0.0, 1.0) for _ in range(10)]
        interval = welch(arm, reference).interval(0.90)
        claims += verdict(interval, 1.0, higher_is_better=True) == "equivalent"

    assert claims / trials <= 0.06
