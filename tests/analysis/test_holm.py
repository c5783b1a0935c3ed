from __future__ import annotations

import importlib
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import arm, texts
from statsmodels_said import said
from verdict_by_interval import verdict

from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.verdicts import adjust, find_claims, verdict_of
from hpcml.analysis.stats import holm, paired
from hpcml.model.records import RunRecord
from tests.effort import times

ps = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)
scores = st.lists(st.floats(-3.0, 3.0).map(lambda x: round(x, 3)), min_size=3, max_size=3)
FP32 = [0.910, 0.913, 0.908, 0.912, 0.911]
NEARLY = [0.902, 0.909, 0.898, 0.911, 0.904]  # equivalent within 0.012 alone


def runs_of(n_models: int) -> list[RunRecord]:
    runs = arm("fp32", FP32) + arm("tf32", NEARLY)
    return [
        replace(
            r, uid=f"{r.uid}-{model}", params={**r.params, "model.name": f"model{model}", "objective.margin": 0.012}
        )
        for model in range(n_models)
        for r in runs
    ]


def drawn_once(number: int) -> list[float]:
    """Return p-values: ties, zeros, ones and those on the edge of 1 among them."""
    rng = random.Random(number)  # noqa: S311
    some = [rng.choice([rng.random(), rng.random() ** 4, 0.0, 1.0, 0.05]) for _ in range(1 + number % 12)]
    return some + some[: number % 3]


@pytest.mark.parametrize("number", range(times(36, 200)))
def test_adjusted_p_values_agree_with_statsmodels(number: int) -> None:
    values = drawn_once(number)

    def ask() -> list[float]:
        oracle = importlib.import_module("statsmodels.stats.multitest")
        return list(oracle.multipletests(values, method="holm")[1])

    expected = ask() if number >= 36 else said(f"holm of {values}", ask)
    assert holm(values) == pytest.approx(expected)


@settings(deadline=None)
@given(ps)
def test_adjusted_p_values_are_what_holm_defines(values: list[float]) -> None:
    ordered = sorted(values)
    defined = {p: min(1.0, max((len(values) - j) * q for j, q in enumerate(ordered) if q <= p)) for p in values}

    assert holm(values) == pytest.approx([defined[p] for p in values])


@settings(deadline=None)
@given(ps, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(values: list[float], shuffler: object) -> None:
    order = list(range(len(values)))
    shuffler.shuffle(order)  # type: ignore[attr-defined] # random.Random

    assert holm([values[at] for at in order]) == [holm(values)[at] for at in order]


@settings(deadline=None)
@given(scores, scores, st.sampled_from([0.1, 1.0, 5.0]), st.booleans())
def test_of_a_single_row_the_p_values_say_what_the_interval_says(
    one: list[float],
    other: list[float],
    margin: float,
    higher_is_better: bool,  # noqa: FBT001
) -> None:
    contrast = paired(one, other)
    claims = find_claims(contrast, margin, higher_is_better=higher_is_better)

    assert claims is not None
    values = (claims.equivalent, claims.better, claims.non_inferior, claims.worse)
    if all(abs(p - 0.05) > 1e-9 for p in values):
        assert verdict_of(claims) == verdict(contrast.interval(0.9), margin, higher_is_better=higher_is_better)
    assert adjust([claims]) == [claims]


def test_what_holds_for_one_row_may_not_hold_for_a_table_of_many() -> None:
    alone, many = compare(runs_of(1), {}), compare(runs_of(6), {})

    row, one_of_many = alone.cells[0].rows[1], many.cells[0].rows[1]
    assert (alone.n_tests, many.n_tests) == (1, 6)
    assert row.difference is not None
    assert row.difference.p_tost is not None
    assert 0.05 / 6 < row.difference.p_tost < 0.05
    assert (row.verdict, row.p_adjusted) == ("equivalent", row.difference.p_tost)
    assert one_of_many.p_adjusted == pytest.approx(6 * row.difference.p_tost)
    assert one_of_many.verdict != "equivalent"
    assert any(flag.startswith("equivalent if it were the only row") for flag in texts(one_of_many))


def test_a_row_that_can_claim_nothing_costs_the_others_nothing() -> None:
    lonely = [r for r in runs_of(3) if r.params["model.name"] == "model0" or r.seed == 0]

    comparison = compare(lonely, {})

    assert (comparison.n_comparisons, comparison.n_tests) == (3, 1)
    assert comparison.cells[0].rows[1].verdict == "equivalent"
    assert [cell.rows[1].p_adjusted for cell in comparison.cells[1:]] == [None, None]


@pytest.mark.parametrize(
    ("by", "verdict", "kind"),
    [
        (0.03, "better", "greater"),
        (-0.03, "worse by more than the margin", "less"),
        (0.0, "equivalent", None),
    ],
)
def test_a_row_has_the_adjusted_p_of_the_claim_that_its_verdict_is(by: float, verdict: str, kind: str | None) -> None:
    values = [value + by for value in NEARLY[::-1]]
    rows = [*arm("fp32", FP32), *arm("tf32", values), *arm("amp_bf16", [each - 0.001 for each in NEARLY])]
    runs = [replace(each, params={**each.params, "objective.margin": 0.012}) for each in rows]

    cell = compare(runs, {}).cells[0]
    row = next(each for each in cell.rows if each.level == "tf32")

    oracle = importlib.import_module("scipy.stats")
    bound = 0.0 if verdict == "better" else -0.012
    assert row.verdict == verdict
    if kind is None:
        assert row.p_claim == row.p_adjusted
    else:
        differences = [one - other - bound for one, other in zip(values, FP32, strict=True)]
        alone = oracle.ttest_1samp(differences, 0.0, alternative=kind).pvalue
        assert row.p_claim == pytest.approx(2 * alone)  # Holm: the smaller p of two rows
        assert row.p_adjusted is not None
        assert row.p_adjusted > 0.9  # that of TOST says nothing of this claim


def test_a_row_that_claims_nothing_has_no_p_of_a_claim() -> None:
    row = compare(runs_of(6), {}).cells[0].rows[1]
    lonely = compare([r for r in runs_of(1) if r.seed == 0], {}).cells[0].rows[1]

    assert (row.verdict, row.p_claim) == ("inconclusive", None)
    assert row.p_adjusted is not None
    assert (lonely.verdict, lonely.p_claim) == ("inconclusive", None)
