from __future__ import annotations

import math
import random
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import arm, curve, curves, run, summary, texts

from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.result import Cell, Comparison, ComparisonRequest, Percent, Row
from hpcml.analysis.stats import LEAST_SEEDS
from hpcml.errors import ComparisonError
from hpcml.model.records import Point, RunRecord
from hpcml.model.state import State

FP32 = [0.910, 0.913, 0.908, 0.912, 0.911]
AMP = [0.909, 0.912, 0.909, 0.911, 0.910]
STEP_S = {"fp32": 0.020, "amp_bf16": 0.010, "tf32": 0.013}
accuracies = st.lists(st.floats(0.0, 1.0).map(lambda x: round(x, 4)), min_size=1, max_size=6)


def only_cell(comparison: Comparison) -> Cell:
    assert len(comparison.cells) == 1
    return comparison.cells[0]


def row_of(comparison: Comparison, level: str) -> Row:
    return next(row for row in only_cell(comparison).rows if row.level == level)


def two_arms(fp32: Sequence[float | None] = FP32, amp: Sequence[float | None] = AMP) -> list[RunRecord]:
    return arm("fp32", fp32) + arm("amp_bf16", amp)


def test_an_arm_is_compared_with_fp32_seed_by_seed() -> None:
    runs = two_arms()

    comparison = compare(runs, curves(runs, STEP_S))

    cell, row = only_cell(comparison), row_of(comparison, "amp_bf16")
    assert [r.level for r in cell.rows] == ["fp32", "amp_bf16"]
    assert cell.rows[0].verdict == "reference"
    assert cell.rows[0].difference is None
    assert (comparison.by, comparison.metric, comparison.goal) == ("precision", "val_accuracy", "max")
    assert (cell.margin, cell.margin_source, cell.batch_size, cell.device) == (0.01, "config", 64, "cuda (A100)")
    assert (cell.steady_from_step, cell.steady_to_step) == (50, 99)
    assert row.seeds == (0, 1, 2, 3, 4)
    assert row.verdict == "equivalent"
    assert row.difference is not None
    assert row.difference.value == pytest.approx(-0.0006)
    assert row.difference.paired
    assert row.difference.rho == pytest.approx(0.91707, abs=1e-5)  # numpy.corrcoef
    assert row.difference.p_tost is not None
    assert row.difference.p_tost < 0.001
    assert row.flags == ()


def test_speed_is_the_ratio_of_steady_step_times() -> None:
    runs = two_arms()

    reference, row = only_cell(compare(runs, curves(runs, STEP_S))).rows

    assert reference.speed is not None
    assert row.speed is not None
    assert reference.speed.speedup is None
    assert reference.speed.samples_per_s == pytest.approx(64 / 0.020, rel=0.02)
    assert row.speed.step_ms == pytest.approx(10.0, rel=0.02)
    assert row.speed.speedup == pytest.approx(2.0, rel=0.02)
    assert row.speed.speedup_ci95 is not None
    assert row.speed.speedup_ci95.low < row.speed.speedup < row.speed.speedup_ci95.high
    assert row.speed.wall_s == 60.0
    assert row.speed.n == 5


def test_one_seed_that_is_missing_leaves_the_others_paired_and_is_named() -> None:
    row = row_of(compare(two_arms(FP32, AMP[:4]), {}), "amp_bf16")

    assert row.difference is not None
    assert (row.difference.paired, row.difference.n_pairs, row.difference.left_out) == (True, 4, (4,))
    assert "paired by 4 shared seeds; without 4" in texts(row)
    assert "4 seeds: indicative only, take 5" in texts(row)


def test_a_speed_up_keeps_its_pairs_where_one_seed_is_missing() -> None:
    runs = two_arms(FP32, AMP[:4])
    slow = {0: 1.0, 1: 1.5, 2: 0.7, 3: 2.0, 4: 4.0}  # some seeds take longer in both arms
    steps = {each.uid: curve(STEP_S[each.precision] * slow[each.seed], seed=7) for each in runs}

    speed = row_of(compare(runs, steps), "amp_bf16").speed

    assert speed is not None
    assert speed.speedup_paired
    assert speed.speedup == pytest.approx(2.0)
    assert speed.speedup_ci95 is None  # nothing varies, as with a coarse clock: nothing says how certain it is


