"""How often the statistics of a comparison are wrong, counted in simulations with fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from recorded_runs import ratio_of as ratio
from verdict_by_interval import verdict

from hpcml.analysis.compare.verdicts import adjust, find_claims, verdict_of
from hpcml.analysis.stats import Contrast, paired, welch

TRIALS = 2000
LIMIT = 0.05 + 3 * math.sqrt(0.05 * 0.95 / TRIALS)  # three Monte-Carlo standard errors above 5 %


def contrasts(seed: int, *, n: int, rho: float, difference: float, pairs: bool, spread: float = 1.0) -> list[Contrast]:
    """Return the contrasts of `TRIALS` pairs of arms whose true difference is known, between-seed sd 1 and *spread*."""
    noise = np.random.default_rng(seed)
    common = noise.normal(size=(TRIALS, n)) * math.sqrt(rho)
    reference = common + noise.normal(size=(TRIALS, n)) * math.sqrt(1 - rho)
    arm = difference + spread * (common + noise.normal(size=(TRIALS, n)) * math.sqrt(1 - rho))
    compared = paired if pairs else welch
    return [compared(a, r) for a, r in zip(arm.tolist(), reference.tolist(), strict=True)]


@pytest.mark.parametrize(("n", "pairs", "rho"), [(3, True, 0.6), (5, True, 0.0), (5, False, 0.0), (10, False, 0.0)])
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_arms_that_differ_by_the_margin_are_called_equivalent_in_five_percent_at_most(
    n: int,
    pairs: bool,  # noqa: FBT001
    rho: float,
    side: float,
) -> None:
    margin = 2.0
    found = contrasts(11, n=n, rho=rho, difference=side * margin, pairs=pairs)

    claims = sum(verdict(c.interval(0.90), margin, higher_is_better=True) == "equivalent" for c in found)

    assert claims / TRIALS <= LIMIT


@pytest.mark.parametrize("pairs", [True, False])
def test_an_arm_that_is_worse_by_the_margin_is_called_non_inferior_in_five_percent_at_most(pairs: bool) -> None:  # noqa: FBT001
    found = contrasts(12, n=5, rho=0.3, difference=-1.0, pairs=pairs, spread=1.5)

    words = [verdict(c.interval(0.90), 1.0, higher_is_better=True) for c in found]

    assert sum(word in ("equivalent", "better", "non-inferior") for word in words) / TRIALS <= LIMIT


@pytest.mark.parametrize(("n", "pairs"), [(3, True), (5, True), (5, False), (10, False)])
def test_intervals_of_a_ratio_of_times_cover_the_truth(n: int, pairs: bool) -> None:  # noqa: FBT001
    noise = np.random.default_rng(13)
    slow = 0.020 * np.exp(noise.normal(0, 0.03, size=(TRIALS, n)))
    fast = 0.010 * np.exp(noise.normal(0, 0.03, size=(TRIALS, n)))
    hits = 0
    for numerator, denominator in zip(slow.tolist(), fast.tolist(), strict=True):
        found = ratio(numerator, denominator, pairs=pairs)
        assert found is not None
        assert found[1] is not None
        hits += found[1].low <= 2.0 <= found[1].high

    assert 0.93 <= hits / TRIALS <= 0.97


def test_with_holm_a_table_of_eight_rows_makes_one_false_claim_or_more_in_five_percent_at_most() -> None:
    rows, margin = 8, 1.5
    tables = [contrasts(20 + row, n=5, rho=0.5, difference=margin, pairs=True) for row in range(rows)]
    false, unadjusted = 0, 0
    for table in zip(*tables, strict=True):
        claims = [find_claims(contrast, margin, higher_is_better=True) for contrast in table]
        known = [each for each in claims if each is not None]
        assert len(known) == rows
        false += any(verdict_of(each) == "equivalent" for each in adjust(known))
        unadjusted += any(verdict_of(each) == "equivalent" for each in known)

    assert false / TRIALS <= LIMIT
    assert unadjusted / TRIALS > 0.2  # 1 - 0.95^8 = 0.34: without Holm it would not do


def test_with_holm_the_rows_that_are_really_equivalent_are_still_found() -> None:
    margin = 5.0
    tables = [contrasts(40 + row, n=5, rho=0.9, difference=0.0, pairs=True) for row in range(4)]
    found = 0
    for table in zip(*tables, strict=True):
        claims = [find_claims(contrast, margin, higher_is_better=True) for contrast in table]
        found += sum(verdict_of(each) == "equivalent" for each in adjust([c for c in claims if c is not None]))

    assert found / (4 * TRIALS) > 0.95
