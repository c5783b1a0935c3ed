"""How often planned looks make a false claim, whatever the stopping rule; 10000 of each study in the full suite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.error_rates import METRIC, plan_of, record, shares_of_looks, sharing
from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.looks import glances_of
from hpcml.model.comparison import ComparisonRequest, Row
from hpcml.model.looks import Glance
from hpcml.model.state import State
from tests import effort

STUDIES = effort.times(60, 10_000)
LIMIT = 5.5 + 300 * math.sqrt(0.05 * 0.95 / STUDIES)  # per cent: three Monte-Carlo standard errors
MARGIN = {"objective.margin": 1.0}
ARMS = ("fp32", "tf32", "amp_bf16")


@pytest.mark.parametrize(
    ("seeds", "gains", "rho", "lost"),
    [
        (16, (-1.0,), 0.5, 0.0),
        (8, (1.0,), 0.9, 0.0),
        (6, (0.0,), 0.0, 0.05),
        (12, (0.0, -1.0, -1.0), 0.5, 0.0),
    ],
)
def test_no_kind_of_claim_is_falsely_made_too_often_at_any_look(
    seeds: int, gains: tuple[float, ...], rho: float, lost: float
) -> None:
    found = shares_of_looks(
        sharing(seeds, gains, rho, lost=lost), plan_of(seeds, len(gains), 1.0), STUDIES, MARGIN, gains
    )

    assert max(found.values()) <= LIMIT, found


def test_what_is_equal_is_found_though_looks_are_many() -> None:
    draw = sharing(12, (0.0,), 0.95)
    claims = shares_of_looks(draw, plan_of(12, 1, 1.0), STUDIES, MARGIN, (1.0,))  # "false", if it were at the margin

    assert claims["equivalent"] > 80


def look(n: int, known: list[Glance], *, unfinished: int = 0, levels: Sequence[str] = ("fp32", "tf32")) -> Row:
    """Compare the first *n* seeds of *levels*, of which the last are *unfinished*, remember that; give the last row."""
    values = {level: np.random.default_rng(order).normal(size=40) for order, level in enumerate(ARMS)}
    runs = [record(level, s, float(values[level][s]), MARGIN) for level in levels for s in range(n)]
    runs = [replace(run, state=State.RUNNING) if run.seed >= n - unfinished else run for run in runs]
    found = compare(runs, {}, ComparisonRequest(metric=METRIC), glances=known)
    known += [glance for _, glance in glances_of(found, at=f"2026-11-{n:02}T10:00:00+00:00")]
    return found.cells[0].rows[-1]


def test_seeds_that_were_added_after_a_look_make_the_next_one_exploratory() -> None:
    known: list[Glance] = []

    assert look(5, known).exploratory is None
    assert look(5, known).exploratory is None
    assert (
        look(8, known).exploratory == "these runs were looked at before with n = 5 (2026-11-05), and then 6 were added"
    )


def test_arms_that_share_their_reference_are_looked_at_each_by_itself() -> None:
    known: list[Glance] = []

    assert look(5, known, levels=ARMS).exploratory is None
    assert look(5, known, levels=ARMS).exploratory is None
    assert look(5, known, levels=ARMS[:2]).exploratory is None
    assert look(5, known, levels=(ARMS[0], ARMS[2])).exploratory is None
    assert "and then 6 were added" in str(look(8, known, levels=ARMS).exploratory)


def test_an_arm_that_joins_later_is_a_question_of_its_own() -> None:
    known: list[Glance] = []
    look(5, known, levels=ARMS[:2])

    assert look(5, known, levels=ARMS).exploratory is None


def test_a_look_while_runs_go_on_is_exploratory_and_the_last_of_what_was_asked_for_is_not() -> None:
    known: list[Glance] = []

    assert look(8, known, unfinished=3).exploratory == "6 of its runs have not ended"
    assert look(8, known).exploratory is None


def test_who_ends_the_rest_after_a_look_is_exploratory() -> None:
    known: list[Glance] = []
    look(8, known, unfinished=3)

    assert (
        look(5, known).exploratory
        == "these runs were looked at before with n = 5 (2026-11-08), and then 6 were left out"
    )