def test_where_less_than_half_of_the_seeds_are_shared_there_are_no_pairs() -> None:
    other_seeds = [run("tf32", seed, value + 0.0001 * seed) for seed, value in enumerate(AMP + AMP, start=2)]

    row = row_of(compare(arm("fp32", FP32) + other_seeds, {}), "tf32")

    assert row.difference is not None
    assert (row.difference.paired, row.difference.n_pairs) == (False, 0)
    assert any("unpaired (Welch)" in flag for flag in texts(row))


def test_arms_with_other_seeds_are_compared_unpaired_and_the_row_says_so() -> None:
    other_seeds = [run("tf32", seed, value) for seed, value in enumerate(AMP, start=3)]

    row = row_of(compare(arm("fp32", FP32) + other_seeds, {}), "tf32")

    assert row.difference is not None
    assert not row.difference.paired
    assert row.difference.rho is None
    assert any("unpaired (Welch)" in flag for flag in texts(row))


def test_one_run_an_arm_is_inconclusive() -> None:
    row = row_of(compare(two_arms([0.9], [0.9]), {}), "amp_bf16")

    assert row.verdict == "inconclusive"
    assert row.difference is not None
    assert row.difference.ci90 is None
    assert "1 seeds: too few for a verdict, take 5" in texts(row)
    assert not any("seeds are not those" in flag for flag in texts(row))  # they are, there is only one


def test_one_run_an_arm_of_another_seed_does_not_match() -> None:
    row = row_of(compare([run("fp32", 0), run("amp_bf16", 1)], {}), "amp_bf16")

    assert any("seeds are not those" in flag for flag in texts(row))


def test_without_a_margin_fixed_beforehand_there_is_no_verdict() -> None:
    runs = [replace(r, params={**r.params, "objective.margin": None}) for r in two_arms()]

    row = row_of(compare(runs, {}), "amp_bf16")

    assert row.verdict == "no margin"
    assert row.difference is not None
    assert row.difference.p_tost is None


def test_a_margin_from_the_command_line_is_marked_as_such() -> None:
    cell = only_cell(compare(two_arms(), {}, ComparisonRequest(margin=0.0001)))

    assert (cell.margin, cell.margin_source) == (0.0001, "command line")
    assert cell.rows[1].verdict != "equivalent"


def with_values(values: dict[str, list[float]], goal: str = "max") -> list[RunRecord]:
    settings = {"objective.goal": goal, "objective.margin": None}
    return [each for precision, of in values.items() for each in arm(precision, of, params=settings)]


def test_a_margin_in_per_cent_is_tested_on_the_ratio() -> None:
    near = {"fp32": [100.0, 200.0, 400.0], "tf32": [104.0, 209.0, 419.0]}  # 4 to 4.75 % more, whatever the size
    runs = with_values(near)
    wide, narrow, absolute = (
        only_cell(compare(runs, {}, ComparisonRequest(margin=margin)))
        for margin in (Percent(value=10.0), Percent(value=3.0), 10.0)
    )

    row = wide.rows[1]
    assert (wide.margin, wide.scale, row.verdict) == (10.0, "percent", "equivalent")
    assert row.difference is not None
    logs = [math.log(arm / reference) for arm, reference in zip(near["tf32"], near["fp32"], strict=True)]
    assert row.difference.value == pytest.approx(100 * math.expm1(sum(logs) / 3))
    half = 2.919986 * statistics.stdev(logs) / math.sqrt(3)  # t(2, 0.95)
    assert row.difference.ci90 is not None
    ends = row.difference.ci90.low, row.difference.ci90.high
    assert ends == pytest.approx([100 * math.expm1(sum(logs) / 3 + side * half) for side in (-1, 1)])
    assert [only.rows[1].verdict for only in (narrow, absolute)] == ["better", "non-inferior"]


def test_below_three_seeds_a_margin_in_per_cent_has_no_verdict() -> None:
    runs = with_values({"fp32": [100.0, 200.0], "tf32": [101.0, 202.5]})

    assert only_cell(compare(runs, {}, ComparisonRequest(margin=Percent(value=10.0)))).rows[1].verdict == "inconclusive"


