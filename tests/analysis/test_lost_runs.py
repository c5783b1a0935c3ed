"""Runs that an arm loses to its own doing, and other reasons for which no verdict is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from recorded_runs import arm, run, summary, texts

from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.result import ComparisonRequest, Row
from hpcml.analysis.stats import share_interval
from hpcml.errors import ComparisonError
from hpcml.model.failure_causes import Cause
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.report.finding import findings_of

TEN = [0.9 + seed / 977 for seed in range(10)]
LARGE = ComparisonRequest(margin=0.05)


def judged(ours: list[float | None], theirs: list[float | None], request: ComparisonRequest = LARGE) -> Row:
    return compare(arm("fp32", theirs) + arm("tf32", ours), {}, request).cells[0].rows[1]


def test_arms_of_which_no_metric_was_ever_read_are_left_out_and_not_unstable() -> None:
    there = arm("fp32", [*TEN]) + arm("tf32", [*TEN])
    mute = [replace(one, uid=f"{one.uid}0", metrics={}, params={**one.params, "training.steps": 5}) for one in there]

    found = compare([*mute, *there], {}, LARGE)

    assert [row.n_without_metric for cell in found.cells for row in cell.rows] == [0, 0]
    assert {run.uid for run in found.excluded} == {run.uid for run in mute}


def test_runs_that_went_before_their_metrics_file_was_named_are_not_lost() -> None:
    read = [
        replace(one, params={**one.params, "workload.metrics_from": ["auto", "out/*.csv"]})
        for one in arm("fp32", [*TEN]) + arm("tf32", [value + value / 999 for value in TEN])
    ]
    unread = [
        replace(one, uid=f"{one.uid}0", metrics={}, params={**one.params, "workload.metrics_from": ["auto"]})
        for one in read
    ]

    row = compare([*read, *unread], {}, LARGE).cells[0].rows[1]

    assert (row.verdict, row.n_ok, row.n_without_metric) == ("equivalent", 10, 10)
    assert row.losses is not None
    assert row.losses.n == 0
    assert "not counted: 10 of which no metric was read" in texts(row)


def of_a_mistake(level: str, n: int = 5, *, submission: str = "first", reason: str = "no file") -> list[RunRecord]:
    return [
        replace(
            run(level, seed, None, state=State.FAILED, cause=Cause.PROGRAM, uid=f"{submission}-{level}-{seed}"),
            metrics={},
            submission=submission,
            reason=reason,
        )
        for seed in range(n)
    ]


def test_a_submission_that_failed_whole_before_it_trained_is_nobodys_loss() -> None:
    alike = [value + value / 999 for value in TEN]
    mistaken = [*of_a_mistake("fp32"), *of_a_mistake("tf32")]

    row = compare([*mistaken, *arm("fp32", [*TEN]), *arm("tf32", alike)], {}, LARGE).cells[0].rows[1]

    assert row.verdict == "equivalent"
    assert row.losses is not None
    assert (row.losses.n, row.losses.n_ended, row.losses.n_elsewhere, row.n_failed) == (0, 10, 0, 5)
    said = "not counted: 5 of submissions that failed whole, in the same words, before any metric"
    assert said in texts(row)


@pytest.mark.parametrize(
    "mistaken",
    [
        of_a_mistake("tf32"),  # an arm of its own: what failed may be the arm's doing
        [*of_a_mistake("tf32"), *of_a_mistake("fp32", reason="another")],
        [*of_a_mistake("tf32"), *of_a_mistake("fp32", submission="second")],
        [*of_a_mistake("tf32"), replace(run("fp32", 0, 0.9, uid="came-through"), submission="first")],
        [*of_a_mistake("tf32"), *[replace(each, cause=Cause.GPU_MEMORY) for each in of_a_mistake("fp32")]],
        [
            replace(each, metrics={"loss": summary("loss", 0.5)})
            for each in [*of_a_mistake("fp32"), *of_a_mistake("tf32")]
        ],
    ],
)
def test_what_failed_otherwise_stays_lost(mistaken: list[RunRecord]) -> None:
    alike = [value + value / 999 for value in TEN]

    row = compare([*mistaken, *arm("fp32", [*TEN]), *arm("tf32", alike)], {}, LARGE).cells[0].rows[1]

    assert row.verdict == "unstable"
    assert row.losses is not None
    assert row.losses.n == 5


def test_what_failed_in_one_setting_of_a_submission_alone_is_lost_by_its_arms() -> None:
    steep = [replace(each, params={**each.params, "training.lr": 9.0}) for each in of_a_mistake("tf32")]
    steep += [replace(each, params={**each.params, "training.lr": 9.0}) for each in of_a_mistake("fp32")]
    there = [
        replace(one, params={**one.params, "training.lr": lr}, uid=f"{one.uid}-{lr}", submission=submission)
        for lr, submission in ((0.1, "first"), (9.0, "second"))
        for one in [*arm("fp32", [*TEN]), *arm("tf32", [value + value / 999 for value in TEN])]
    ]

    cells = compare([*steep, *there], {}, LARGE).cells

    assert [[row.losses.n for row in cell.rows if row.losses is not None] for cell in cells] == [[0, 0], [5, 5]]


def test_two_survivors_of_ten_are_no_evidence() -> None:
    row = judged([TEN[0] + 0.001, TEN[1], *[math.nan] * 8], [*TEN])

    assert row.verdict == "unstable"
    assert row.losses is not None
    assert (row.losses.n, row.losses.n_ended) == (8, 10)
    assert row.losses.rate_ci90 is not None
    assert row.losses.rate_ci90.low == pytest.approx(0.493, abs=0.001)  # Clopper and Pearson's tables
    assert "8 of 10 seeds lost to their own doing, 0 of 10 of fp32" in texts(row)


def test_one_run_lost_of_ten_forbids_what_is_good_and_not_what_is_bad() -> None:
    good = judged([math.nan, *(value + value / 999 for value in TEN[1:])], [*TEN])
    bad = judged([math.nan, *(value - 0.2 - value / 50 for value in TEN[1:])], [*TEN])

    assert (good.verdict, bad.verdict) == ("unstable", "worse by more than the margin")


def test_losses_that_both_arms_have_forbid_nothing() -> None:
    row = judged([math.nan, *(value + value / 999 for value in TEN[1:])], [*TEN[:9], math.nan])

    assert row.verdict == "equivalent"
    assert "1 of 10 seeds lost to their own doing, 1 of 10 of fp32" in texts(row)


@pytest.mark.parametrize(
    ("state", "cause", "verdict"),
    [
        (State.FAILED, Cause.PROGRAM, "unstable"),
        (State.FAILED, Cause.GPU_MEMORY, "unstable"),
        (State.OUT_OF_MEMORY, Cause.HOST_MEMORY, "unstable"),
        (State.NODE_FAIL, Cause.NODE_FAILURE, "equivalent"),
        (State.CANCELLED, Cause.CANCELLED, "equivalent"),
        (State.TIMEOUT, Cause.TIME_LIMIT, "equivalent"),
        (State.FAILED, Cause.COMMUNICATION, "equivalent"),
        (State.FAILED, Cause.DISK, "equivalent"),
    ],
)
def test_who_ended_a_run_decides_whether_the_arm_lost_it(state: State, cause: Cause, verdict: str) -> None:
    lost = run("tf32", 0, None, state=state, cause=cause.value, metrics={"val_accuracy": summary("val_accuracy", 0.5)})
    others = [run("tf32", seed, value + value / 999) for seed, value in enumerate(TEN) if seed]

    row = compare([*arm("fp32", TEN), lost, *others], {}, LARGE).cells[0].rows[1]

    assert row.verdict == verdict
    assert row.losses is not None
    assert row.losses.n + row.losses.n_elsewhere == 1


def test_a_spread_without_width_shows_nothing() -> None:
    off = [0.1234567, 0.2345678, 0.3987654, 0.4111111, 0.5717171]

    row = judged([value + 0.25 for value in off], [*off])

    assert row.verdict == "inconclusive"
    assert row.difference is not None
    assert row.difference.p_tost is None  # of nothing that varies there is no p, and 0 would be the opposite
    assert any("all differences are the same" in flag for flag in texts(row))


def test_two_seeds_have_no_verdict_however_well_they_agree() -> None:
    row = judged([0.912345, 0.923467], [0.912346, 0.923469])

    assert row.verdict == "inconclusive"
    assert "2 seeds: too few for a verdict, take 5" in texts(row)


def test_precisions_that_nobody_measured_are_not_judged() -> None:
    runs = arm("fp32", TEN) + arm("tf32", [value + value / 999 for value in TEN], precision_effective=None)

    assert compare(runs, {}, LARGE).cells[0].rows[1].verdict == "not proven"


def test_on_the_log_scale_the_margin_is_translated_where_it_was_meant() -> None:
    scale = {"objective.scale": "log", "objective.scale_at": 0.05, "objective.goal": "min", "objective.margin": 0.02}
    losses = [0.04, 0.0503, 0.0617, 0.0555, 0.047]
    tens = arm("fp32", losses, params=scale) + arm("tf32", [v * 1.03 + v * v / 9 for v in losses], params=scale)

    cell = compare(tens, {}).cells[0]

    assert cell.scale == "log"
    assert cell.rows[1].verdict == "equivalent"
    assert cell.rows[1].difference is not None
    assert cell.rows[1].difference.value == pytest.approx(0.05 * 0.036, rel=0.05)


def test_a_value_that_has_no_place_on_the_scale_is_refused() -> None:
    scale = {"objective.scale": "log", "objective.scale_at": 0.05, "objective.goal": "min"}

    with pytest.raises(ComparisonError, match=r"objective.scale=log has no place for a value of 0"):
        compare(arm("fp32", [0.0, 0.1, 0.2], params=scale) + arm("tf32", [0.1, 0.1, 0.2], params=scale), {})


def test_the_interval_of_a_share_is_that_of_the_books() -> None:
    from scipy.stats import binomtest  # noqa: PLC0415 - an oracle, slow to import

    found = share_interval(3, 17)
    expected = binomtest(3, 17).proportion_ci(0.90, method="exact")

    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_runs_of_which_no_value_was_read_are_not_said_to_have_broken_down() -> None:
    mute = [replace(one, metrics={}) for one in arm("tf32", [0.9] * 8)]
    one, reference = run("tf32", 8, math.nan), arm("fp32", [*TEN])
    ok = [run("tf32", 9, TEN[9])]

    only_mute = compare([*reference, *mute, *ok], {}, LARGE).cells[0].rows[1]
    both = compare([*reference, *mute, one, *ok], {}, LARGE).cells[0].rows[1]

    assert (only_mute.verdict, both.verdict) == ("inconclusive", "unstable")
    assert "not counted: 8 of which no metric was read" in texts(only_mute)
    assert "1 of 2 seeds lost to their own doing, 0 of 10 of fp32" in texts(both)


def test_who_repeats_the_survivors_loses_no_smaller_share() -> None:
    theirs = [*TEN[:9], math.nan]
    ours = [*[math.nan] * 2, *(value + value / 999 for value in TEN[2:])]
    again = [replace(one, uid=f"{one.uid}-{k}") for one in arm("tf32", ours)[2:] for k in range(5)]

    once, often = (
        compare(arm("fp32", theirs) + arm("tf32", ours) + more, {}, LARGE).cells[0].rows[1] for more in ([], again)
    )

    assert (once.verdict, often.verdict) == ("unstable", "unstable")
    assert once.losses is not None
    assert often.losses is not None
    assert (once.losses.n, once.losses.n_ended) == (2, 10)
    assert (often.losses.n, often.losses.n_ended) == (2, 10)
    assert once.losses.rate_ci90 == often.losses.rate_ci90
    assert "2 of 10 seeds lost to their own doing, 1 of 10 of fp32" in texts(often)


def test_a_seed_that_was_run_until_it_came_through_stays_lost() -> None:
    ours = [value + value / 999 for value in TEN]
    diverged = [run("tf32", seed, None) for seed in range(2)]
    survived = [replace(one, uid=f"{one.uid}-again") for one in arm("tf32", ours)]

    row = compare([*arm("fp32", [*TEN[:9], math.nan]), *diverged, *survived], {}, LARGE).cells[0].rows[1]

    assert row.verdict == "unstable"
    assert row.losses is not None
    assert (row.losses.n, row.losses.n_ended) == (2, 10)


@pytest.mark.parametrize("state", [State.CANCELLED, State.TIMEOUT, State.NODE_FAIL])
def test_a_run_that_diverged_is_lost_whoever_ended_it_then(state: State) -> None:
    diverged = run("tf32", 0, None, state=state, cause=Cause.CANCELLED.value)
    others = [run("tf32", seed, value + value / 999) for seed, value in enumerate(TEN) if seed]

    cell = compare([*arm("fp32", TEN), diverged, *others], {}, LARGE).cells[0]

    assert (cell.rows[1].verdict, cell.rows[1].n_nan) == ("unstable", 1)
    assert [each.reason for each in cell.excluded] == [f"{state}, and before that val_accuracy ended non-finite"]


def test_runs_from_before_a_rule_was_set_make_no_comparison_of_their_own() -> None:
    rule = [{"name": "val_accuracy", "pattern": "acc (?P<value>.*)"}]
    read = [
        replace(one, params={**one.params, "workload.metrics": rule})
        for one in arm("fp32", [*TEN]) + arm("tf32", [value + value / 999 for value in TEN])
    ]
    before = [
        replace(one, uid=f"{one.uid}0", metrics={}, params={**one.params, "workload.metrics": []})
        for one in (*read, *arm("bf16", [*TEN]))
    ]

    (cell,) = compare([*read, *before], {}, LARGE).cells

    rows = {row.level: row for row in cell.rows}
    assert (rows["tf32"].verdict, rows["tf32"].n_ok, rows["tf32"].n_without_metric) == ("equivalent", 10, 10)
    assert "workload.metrics" not in cell.where
    assert [row.losses.n for row in cell.rows if row.losses is not None] == [0, 0, 0]
    assert "not counted: 10 of which no metric was read" in texts(rows["bf16"])


def test_runs_that_were_read_by_several_rules_stay_apart() -> None:
    read = [
        replace(
            one, uid=f"{one.uid}{at}", params={**one.params, "workload.metrics": [{"name": "a", "pattern": pattern}]}
        )
        for at, pattern in enumerate(("a (?P<value>.*)", "b (?P<value>.*)"))
        for one in arm("fp32", [*TEN]) + arm("tf32", [*TEN])
    ]

    assert len(compare(read, {}, LARGE).cells) == 2


def diverging(runs: Sequence[RunRecord], name: str = "train_loss", *, of: int | None = None) -> list[RunRecord]:
    """Return *runs* whose loss *name* ended as nan in the first *of* them, and came down in the others."""
    ended, came_down = summary(name, None), replace(summary(name, 0.2), first=0.9)
    n = len(runs) if of is None else of
    return [replace(one, metrics={**one.metrics, name: ended if at < n else came_down}) for at, one in enumerate(runs)]


ALIKE = [value + value / 999 for value in TEN]


@pytest.mark.parametrize("name", ["train_loss", "loss_G", "val/nll", "trainLoss", "cross_entropy"])
def test_an_arm_whose_loss_ended_as_nan_is_not_equivalent_by_a_best_value_from_before(name: str) -> None:
    row = (
        compare([*diverging(arm("fp32", TEN), name, of=0), *diverging(arm("tf32", ALIKE), name)], {}, LARGE)
        .cells[0]
        .rows[1]
    )

    assert (row.verdict, row.n_ok) == ("unstable", 10)
    assert f"in 10 of 10 runs {name} was no number at the last" in texts(row)
    assert row.losses is not None
    assert (row.losses.n, row.losses.n_diverged) == (10, 10)


@pytest.mark.parametrize("ours", [ALIKE, TEN])
def test_two_arms_that_both_diverged_are_not_alike(ours: list[float]) -> None:
    rows = compare([*diverging(arm("fp32", TEN)), *diverging(arm("tf32", ours))], {}, LARGE).cells[0].rows

    assert rows[1].verdict == "unstable"


def test_against_a_reference_that_diverged_there_is_no_verdict() -> None:
    reference = diverging(arm("fp32", TEN))
    alike, above = arm("tf32", ALIKE), arm("tf32", [value + 0.08 + seed / 1e4 for seed, value in enumerate(TEN)])

    verdicts = [
        compare([*reference, *diverging(of, of=0)], {}, ComparisonRequest(margin=0.01)).cells[0].rows[1].verdict
        for of in (alike, above)
    ]

    assert verdicts == ["unstable reference", "unstable reference"]


def test_an_arm_that_diverged_is_unstable_and_its_reference_makes_nobody_worse() -> None:
    below = [value - 0.3 - seed / 1e4 for seed, value in enumerate(TEN)]
    worse = compare([*arm("fp32", TEN), *diverging(arm("tf32", below))], {}, LARGE).cells[0].rows[1]
    excused = compare([*diverging(arm("fp32", TEN)), *arm("tf32", below)], {}, LARGE).cells[0].rows[1]

    assert worse.verdict == "unstable"
    assert excused.verdict == "unstable reference"


def test_the_verdict_names_the_reference_where_it_alone_lost_runs() -> None:
    failed = [
        run("fp32", seed, None, state=State.FAILED, cause=Cause.PROGRAM.value, metrics={}, uid=f"failed{seed}")
        for seed in range(3)
    ]

    comparison = compare([*failed, *arm("tf32", TEN[:3])], {}, LARGE)

    assert comparison.cells[0].rows[1].verdict == "unstable reference"
    (found,) = findings_of(comparison)
    told = (
        "unstable reference: lost 0 of 3 of its seeds to their own doing, fp32 lost 3 of 3: no val_accuracy to compare"
    )
    assert found.found == told


def test_a_single_run_of_ten_that_diverged_forbids_what_is_good_and_one_of_both_does_not() -> None:
    one = compare([*diverging(arm("fp32", TEN), of=0), *diverging(arm("tf32", ALIKE), of=1)], {}, LARGE)
    each = compare([*diverging(arm("fp32", TEN), of=1), *diverging(arm("tf32", ALIKE), of=1)], {}, LARGE)

    assert [found.cells[0].rows[1].verdict for found in (one, each)] == ["unstable", "equivalent"]


@pytest.mark.parametrize("name", ["loss_scale", "grad_norm", "lossless", "packet_loss_percent", "loss_weight"])
def test_what_is_no_loss_may_end_as_nan(name: str) -> None:
    row = compare([*arm("fp32", TEN), *diverging(arm("tf32", ALIKE), name)], {}, LARGE).cells[0].rows[1]

    assert row.verdict == "equivalent"


def test_a_loss_that_was_printed_as_nan_and_read_by_nobody_forbids_what_is_good_too() -> None:
    printed = [replace(one, facts={**one.facts, "printed_loss": "loss nan or infinite"}) for one in arm("tf32", ALIKE)]

    row = compare([*arm("fp32", TEN), *printed], {}, LARGE).cells[0].rows[1]

    assert row.verdict == "unstable"
    assert "in 10 of 10 runs the loss that they print was no number at the last" in texts(row)


def test_runs_of_an_experiment_with_another_objective_are_left_out_though_they_failed() -> None:
    there = arm("fp32", TEN) + arm("tf32", ALIKE)
    other = {"objective.metric": "val_loss"}
    failed = [
        replace(one, uid=f"{one.uid}-other", experiment="other", metrics={}, state=State.FAILED, cause=Cause.PROGRAM)
        for one in arm("tf32", TEN, params=other)
    ]

    found = compare([*there, *failed], {}, ComparisonRequest(margin=0.05, metric="val_accuracy"))

    assert found.cells[0].rows[1].verdict == "equivalent"
    assert {run.uid for run in found.excluded} == {run.uid for run in failed}
