from __future__ import annotations

import itertools
from typing import Any

import pytest

from hpcml_client.observed import (
    NOT_OBSERVED,
    OBSERVED,
    PROBED,
    UNKNOWN,
    Row,
    Window,
    effective,
    name_observed,
    read_window,
    shares,
)
from hpcml_client.precisions import PRECISIONS

FP32 = {"float32": 1000.0}


def _window(
    *rows: tuple[str, str, str | None, float], step: int = 2, parameters: dict[str, float] | None = None
) -> Window:
    return Window(step=step, rows=tuple(Row(*row) for row in rows), parameters=parameters or FP32)


def _pure(form: str, *, step: int = 2, parameters: dict[str, float] | None = None) -> Window:
    return _window((form, "forward", "fc", 1.0), (form, "backward", "fc", 2.0), step=step, parameters=parameters)


@pytest.mark.parametrize("precision", [*PRECISIONS])
def test_a_program_that_did_what_was_asked_for_has_the_name_of_it(precision: str) -> None:
    form, dtype = PRECISIONS[precision].product, PRECISIONS[precision].parameters

    windows = [_pure(form, step=step, parameters={dtype: 9.0}) for step in (2, 900)]

    assert name_observed(windows, precision, dtype) == precision
    assert name_observed([Window(2, _pure(form).rows)], precision, dtype) == precision  # the probe told the dtype


@pytest.mark.parametrize(("asked", "form"), [*itertools.permutations(["fp32", "tf32", "amp_bf16", "fp64"], 2)])
def test_a_program_without_a_product_in_the_format_has_not_used_it(asked: str, form: str) -> None:
    wanted, dtype = PRECISIONS[form].product, PRECISIONS[form].parameters

    assert name_observed([_pure(wanted, parameters={dtype: 5.0})], asked) == f"not used({form})"


def test_the_type_of_the_parameters_tells_mixed_precision_from_sixteen_bits() -> None:
    assert name_observed([_pure("bf16", parameters={"bfloat16": 1000.0})], "amp_bf16") == "bf16"
    assert name_observed([_pure("bf16", parameters={"bfloat16": 950.0, "float32": 50.0})], "bf16") == "bf16"
    halves = {"bfloat16": 500.0, "float32": 500.0}
    assert name_observed([_pure("bf16", parameters=halves)], "bf16") == "mixed(bf16, parameters mixed)"
    assert name_observed([_pure("fp32", parameters=halves)], "bf16") == "not used(fp32, parameters mixed)"


def test_half_of_a_model_is_told_with_the_layers_of_the_smaller_part() -> None:
    window = _window(
        ("bf16", "forward", "conv1", 29.0),
        ("bf16", "backward", "conv1", 58.0),
        ("fp32", "forward", "classifier", 4.0),
        ("fp32", "backward", "classifier", 9.0),
    )

    assert name_observed([window], "amp_bf16") == "mixed(87 % bf16, 13 % fp32: classifier)"
    assert name_observed([window], "own") == "mixed(87 % bf16, 13 % fp32: classifier)"
    assert name_observed([window], "tf32") == "not used(87 % bf16, 13 % fp32: classifier)"


def test_many_layers_are_counted() -> None:
    rows = [("fp32", "forward", f"block{at}", 1.0 + at) for at in range(5)]

    word = name_observed([_window(*rows, ("bf16", "forward", "head", 22.5))], "fp32")

    assert word == "mixed(60 % bf16, 40 % fp32: block4, block3 and 3 more)"


def test_a_backward_pass_of_its_own_is_told() -> None:
    window = _window(("tf32", "forward", "fc", 1.0), ("fp32", "backward", "fc", 2.0))

    assert name_observed([window], "tf32") == "mixed(67 % fp32: backward, 33 % tf32: forward)"


def test_two_percent_of_the_forward_pass_alone_are_mixed_and_half_a_percent_is_not() -> None:
    def word(share: float) -> str:
        rows = [("bf16", "forward", "a", 100 * (1 - share)), ("fp32", "forward", "b", 100 * share)]
        return name_observed([_window(*rows, ("bf16", "backward", "a", 200.0))], "amp_bf16")

    assert word(0.005) == "amp_bf16"
    assert word(0.04) == "mixed(99 % bf16, 1 % fp32: b)"


def test_little_of_all_that_is_much_of_a_pass_or_of_a_step_is_told() -> None:
    forward = ("bf16", "forward", "a", 1000.0)
    halved = _window(forward, ("bf16", "backward", "b", 4.0), ("fp32", "backward", "b", 5.0))
    last = [_window(forward), _window(("fp32", "forward", "a", 5.0), step=9)]

    assert name_observed([halved], "amp_bf16") == "mixed(over 99 % bf16: forward, under 1 % fp32: b)"
    assert name_observed([halved], "fp32") == "not used(over 99 % bf16: forward)"
    assert name_observed(last, "amp_bf16") == "mixed(over 99 % bf16: forward, under 1 % fp32: from step 9)"


def test_a_switch_in_the_middle_is_told_with_its_step() -> None:
    windows = [_pure("bf16", step=2), _pure("bf16", step=400), _pure("fp32", step=900)]

    assert name_observed(windows, "amp_bf16") == "mixed(67 % bf16: until step 400, 33 % fp32: from step 900)"
    assert name_observed(windows[::-1], "amp_bf16") == name_observed(windows, "amp_bf16")


def test_a_few_steps_in_the_middle_are_told_too() -> None:
    windows = [_pure("fp32"), _pure("tf32", step=9), _pure("tf32", step=20), _pure("fp32", step=50)]

    assert name_observed(windows, "fp32") == "mixed(50 % fp32, 50 % tf32: steps 9 to 20)"