@pytest.mark.parametrize(
    ("values", "margin", "words"),
    [
        ([0.0, 1.0, 2.0], 10.0, "--margin 10% has no place for a value of 0: judge by differences in its unit"),
        ([1.0, 1.1, 1.2], 100.0, "margin=100 from 100 leaves the log scale (--margin 100%): choose a smaller one"),
    ],
)
def test_a_ratio_that_cannot_be_is_refused(values: list[float], margin: float, words: str) -> None:
    runs = with_values({"fp32": [1.0, 1.2, 1.1], "tf32": values})

    with pytest.raises(ComparisonError, match=re.escape(words)):
        compare(runs, {}, ComparisonRequest(margin=Percent(value=margin)))


@pytest.mark.parametrize("text", ["10", "%", "ten%", ""])
def test_per_cent_are_a_number_with_its_sign(text: str) -> None:
    assert Percent.parse("12.5%") == Percent(value=12.5)
    with pytest.raises(ComparisonError, match=f"margin={text}: choose a number, in the metric's unit, or per cent"):
        Percent.parse(text)


@pytest.mark.parametrize("margin", [0.0, -0.1, math.nan, math.inf])
def test_a_margin_must_be_positive(margin: float) -> None:
    with pytest.raises(ComparisonError, match="must be positive"):
        compare(two_arms(), {}, ComparisonRequest(margin=margin))


def test_runs_that_do_not_count_are_counted_and_listed() -> None:
    runs = two_arms(FP32, [0.909, math.nan, 0.909, 0.911, 0.910])
    runs += [
        run("amp_bf16", 5, None, state=State.FAILED, reason="CUDA out of memory"),
        run("amp_bf16", 6, None, state=State.RUNNING),
        run("amp_bf16", 7, metrics={"loss": summary("loss", 0.1)}),
        replace(run("amp_bf16", 8, 0.2), reason="the journal has no end"),
        replace(run("amp_bf16", 9, 0.2), lost_records=3),
    ]

    cell = only_cell(compare(runs, {}))

    row = cell.rows[1]
    assert (row.n_ok, row.n_failed, row.n_nan, row.n_without_metric, row.n_unfinished) == (4, 1, 1, 1, 1)
    assert (row.n_incomplete, row.n_selected) == (2, 10)
    assert row.seeds == (0, 2, 3, 4)
    assert {(e.uid.rpartition("-")[2], e.reason) for e in cell.excluded} == {
        ("amp_bf16s1", "val_accuracy ended non-finite"),
        ("amp_bf16s5", "FAILED: CUDA out of memory"),
        ("amp_bf16s6", "RUNNING"),
        ("amp_bf16s7", "val_accuracy was never recorded"),
        ("amp_bf16s8", "incomplete: the journal has no end"),
        ("amp_bf16s9", "incomplete: 3 records were lost, 0 lines are unreadable"),
    }
    assert (
        "not counted: 1 that recorded no val_accuracy, but loss: is it called so there?; 2 of which records may be "
        "missing (the journal has no end); 1 that did not end yet" in texts(row)
    )
    assert "3 of 7 seeds lost to their own doing, 0 of 5 of fp32" in texts(row)


def test_an_arm_whose_program_calls_the_metric_otherwise_is_told_what_it_recorded() -> None:
    names = ("accuracy", "loss", "lr", "wer")
    others = [run("amp_bf16", seed, metrics={name: summary(name, 0.1) for name in names}) for seed in range(5)]

    row = only_cell(compare(arm("fp32", FP32) + others, {})).rows[1]

    assert "not counted: 5 that recorded no val_accuracy, but accuracy: is it called so there?" in texts(row)


def test_a_level_without_any_run_that_counts_keeps_its_row() -> None:
    runs = [*two_arms(), run("fp16", 0, None, state=State.FAILED)]

    row = row_of(compare(runs, {}), "fp16")

    assert (row.n_ok, row.n_failed, row.mean, row.speed, row.difference) == (0, 1, None, None, None)
    assert row.verdict == "unstable"
    assert texts(row) == ["1 of 1 seeds lost to their own doing, 0 of 5 of fp32"]


def test_a_cell_in_which_nothing_counts_speaks_of_no_margin() -> None:
    other = {"model.name": "another"}
    lost = [run(level, 0, None, state=State.FAILED, params=other, uid=f"{level}-lost") for level in ("fp32", "tf32")]

    counted, cell = compare([*two_arms(), *lost], {}).cells  # and comes last, though its name would be the first

    assert counted.margin is not None
    assert cell.margin is None
    assert [row.verdict for row in cell.rows] == ["reference", "unstable"]


