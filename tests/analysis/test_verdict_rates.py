"""How often a verdict of `compare` is wrong in simulated studies; 10000 of each in the full suite."""

from __future__ import annotations

import math

import pytest

from benchmarks.error_rates import (
    GOOD,
    diverging,
    false_of_skew,
    on_a_grid,
    partly_shared,
    plain,
    shares,
    target_rates,
)
from tests import effort

STUDIES = effort.times(120, 10_000)
LIMIT = 5.5 + 300 * math.sqrt(0.05 * 0.95 / STUDIES)  # per cent: three Monte-Carlo standard errors


@pytest.mark.parametrize(("difference", "claim"), [(-2.0, "equivalent"), (-2.0, "worse by more than the margin")])
def test_an_arm_at_the_margin_gets_neither_claim_too_often(difference: float, claim: str) -> None:
    assert shares(plain(4, 0.5, difference), STUDIES, {"objective.margin": 2.0})[claim] <= LIMIT


def test_of_arms_that_do_not_differ_one_in_ten_is_called_better_or_worse() -> None:
    found = shares(plain(5, 0.5, 0.0), STUDIES, {"objective.margin": 1e-9})

    assert sum(found[word] for word in ("better", "worse", "worse by more than the margin")) <= 2 * LIMIT


@pytest.mark.parametrize(("n", "most"), [(5, 12.0), (10, 3.0)])
def test_an_arm_that_often_diverges_is_seldom_called_good_for_its_survivors(n: int, most: float) -> None:
    found = shares(diverging(n, (0.4, 0.0)), STUDIES, {"objective.margin": 1.0})

    assert sum(found[word] for word in GOOD) <= most + 300 * math.sqrt(most / 100 / STUDIES)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_coarse_metric_is_not_taken_for_a_certain_one(n: int) -> None:
    settings = {"objective.margin": 7 / 355}

    assert shares(on_a_grid(n, 0.003, 0.95), STUDIES, settings)["equivalent"] <= LIMIT


@pytest.mark.parametrize(
    ("shared", "arm", "reference", "rho"), [(4, 0, 1, -0.5), (4, 0, 1, 0.9), (5, 7, 7, 0.0), (5, 7, 7, 0.9)]
)
def test_missing_seeds_do_not_make_a_verdict_bold(shared: int, arm: int, reference: int, rho: float) -> None:
    found = shares(partly_shared(shared, arm, reference, rho, -1.0), STUDIES, {"objective.margin": 1.0})

    assert found["equivalent"] <= LIMIT


def test_one_missing_seed_of_five_does_not_cost_what_pairs_have_won() -> None:
    found = shares(partly_shared(4, 0, 1, 0.9, 0.0), STUDIES, {"objective.margin": 1.0})

    assert found["equivalent"] > 80


def test_on_the_log_scale_skewed_errors_are_judged_as_often_wrongly_as_others() -> None:
    assert false_of_skew(5, (0.8, 0.2), "log", STUDIES) <= LIMIT


def test_times_that_do_not_differ_are_seldom_told_apart_and_others_often() -> None:
    log_rank, means = target_rates(6, 1.0, STUDIES)

    assert log_rank <= LIMIT + 2.0  # its chi-square is of many runs
    assert means <= LIMIT
    assert target_rates(10, 0.7, 60)[0] > 50