def test_products_of_the_optimizer_are_no_part_of_an_arm_and_are_shown() -> None:
    muon = _window(("fp32", "forward", "fc", 1.0), ("fp32", "backward", "fc", 2.0), ("bf16", "optimizer", None, 50.0))

    assert name_observed([muon], "fp32") == "fp32"
    assert [(one.format, one.phase, round(one.share, 3)) for one in shares([muon])] == [
        ("bf16", "optimizer", 0.943),
        ("fp32", "backward", 0.038),
        ("fp32", "forward", 0.019),
    ]


@pytest.mark.parametrize(
    ("unknown", "word"),
    [
        ([], "fp32"),
        ([{"what": "x::y", "flops": 0.01}], "fp32"),
        ([{"what": "x::y", "flops": 0.4}], UNKNOWN),
        ([{"what": "x::y", "flops": None}], UNKNOWN),
        ([{"what": "x::y"}], UNKNOWN),
    ],
)
def test_one_percent_that_nobody_knows_makes_all_unknown(unknown: list[dict[str, Any]], word: str) -> None:
    rows = [{"format": "fp32", "phase": phase, "layer": None, "flops": 3} for phase in ("forward", "backward")]
    window = read_window({"step": 2, "rows": rows, "unknown": unknown, "parameters": FP32})

    assert window is not None
    assert name_observed([window], "fp32") == word


def test_without_any_product_nothing_is_known() -> None:
    assert name_observed([], "fp32") == UNKNOWN
    assert name_observed([_window()], "fp32") == UNKNOWN
    assert name_observed([_window(("bf16", "optimizer", None, 5.0))], "bf16") == UNKNOWN
    assert shares([_window()]) == []


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"step": "2", "rows": []},
        {"step": 2, "rows": {}},
        {"step": 2, "rows": [7]},
        {"step": 2, "rows": [{"format": "fp32", "phase": "forward", "flops": "many"}]},
        {"step": 2, "rows": [{"format": "fp32", "phase": "forward", "flops": -1}]},
        {"step": 2, "rows": [{"format": "fp32", "phase": "forward", "flops": float("inf")}]},
        {"step": 2, "rows": [{"format": None, "phase": "forward", "flops": 1}]},
        {"step": 2, "rows": [], "unknown": ["x"]},
    ],
)
def test_what_is_no_window_is_none(details: dict[str, Any]) -> None:
    assert read_window(details) is None


def test_a_window_says_whether_it_was_emulated_and_knows_layers_only_by_text() -> None:
    row = {"format": "tf32", "phase": "forward", "layer": "a" * 100, "flops": 1, "emulated": True}
    window = read_window({"step": 2, "rows": [row, {**row, "layer": 5, "emulated": 1}], "parameters": {"float32": "x"}})

    assert window is not None
    assert window.rows == (Row("tf32", "forward", "a" * 60, 1.0, emulated=True), Row("tf32", "forward", None, 1.0))
    assert window.parameters is None


def _effective(
    *, windows: tuple[Window, ...] = (), has_observer: bool, is_expected: bool, probed: str | None
) -> object:
    return effective(
        windows,
        requested="tf32",
        probed=probed,
        parameters="float32",
        has_observer=has_observer,
        is_expected=is_expected,
    )


def test_what_the_program_did_goes_before_what_the_device_can_do() -> None:
    window = (_pure("fp32"),)

    assert _effective(windows=window, has_observer=True, is_expected=False, probed="tf32") == (
        "not used(fp32)",
        OBSERVED,
    )
    assert _effective(has_observer=True, is_expected=False, probed="tf32") == (UNKNOWN, OBSERVED)
    assert _effective(has_observer=False, is_expected=False, probed="tf32") == ("tf32", PROBED)
    assert _effective(has_observer=False, is_expected=True, probed=None) == (NOT_OBSERVED, None)
    assert _effective(has_observer=False, is_expected=False, probed=None) == (None, None)


def _on_gpu(tf32: float, allowed: float, fp32: float = 0.0) -> list[Window]:
    shares = {"tf32": tf32, "tf32 allowed": allowed, "fp32": fp32}
    return [
        _window(*((form, phase, form, share) for form, share in shares.items() for phase in ("forward", "backward")))
    ]


@pytest.mark.parametrize(
    ("windows", "words"),
    [
        # a permission that most products show to be used
        (_on_gpu(80, 20), {"tf32": "tf32", "own": "tf32", "fp32": "not used(tf32)", "amp_bf16": "not used(tf32)"}),
        (_on_gpu(50, 50), {"tf32": "tf32"}),
        # one that few show: for TF32 that is not enough, and for FP32 too much
        (_on_gpu(40, 60), {"tf32": UNKNOWN, "fp32": "mixed(60 % tf32 allowed, 40 % tf32: tf32)"}),
        (_on_gpu(0, 100), {"tf32": UNKNOWN, "own": "tf32 allowed", "fp32": "tf32 allowed"}),
        (_on_gpu(0, 40, 60), {"fp32": "mixed(60 % fp32, 40 % tf32 allowed: tf32 allowed)"}),
        (_on_gpu(50, 40, 10), {"tf32": "mixed(50 % tf32, 40 % tf32 allowed: tf32 allowed, 10 % fp32: fp32)"}),
    ],
)
def test_tf32_is_a_permission(windows: list[Window], words: dict[str, str]) -> None:
    assert {asked: name_observed(windows, asked, "float32") for asked in words} == words