def test_runs_of_one_seed_are_averaged_before_anything_else() -> None:
    twice = [run("amp_bf16", 0, 0.911, uid="again-1"), run("amp_bf16", 0, 0.913, uid="again-2")]

    row = row_of(compare([*two_arms(), *twice], {}), "amp_bf16")

    assert (row.n_ok, len(row.seeds)) == (7, 5)
    assert row.mean == pytest.approx((0.911 + 0.912 + 0.909 + 0.911 + 0.910) / 5)
    assert "2 more runs of the same seeds: averaged within the seed first" in texts(row)


def test_seeds_that_came_later_than_others_of_their_arm_are_told() -> None:
    at_once = [run(level, seed, 0.9 + seed / 97, submission=level) for level in ("fp32", "tf32") for seed in range(4)]
    later = [run("tf32", seed, 0.9 + seed / 97, submission="later") for seed in (4, 5)]

    (whole,), (grown,) = compare(at_once, {}).cells, compare([*at_once, *later], {}).cells

    assert not [flag for flag in texts(whole) if "submissions" in flag]
    assert "seeds came in 2 submissions" in texts(grown)


def test_runs_that_their_walltime_ended_are_compared_at_the_last_step_that_all_reached() -> None:
    ended = [replace(one, state=State.TIMEOUT, reason="walltime of 60 s reached") for one in two_arms()]
    climbs = {
        one.uid: [Point(step, step, 0.5 + step / 100 + (one.precision == "fp32") / 10) for step in range(9 + one.seed)]
        for one in ended
    }
    failed = run("fp32", 7, None, state=State.FAILED, cause="program")

    comparison = compare([*ended, failed], {}, more_curves={"val_accuracy": climbs})

    cell, row = only_cell(comparison), row_of(comparison, "amp_bf16")
    assert texts(cell)[0] == "walltime ended 10 of 11 runs: val_accuracy is that of step 8, which all reached"
    assert (row.mean, cell.rows[0].mean) == (pytest.approx(0.58), pytest.approx(0.68))
    assert (row.n_ok, cell.rows[0].n_ok, cell.rows[0].n_failed) == (5, 5, 1)
    beside = compare([*two_arms(), replace(ended[0], uid="beside")], {}, more_curves={"val_accuracy": climbs})
    assert (only_cell(beside).rows[0].n_ok, only_cell(beside).rows[0].n_failed) == (5, 1)


def test_a_run_given_twice_counts_once() -> None:
    runs = two_arms()

    assert compare(runs + runs[:3], {}) == compare(runs, {})


def test_lower_is_better_where_the_goal_says_so() -> None:
    settings = {"objective.metric": "val_loss", "objective.goal": "min", "objective.margin": 0.01}
    better = [0.30, 0.31, 0.29, 0.30, 0.31]
    runs = [
        run(p, seed, metrics={"val_loss": summary("val_loss", value + offset)}, params=settings)
        for p, offset in (("fp32", 0.1), ("tf32", 0.0))
        for seed, value in enumerate(better)
    ]
    runs[0] = replace(runs[0], metrics={"val_loss": summary("val_loss", 0.41)})

    row = row_of(compare(runs, {}), "tf32")

    assert row.difference is not None
    assert row.difference.value < 0
    assert row.verdict == "better"


def test_where_nothing_tells_which_way_is_better_only_equivalence_is_a_verdict() -> None:
    runs = [
        run(level, seed, metrics={"depth": summary("depth", value + 0.01 * seed**2 * (level == "tf32"))})
        for level, values in (("fp32", FP32), ("tf32", [value + 5 for value in FP32]))
        for seed, value in enumerate(values)
    ]

    unknown, known, near = (
        compare(runs, {}, ComparisonRequest(metric="depth", goal=goal, margin=margin))
        for goal, margin in ((None, 0.5), ("min", 0.5), (None, 6.0))
    )

    assert (unknown.goal, unknown.goal_source) == (None, None)
    assert row_of(unknown, "tf32").difference == row_of(known, "tf32").difference
    verdicts = [row_of(each, "tf32").verdict for each in (unknown, known, near)]
    assert verdicts == ["no goal", "worse by more than the margin", "equivalent"]
    with pytest.raises(ComparisonError, match=r"target=3: nothing tells which way depth is better: --goal max\|min"):
        compare(runs, {}, ComparisonRequest(metric="depth", target=3))


