from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
from scipy import stats
from statsmodels_said import said
from verdict_by_interval import verdict as said_by_interval

from hpcml.analysis import stats as statistics
from hpcml.analysis.plan import MOST_SEEDS, pooled, power, seeds_needed
from hpcml.analysis.planning import WantedVerdict

# Simulated in a study made before this code: docs/statistics.md.
WELCH = {
    1: (2, 7, 23, 39, 70, 86, 98),
    1.5: (11, 40, 76, 88, 98, 100, 100),
    2: (30, 77, 97, 99, 100, 100, 100),
    3: (75, 99, 100, 100, 100, 100, 100),
}
NON_INFERIOR = (22, 41, 59, 69, 84, 93, 99)  # margin 1
SEEDS = (3, 5, 8, 10, 15, 20, 30)


@pytest.mark.parametrize("margin", WELCH)
def test_the_power_without_pairs_is_that_of_the_simulated_table(margin: float) -> None:
    found = [100 * power(n, margin, verdict="equivalent", paired=False) for n in SEEDS]

    assert found == pytest.approx(WELCH[margin], abs=1.6)


def test_the_power_to_show_non_inferiority_is_that_of_the_simulated_table() -> None:
    found = [100 * power(n, 1, verdict="non-inferior", paired=False) for n in SEEDS]

    assert found == pytest.approx(NON_INFERIOR, abs=1.6)


@pytest.mark.parametrize(("rho", "known"), [(0.6, 0.41), (0.9, 0.98)])
def test_pairs_gain_what_they_gained_in_the_simulation(rho: float, known: float) -> None:
    sd_of_differences = math.sqrt(2 * (1 - rho))

    assert power(5, 1 / sd_of_differences, verdict="equivalent", paired=True) == pytest.approx(known, abs=0.02)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("verdict", ["equivalent", "non-inferior"])
@pytest.mark.parametrize(("n", "margin"), [(2, 3.0), (4, 1.5), (7, 1.2)])
def test_the_power_is_how_often_the_comparison_itself_says_so(
    n: int, margin: float, verdict: WantedVerdict, *, paired: bool
) -> None:
    draws = np.random.default_rng(n).normal(size=(2500, 2, n))
    said = []
    for ones, others in draws:
        contrast = statistics.paired(ones, others) if paired else statistics.welch(ones, others)
        said.append(said_by_interval(contrast.interval(0.90), margin, higher_is_better=True))
    # "better" is non-inferior too, and may be equivalent: it is said where the whole interval lies above 0
    enough = {"equivalent"} if verdict == "equivalent" else {"equivalent", "non-inferior", "better"}

    of_pairs = margin / math.sqrt(2) if paired else margin
    expected = power(n, of_pairs, verdict=verdict, paired=paired)

    assert np.mean([word in enough for word in said]) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("n", [2, 5, 30])
def test_one_sided_power_of_pairs_is_the_noncentral_t_of_statsmodels(n: int) -> None:
    def ask() -> list[float]:
        known = importlib.import_module("statsmodels.stats.power").TTestPower()
        return [known.power(effect_size=0.7, nobs=n, alpha=0.05, alternative="larger")]

    (known,) = said(f"power of {n} pairs", ask)
    assert power(n, 0.7, verdict="non-inferior", paired=True) == pytest.approx(known, abs=0.01)


@pytest.mark.parametrize("n", [2, 3, 6, 20])
def test_pairs_have_the_power_of_owens_q_integrated_by_brute_force(n: int) -> None:
    df, margin = n - 1, 1.3
    seen = np.linspace(1e-6, 8, 400_001)
    density = stats.chi.pdf(seen * math.sqrt(df), df) * math.sqrt(df)
    inside = (margin - stats.t.ppf(0.95, df) * seen / math.sqrt(n)) * math.sqrt(n)
    whole = float(np.trapezoid(np.maximum(0, 2 * stats.norm.cdf(inside) - 1) * density, seen))

    assert power(n, margin, verdict="equivalent", paired=True) == pytest.approx(whole, abs=0.01)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("margin", [0.4, 1.0, 2.5])
def test_the_seeds_needed_suffice_and_one_less_does_not(margin: float, *, paired: bool) -> None:
    n = seeds_needed(margin, 0.8, verdict="equivalent", paired=paired)

    assert n is not None
    assert power(n, margin, verdict="equivalent", paired=paired) >= 0.8
    assert n == 3 or power(n - 1, margin, verdict="equivalent", paired=paired) < 0.8


def test_more_seeds_than_anybody_runs_are_none() -> None:
    assert seeds_needed(0.01, 0.8, verdict="equivalent", paired=False) is None
    assert power(MOST_SEEDS, 0.01, verdict="equivalent", paired=False) < 0.8


def test_several_comparisons_need_more_seeds() -> None:
    one, five = (seeds_needed(1, 0.8, verdict="equivalent", paired=False, comparisons=count) for count in (1, 5))

    assert one is not None
    assert five is not None
    assert five > one


def test_a_spread_is_pooled_over_arms_with_the_bounds_of_chi_square() -> None:
    spread = pooled([[1.0, 2.0, 3.0], [11.0, 12.0], [7.0]])

    assert spread is not None
    assert spread.df == 3
    assert spread.sd == pytest.approx(math.sqrt(2.5 / 3))
    assert spread.high == pytest.approx(spread.sd * math.sqrt(3 / stats.chi2.ppf(0.2, 3)))
    assert spread.low == pytest.approx(spread.sd * math.sqrt(3 / stats.chi2.ppf(0.8, 3)))


def test_single_values_have_no_spread_and_equal_ones_none_either() -> None:
    assert pooled([[1.0], [2.0]]) is None
    equal = pooled([[0.3, 0.1 + 0.2]])
    assert equal is not None
    assert (equal.sd, equal.low, equal.high) == (0.0, 0.0, 0.0)
