"""What a comparison of precisions must never pretend."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import arm, curves, texts

from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.result import ComparisonRequest, Row

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


def test_a_precision_nobody_measured_is_not_proven() -> None:
    runs = arm("fp32", VALUES) + arm("tf32", VALUES, precision_effective=None)

    row = compare(runs, {}).cells[0].rows[1]

    assert row.precision_effective == ("not proven",)
    assert "precision was not measured" in texts(row)


@pytest.mark.parametrize(("value", "is_asked"), [(4.275, True), (1.0, False), (0.0, False), (100.0, False)])
def test_seeds_that_change_nothing_raise_the_question_whether_they_reach_the_program(
    value: float, *, is_asked: bool
) -> None:
    rows = compare(arm("fp32", [value] * 3) + arm("tf32", [value] * 3), {}).cells[0].rows

    asked = "the same value in all 3 seeds, bit for bit: does the program take its seed?"
    assert [asked in texts(row) for row in rows] == [is_asked, is_asked]
    assert any("really compute different things" in flag for flag in texts(rows[1]))


def test_precisions_are_listed_in_hpcmls_order_with_fp32_first() -> None:
    runs = [r for p in ("fp8_e4m3", "amp_bf16", "tf32", "fp64", "fp32") for r in arm(p, VALUES)]

    rows = compare(runs, {}).cells[0].rows

    assert [row.level for row in rows] == ["fp32", "fp64", "tf32", "amp_bf16", "fp8_e4m3"]