def test_a_configured_margin_does_not_serve_another_metric() -> None:
    runs = [replace(r, metrics={**r.metrics, "val_loss": summary("val_loss", 0.3)}) for r in two_arms()]

    comparison = compare(runs, {}, ComparisonRequest(metric="val_loss"))

    assert (comparison.goal, comparison.goal_source) == ("min", "metric name")
    assert only_cell(comparison).margin is None
    assert compare(runs, {}, ComparisonRequest(metric="val_loss", goal="max")).goal_source == "command line"


def test_every_combination_of_the_other_groups_is_a_cell_of_its_own() -> None:
    elsewhere = [replace(r, uid=f"{r.uid}-x", params={**r.params, "model.name": "mlp"}) for r in two_arms()]

    comparison = compare(two_arms() + elsewhere, {})

    assert [cell.where["model"] for cell in comparison.cells] == ["digits_cnn", "mlp"]
    assert comparison.n_comparisons == 2


def test_a_cell_without_the_reference_says_so() -> None:
    alone = [replace(r, params={**r.params, "model.name": "mlp"}) for r in arm("tf32", AMP)]

    cell = compare(two_arms() + alone, {}).cells[1]

    assert cell.rows[0].difference is None
    assert cell.rows[0].verdict == "inconclusive"
    assert texts(cell)[0] == "no run of fp32 counts here: nothing to subtract"


@pytest.mark.parametrize("by", ["training.batch_size", "layout", "layout.name"])
def test_any_setting_can_be_the_factor(by: str) -> None:
    key, values = ("training.batch_size", (64, 128)) if by.startswith("training") else ("layout.name", ("nchw", "nhwc"))
    runs = [run(uid=f"{v}-{seed}", seed=seed, params={key: v}) for v in values for seed in range(3)]
    same_step_time = {r.uid: curve(0.02, seed=i) for i, r in enumerate(runs)}

    row = only_cell(compare(runs, same_step_time, ComparisonRequest(by=by))).rows[1]

    assert row.level == str(values[1])
    assert row.speed is not None
    assert row.speed.speedup == pytest.approx(2.0 if by.startswith("training") else 1.0, rel=0.02)  # per sample


def test_numbers_are_ordered_by_size_and_the_smallest_is_the_reference() -> None:
    runs = [run(uid=f"{v}", params={"training.batch_size": v}) for v in (128, 64, 1024)]

    cell = only_cell(compare(runs, {}, ComparisonRequest(by="training.batch_size")))

    assert [row.level for row in cell.rows] == ["64", "128", "1024"]


def test_the_program_of_a_user_may_ignore_the_batch_size_so_nothing_is_said_per_sample() -> None:
    runs = [replace(r, params={**r.params, "model.recipe": None}) for r in two_arms()]

    row = row_of(compare(runs, curves(runs, STEP_S)), "amp_bf16")

    assert row.speed is not None
    assert row.speed.samples_per_s is None
    assert row.speed.speedup == pytest.approx(2.0, rel=0.02)


def test_missing_step_times_are_none_and_flagged() -> None:
    runs = two_arms()
    known = curves(runs, STEP_S)
    known[runs[-1].uid] = known[runs[-1].uid][:5]
    known[runs[-2].uid] = []

    row = row_of(compare(runs, known), "amp_bf16")

    assert row.speed is not None
    assert row.speed.n == 3
    assert row.speed.speedup_paired is True  # by the three seeds that are known of both
    assert "no steady step time of 2 of 5 seeds: step_time_s was not reported" in texts(row)


def test_a_program_that_reports_no_step_times_is_told_so_and_nothing_of_steps() -> None:
    rows = only_cell(compare(two_arms(), {})).rows

    for row in rows:
        assert row.speed is not None
        assert row.speed.step_ms is None
        assert "no steady step time of 5 of 5 seeds: step_time_s was not reported" in texts(row)


