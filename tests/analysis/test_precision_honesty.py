"""What a comparison of precisions must never pretend."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import arm, curves, texts

from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.result import ComparisonRequest, Row, Speed
from hpcml.errors import ComparisonError

VALUES = [0.910, 0.913, 0.908, 0.912, 0.911]
STEP_S = {"fp32": 0.02, "tf32": 0.5, "fp8_e4m3": 0.7}


def row_of(level: str, rows: tuple[Row, ...]) -> Row:
    return next(row for row in rows if row.level == level)


def test_an_emulated_arm_has_accuracy_and_no_speed() -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES[::-1], numerics="emulated")

    reference, row = compare(runs, curves(runs, STEP_S)).cells[0].rows

    assert row.numerics == "emulated"
    assert row.speed is None
    assert row.difference is not None
    assert "emulated: no speed" in texts(row)
    assert reference.speed is not None


def test_against_an_emulated_reference_there_is_no_speed_up() -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES, numerics="emulated")

    cell = compare(runs, curves(runs, STEP_S), ComparisonRequest(reference="tf32")).cells[0]

    row = row_of("fp32", cell.rows)
    assert row.speed is not None
    assert row.speed.step_ms is not None
    assert (row.speed.speedup, row.speed.speedup_ci95) == (None, None)
    assert texts(cell) == ["the reference tf32 is emulated: no speed-ups"]


def test_one_emulated_run_takes_the_speed_of_its_whole_row() -> None:
    tf32 = arm("tf32", VALUES)
    tf32[2] = replace(tf32[2], numerics="emulated")
    runs = arm("fp32", VALUES) + tf32

    row = compare(runs, curves(runs, STEP_S)).cells[0].rows[1]

    assert (row.numerics, row.speed) == ("mixed", None)
    assert "native and emulated runs mixed: no speed" in texts(row)


def test_a_program_that_proves_no_emulation_has_no_speed_and_the_row_says_why() -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES, numerics="unproven", precision_effective=None)

    row = compare(runs, curves(runs, STEP_S)).cells[0].rows[1]

    assert (row.numerics, row.speed) == ("unproven", None)
    assert "numerics unproven: no speed" in texts(row)


def test_what_is_mixed_in_a_row_is_named() -> None:
    tf32 = arm("tf32", VALUES)
    tf32[2], tf32[3] = replace(tf32[2], numerics="unproven"), replace(tf32[3], numerics="emulated")

    row = compare(arm("fp32", VALUES) + tf32, {}).cells[0].rows[1]

    assert (row.numerics, row.speed) == ("mixed", None)
    assert "native, emulated and unproven runs mixed: no speed" in texts(row)


def test_the_step_times_of_emulated_runs_do_not_move_the_window_of_the_others() -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES, numerics="emulated")
    times = curves(runs, STEP_S)
    times |= {r.uid: times[r.uid][:30] for r in runs if r.precision == "tf32"}

    cell = compare(runs, times).cells[0]

    assert (cell.steady_from_step, cell.steady_to_step) == (50, 99)


def test_a_row_with_speed_that_is_not_native_cannot_be_built() -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES)
    row = compare(runs, curves(runs, STEP_S)).cells[0].rows[1]

    with pytest.raises(AssertionError, match="no speed"):
        replace(row, numerics="emulated")


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(["native", "emulated", "unproven"]), min_size=5, max_size=5),
    st.lists(st.sampled_from(["native", "emulated", "unproven"]), min_size=5, max_size=5),
    st.sampled_from(["fp32", "tf32"]),
    st.booleans(),
)
def test_no_speed_ever_comes_from_a_run_that_was_not_native(
    first: list[str],
    second: list[str],
    reference: str,
    by_precision: bool,  # noqa: FBT001
) -> None:
    runs = [
        replace(r, numerics=kind)
        for precision, kinds in (("fp32", first), ("tf32", second))
        for r, kind in zip(arm(precision, VALUES), kinds, strict=True)
    ]
    by = "precision" if by_precision else "experiment"
    if not by_precision:
        runs = [
            replace(
                r, params={**r.params, "experiment": r.precision, "precision.name": "x"}, precision_effective="fp32"
            )
            for r in runs
        ]

    cell = compare(runs, curves(runs, STEP_S), ComparisonRequest(by=by, reference=reference)).cells[0]

    for row, kinds in ((row_of("fp32", cell.rows), first), (row_of("tf32", cell.rows), second)):
        assert (row.speed is None) == (set(kinds) != {"native"})
    if set(first + second) != {"native"}:
        assert all(row.speed is None or row.speed.speedup is None for row in cell.rows)


def test_every_time_of_a_row_is_kept_in_its_speed() -> None:
    times = {"step_ms", "step_ms_p5", "step_ms_p95", "samples_per_s", "speedup", "speedup_ci95", "wall_s"}

    assert times <= {field.name for field in fields(Speed)}
    assert not times & {field.name for field in fields(Row)}


def test_a_precision_that_was_not_what_was_asked_for_is_flagged() -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES, precision_effective="fp32")

    row = compare(runs, {}).cells[0].rows[1]

    assert row.precision_effective == ("fp32",)
    assert "tf32 asked for in 5 of 5 runs, measured fp32" in texts(row)
    assert "no precisions are compared here: both arms were, measured fp32" in texts(row)


@pytest.mark.parametrize("level", ["fp32", "tf32"])
def test_an_arm_that_was_not_what_was_asked_for_gets_no_verdict(level: str) -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES)
    runs = [replace(run, precision_effective="bf16") if run.precision == level else run for run in runs]

    row = compare(runs, {}, ComparisonRequest(margin=0.5)).cells[0].rows[1]

    assert row.verdict == "not as requested"


@pytest.mark.parametrize("level", ["fp32", "tf32"])
@pytest.mark.parametrize("word", ["not used(amp_bf16)", "mixed(87 % tf32, 13 % fp32: classifier)"])
def test_an_arm_whose_programs_did_something_else_gets_neither_verdict_nor_speed(level: str, word: str) -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES)
    facts = {"precision_evidence": "observed", "precision_probed": level}
    runs = [
        replace(run, precision_effective=word, facts={**run.facts, **facts}) if run.precision == level else run
        for run in runs
    ]

    rows = compare(runs, curves(runs, STEP_S), ComparisonRequest(margin=0.5)).cells[0].rows

    assert rows[1].verdict == "not as requested"
    assert all(row.speed is None or row.speed.speedup is None for row in rows)
    impostor = row_of(level, rows)
    assert impostor.speed is None
    assert f"{level} asked for in 5 of 5 runs, measured {word}" in texts(impostor)
    assert "not as requested: no speed" in texts(impostor)


@pytest.mark.parametrize("level", ["fp32", "tf32"])
@pytest.mark.parametrize("word", ["unknown", "not observed"])
def test_an_arm_of_which_too_little_was_seen_is_not_proven(level: str, word: str) -> None:
    runs = arm("fp32", VALUES) + arm("tf32", [value + 0.001 * at for at, value in enumerate(VALUES)])
    runs = [replace(run, precision_effective=word) if run.precision == level else run for run in runs]

    rows = compare(runs, {}, ComparisonRequest(margin=0.5)).cells[0].rows

    assert rows[1].verdict == "not proven"
    assert f"precision is {word}" in texts(row_of(level, rows))


def test_a_verdict_on_probes_alone_says_that_the_programs_were_not_observed() -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES)
    runs[-1] = replace(runs[-1], facts={**runs[-1].facts, "precision_evidence": "probed"})
    row = compare(runs, {}, ComparisonRequest(margin=0.5)).cells[0].rows[1]

    assert row.verdict == "identical"
    assert "precision of 1 of 5 runs is that of a probe: the program's own products were not observed" in texts(row)


@pytest.mark.parametrize(("to", "is_flagged"), [(2, True), (149, True), (150, False), (300, False)])
def test_a_program_that_went_on_for_longer_than_it_was_observed_is_flagged(to: int, *, is_flagged: bool) -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES)
    runs[-1] = replace(runs[-1], facts={**runs[-1].facts, "precision_observed_to_step": to, "precision_steps": 300})
    row = compare(runs, {}, ComparisonRequest(margin=0.5)).cells[0].rows[1]

    assert any(f"was observed to step {to} of 300, and not after it" in flag for flag in texts(row)) == is_flagged


def test_mixed_effective_precisions_within_a_row_are_flagged() -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES)
    runs[-1] = replace(runs[-1], precision_effective="mixed(conv=tf32, matmul=fp32, parameters=float32)")

    with pytest.raises(ComparisonError, match=r"precision_effective: .*mixed"):
        compare(runs, {})
    row = compare(runs, {}, ComparisonRequest(allow=("precision_effective",))).cells[0].rows[1]

    assert len(row.precision_effective) == 2
    assert any("differs within the arm" in flag for flag in texts(row))
    assert any("asked for in 1 of 5 runs, measured mixed(conv=tf32" in flag for flag in texts(row))


def test_a_precision_nobody_measured_is_not_proven() -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES, precision_effective=None)

    row = compare(runs, {}).cells[0].rows[1]

    assert row.precision_effective == ("not proven",)
    assert "precision was not measured" in texts(row)


def test_arms_that_agree_to_the_last_bit_raise_the_question_whether_they_differ() -> None:
    row = compare(arm("fp32", VALUES) + arm("tf32", VALUES), {}).cells[0].rows[1]

    assert row.verdict == "identical"
    assert any("really compute different things" in flag for flag in texts(row))


@pytest.mark.parametrize(("value", "is_asked"), [(4.275, True), (1.0, False), (0.0, False), (100.0, False)])
def test_seeds_that_change_nothing_raise_the_question_whether_they_reach_the_program(
    value: float, *, is_asked: bool
) -> None:
    rows = compare(arm("fp32", [value] * 3) + arm("tf32", [value] * 3), {}).cells[0].rows

    asked = "the same value in all 3 seeds, bit for bit: does the program take its seed?"
    assert [asked in texts(row) for row in rows] == [is_asked, is_asked]
    assert any("really compute different things" in flag for flag in texts(rows[1]))


def test_seeds_of_which_one_differs_are_not_asked_about() -> None:
    rows = compare(arm("fp32", [4.2, 4.2, 4.3]) + arm("tf32", VALUES), {}).cells[0].rows

    assert not any("does the program take its seed" in flag for row in rows for flag in texts(row))


def test_precisions_are_listed_in_hpcmls_order_with_fp32_first() -> None:
    runs = [r for p in ("fp8_e4m3", "amp_bf16", "tf32", "fp64", "fp32") for r in arm(p, VALUES)]

    rows = compare(runs, {}).cells[0].rows

    assert [row.level for row in rows] == ["fp32", "fp64", "tf32", "amp_bf16", "fp8_e4m3"]


@pytest.mark.parametrize("n", [2, 3, 4])
def test_few_seeds_are_only_indicative(n: int) -> None:
    rows = compare(arm("fp32", VALUES[:n]) + arm("tf32", VALUES[:n]), {}).cells[0].rows

    enough = "too few for a verdict" if n < 3 else "indicative only"
    assert all(f"{n} seeds: {enough}, take 5" in texts(row) for row in rows)