@pytest.mark.parametrize("name", ["loss", "train_loss", "train/loss"])
def test_a_loss_that_was_not_finite_on_the_way_is_flagged_and_the_run_counts(name: str) -> None:
    runs = two_arms()
    recovered, ended = replace(summary(name, 0.3), n_nonfinite=2), summary(name, math.nan)
    runs[6] = replace(runs[6], metrics={**runs[6].metrics, name: recovered})
    runs[7] = replace(runs[7], metrics={**runs[7].metrics, name: ended, "lossless": ended})
    runs[8] = replace(runs[8], metrics={**runs[8].metrics, name: summary(name, 0.3)})
    runs[9] = replace(runs[9], metrics={**runs[9].metrics, "closses": ended})

    row = row_of(compare(runs, {}), "amp_bf16")

    assert row.n_ok == 5
    assert f"in 1 of 5 runs {name} was no number at the last" in texts(row)
    assert "in 2 of 5 runs a loss was no number at some step" in texts(row)


@pytest.mark.parametrize(
    ("by", "hint"),
    [
        ("percision", "did you mean precision"),
        ("batch_size", "did you mean training.batch_size"),
        ("training.batchsize", "did you mean training.batch_size"),
        ("seed", "averaged over"),
        ("zzz", "no setting of these runs"),
        ("precision,", "--by precision,: write the name of a setting, or several with a comma between each"),
        ("precision, precision", "names a setting twice: give each once"),
    ],
)
def test_an_unknown_factor_is_refused_with_what_may_have_been_meant(by: str, hint: str) -> None:
    with pytest.raises(ComparisonError, match=hint):
        compare(two_arms(), {}, ComparisonRequest(by=by))


def test_what_cannot_be_compared_is_refused_with_a_reason() -> None:
    with pytest.raises(ComparisonError, match="no runs"):
        compare([], {})
    with pytest.raises(ComparisonError, match=r"all 5 runs have precision=fp32: nothing to compare; .* hpcml run -m"):
        compare(arm("fp32", FP32), {})
    with pytest.raises(ComparisonError, match=r"no run of 2 is COMPLETED \(1 FAILED, 1 RUNNING\)"):
        compare([run("fp32", state=State.FAILED), run("tf32", state=State.RUNNING)], {})
    with pytest.raises(ComparisonError, match="reference fp64 is none of fp32, amp_bf16"):
        compare(two_arms(), {}, ComparisonRequest(reference="fp64"))
    with pytest.raises(ComparisonError, match="reference amp_fp16 is none of fp32, amp_bf16"):
        compare(two_arms(), {}, ComparisonRequest(reference="amp"))
    with pytest.raises(ComparisonError, match="did you mean val_accuracy"):
        compare(two_arms(), {}, ComparisonRequest(metric="val_acuracy"))
    with pytest.raises(ComparisonError, match="choose max or min"):
        compare(two_arms(), {}, ComparisonRequest(goal="up"))


def test_by_names_a_flag_of_the_program_where_each_run_has_one_of_that_name() -> None:
    runs = [
        run("own", seed, value, uid=f"{word}{seed}", params={"name": None, "workload.args.name": word})
        for word, values in (("x", FP32), ("y", AMP))
        for seed, value in enumerate(values)
    ]

    comparison = compare(runs, {}, ComparisonRequest(by="name"))

    assert [row.level for row in only_cell(comparison).rows] == ["x", "y"]
    with pytest.raises(ComparisonError, match=r"what differs is args\.name: --by args\.name"):
        compare(runs, {}, ComparisonRequest(by="layout"))


def commanded(*commands: str) -> list[RunRecord]:
    return [
        run("own", seed, uid=f"{command} {seed}", params={"workload.command": command}, spec_hash=command)
        for command in commands
        for seed in (0, 1)
    ]


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("precision", "by which setting.* differ in workload.command: --by workload.command$"),
        ("amp", "a word of their commands, which differ: --by workload.command$"),
        ("zzz", "--by zzz is no setting of these runs; what differs is workload.command$"),
    ],
)
def test_runs_that_differ_in_their_commands_alone_are_not_said_to_be_alike(by: str, said: str) -> None:
    runs = commanded("python m.py --seed '{seed}'", "python m.py --amp --seed '{seed}'")

    with pytest.raises(ComparisonError, match=said):
        compare(runs, {}, ComparisonRequest(by=by))


def test_a_flag_that_some_runs_lack_is_what_differs() -> None:
    runs = commanded("python m.py --seed '{seed}'", "python m.py '{amp}' --seed '{seed}'")
    runs = [
        replace(each, params={**each.params, **({"workload.args.amp": "--amp"} if "{amp}" in each.uid else {})})
        for each in runs
    ]

    with pytest.raises(ComparisonError, match=r"differ in amp, workload\.command: --by amp$"):
        compare(runs, {}, ComparisonRequest(by="precision"))


def test_a_seed_that_was_typed_by_hand_is_no_difference_to_compare_by() -> None:
    with pytest.raises(ComparisonError, match="nothing else of them differs"):
        compare(commanded("m --seed 1 --lr 2", "m --seed 2 --lr 2"), {})


def test_a_reference_may_be_named_as_it_was_launched() -> None:
    runs = arm("fp32", FP32) + arm("amp_fp16", AMP)

    assert compare(runs, {}, ComparisonRequest(reference="amp")) == compare(
        runs, {}, ComparisonRequest(reference="amp_fp16")
    )


def test_levels_that_never_share_a_cell_are_refused() -> None:
    there = [replace(r, params={**r.params, "cluster.name": "lumi"}) for r in arm("tf32", AMP)]

    with pytest.raises(ComparisonError, match="no two runs differ in precision alone"):
        compare(arm("fp32", FP32) + there, {})


def test_what_runs_without_any_metric_were_to_be_judged_by_is_no_disagreement() -> None:
    mute = [replace(one, params={**one.params, "objective.metric": "val_loss"}, metrics={}) for one in two_arms()]
    renamed = [replace(one, uid=f"{one.uid}0") for one in mute]

    assert compare([*two_arms(), *renamed], {}, ComparisonRequest()).metric == "val_accuracy"


@pytest.mark.parametrize(("key", "value"), [("metric", "val_loss"), ("goal", "min"), ("margin", 0.02)])
def test_runs_with_different_objectives_are_refused(key: str, value: object) -> None:
    runs = two_arms()
    runs[0] = replace(runs[0], params={**runs[0].params, f"objective.{key}": value})

    with pytest.raises(ComparisonError, match=f"disagree on objective.{key}"):
        compare(runs, {})


@settings(deadline=None, max_examples=40)
@given(accuracies, accuracies, st.randoms(use_true_random=False))
def test_the_order_of_the_runs_does_not_matter(fp32: list[float], amp: list[float], shuffler: random.Random) -> None:
    runs = two_arms(fp32, amp)
    times = curves(runs, STEP_S)
    shuffled = list(runs)
    shuffler.shuffle(shuffled)

    assert compare(shuffled, times) == compare(runs, times)


@settings(deadline=None, max_examples=40)
@given(accuracies, accuracies)
def test_swapping_reference_and_arm_mirrors_difference_and_speed(fp32: list[float], amp: list[float]) -> None:
    runs = two_arms(fp32, amp)
    times = curves(runs, STEP_S)

    there = row_of(compare(runs, times), "amp_bf16")
    back = row_of(compare(runs, times, ComparisonRequest(reference="amp_bf16")), "fp32")

    assert there.difference is not None
    assert back.difference is not None
    assert there.difference.value == pytest.approx(-back.difference.value, abs=1e-12)
    assert there.difference.paired == back.difference.paired
    assert (there.verdict == "equivalent") == (back.verdict == "equivalent")
    assert there.speed is not None
    assert back.speed is not None
    assert there.speed.speedup is not None
    assert back.speed.speedup is not None
    assert there.speed.speedup * back.speed.speedup == pytest.approx(1.0)


@settings(deadline=None, max_examples=60)
@given(accuracies, accuracies, st.sampled_from([1e-6, 0.01, 0.5]))
def test_equivalent_is_only_said_where_the_interval_lies_inside_the_margin(
    fp32: list[float], amp: list[float], margin: float
) -> None:
    row = row_of(compare(two_arms(fp32, amp), {}, ComparisonRequest(margin=margin)), "amp_bf16")

    assert row.difference is not None
    interval = row.difference.ci90
    inside = interval is not None and -margin < interval.low and interval.high < margin
    if row.verdict not in ("identical", "inconclusive"):
        assert (row.verdict == "equivalent") == inside
    elif row.verdict == "inconclusive" and inside and interval is not None:
        too_few = min(len(fp32), len(amp)) < LEAST_SEEDS
        assert too_few or interval.low == interval.high  # nothing says how certain that is


def program(lr: float | None, seed: int, *, command: str = "train.py", **fields: Any) -> RunRecord:  # noqa: ANN401
    params = {"workload.command": command} | ({} if lr is None else {"workload.args.lr": lr})
    return run("own", seed, 0.5 + seed / 10 + (lr or 0), uid=f"{command}{lr}{seed}", precision_effective=None,
               params=params, **fields)  # fmt: skip


def test_runs_of_other_programs_without_the_setting_or_the_metric_are_left_out() -> None:
    asked = [program(lr, seed) for lr in (0.1, 0.5) for seed in range(3)]
    unset = [program(None, seed, command="other.py") for seed in range(2)]
    mute = [program(0.1, 0, command=f"mute.py {n}", metrics={}, state=state)
            for n, state in enumerate([State.COMPLETED, State.RUNNING])]  # fmt: skip
    lost = [program(0.9, seed, command="lost.py", metrics={}, state=State.FAILED) for seed in range(3)]

    found = compare([*asked, *unset, *mute, *lost], {}, ComparisonRequest(by="lr"))

    assert {each.uid: each.reason for each in found.excluded} == {
        **{each.uid: "without lr" for each in unset},
        **{each.uid: "without val_accuracy" for each in mute},
    }
    assert found.n_runs == 9
    assert [[row.level for row in cell.rows] for cell in found.cells] == [["0.1", "0.5"], ["0.9"]]
    (cell,) = compare([*asked, *unset], {}, ComparisonRequest(by="lr")).cells
    assert "workload.command" not in cell.where
    assert not [flag for row in cell.rows for flag in texts(row) if "precision" in flag or "step_time_s" in flag]


def test_runs_without_the_setting_are_no_reference() -> None:
    named = [replace(of, params={**of.params, "workload.args.opt": opt}, uid=f"{opt}{of.uid}")
             for opt in ("sgd", "zadam") for of in (program(0.1, seed) for seed in range(3))]  # fmt: skip

    found = compare([*named, program(0.1, 0, command="other.py")], {}, ComparisonRequest(by="opt"))

    assert only_cell(found).reference == "sgd"


@pytest.mark.parametrize(
    ("known", "objective", "judged"),
    [
        (["valid logloss"], "val_accuracy", "valid logloss"),  # the default: nobody typed it
        (["loss", "epoch_time_s"], None, "loss"),  # as imported runs, which say none
        (["epoch_time_s"], "val_accuracy", "epoch_time_s"),
        (["loss", "val_accuracy"], "val_accuracy", "val_accuracy"),
    ],
)
def test_the_only_metric_of_runs_judges_them_where_nobody_chose_one(
    known: list[str], objective: str | None, judged: str
) -> None:
    metrics = {name: summary(name, 0.5) for name in known}
    params = {"objective.metric": objective}
    mute = run("tf32", 1, metrics={}, params={"objective.metric": "ppl"})

    found = compare([run(params=params, metrics=metrics), run("tf32", params=params, metrics=metrics), mute], {})

    assert found.metric == judged


@pytest.mark.parametrize(
    ("known", "objective", "refusal"),
    [
        ([], "val_accuracy", "no run recorded any metric: hpcml read --experiment precision-study --metric loss"),
        (
            ["Loss/test", "acc"],
            "val_accuracy",
            r"by which metric\? they have Loss/test, acc \(--metric NAME judges by one",
        ),
        (
            [f"m{n:02}" for n in range(30)],
            None,
            r"by which metric\? they have m00, .*, m19 and 10 more \(--metric NAME",
        ),
        (
            ["valid loss"],
            "f1",
            r"no run recorded f1, their objective.metric: .* valid loss \(--metric 'valid loss' judges",
        ),
    ],
)
def test_runs_that_do_not_say_by_what_to_judge_are_told_what_they_have(
    known: list[str], objective: str | None, refusal: str
) -> None:
    metrics = {name: summary(name, 0.5) for name in known}
    params = {"objective.metric": objective}

    with pytest.raises(ComparisonError, match=refusal):
        compare([run(params=params, metrics=metrics), run("tf32", params=params, metrics=metrics)], {})
