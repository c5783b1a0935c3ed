from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from recorded_runs import run
from scaling_runs import STEPS, constant

from hpcml.analysis import limits
from hpcml.analysis.attained import Attainment
from hpcml.analysis.limits import Signs, find_limits
from hpcml.analysis.peak import attain
from hpcml.analysis.steady import StepCurves
from hpcml.errors import ComparisonError
from hpcml.model.records import MetricSummary, Point, RunRecord, Usage, Work

A100 = {"gpu_model": "NVIDIA A100-SXM4-40GB"}
STEP_S = 0.1
NO_CURVES: dict[str, dict[str, Any]] = {"step_s": {}, "communication_s": {}, "waiting_s": {}}
WORK = Work(devices=4, model_flops=4 * 15.6e12 * STEP_S, samples=64, tokens=None)  # 15.6 TFLOP/s of each device


def look(*runs: RunRecord) -> Attainment:
    curves = {each.uid: constant(STEP_S) for each in runs}
    return attain(runs, StepCurves(step_s=curves, communication_s={}, waiting_s={}))


def trained(precision: str = "tf32", seed: int = 0, **fields: Any) -> RunRecord:  # noqa: ANN401
    known: dict[str, Any] = {"facts": A100, "work": WORK}
    return run(precision, seed, **{**known, **fields})


def test_a_device_s_share_of_the_work_is_set_against_its_dense_peak() -> None:
    [row] = look(*(trained(seed=seed) for seed in range(5))).attained

    assert (row.n, row.devices, row.precision) == (5, 4, "tf32")
    assert row.achieved_tflops == pytest.approx(15.6)
    assert row.peak_tflops == 156  # not 312, which is with sparsity
    assert row.mfu == pytest.approx(0.1)
    assert row.samples_per_s == pytest.approx(640)
    assert row.model_gflops_per_step == pytest.approx(4 * 1560)
    assert row.ridge_flop_per_byte == pytest.approx(156e12 / 1555e9, rel=1e-3)
    assert row.flags == ()


def test_the_peak_is_that_of_the_precision_that_was_measured() -> None:
    fp32, amp = trained("fp32"), trained("amp_bf16")
    mislabelled = trained("tf32", seed=7, precision_effective="fp32")

    rows = look(fp32, amp, mislabelled).attained

    peaks = [(row.precision, row.peak_tflops, tuple(map(str, row.flags))) for row in rows]
    assert ("amp_bf16", 312, ("1 seed: indicative only, take 5",)) in peaks
    assert ("fp32", 19.5, ("1 seed: indicative only, take 5", "requested as tf32, measured fp32")) in peaks


CPU = {"device": "cpu", "gpu_model": None}


def test_a_cpu_has_a_rate_and_no_peak_but_one_that_is_given() -> None:
    one = trained("fp32", facts=CPU)
    [row] = look(one).attained
    [given] = attain(
        [one], StepCurves(**{**NO_CURVES, "step_s": {one.uid: constant(STEP_S)}}), {"fp32": 31.2, "fp64": 1.0}
    ).attained

    assert row.achieved_tflops is not None
    assert (row.peak_tflops, row.mfu) == (None, None)
    assert row.why_no_mfu == "no peak is known of a CPU: measure it by model=gemm, or give --cpu-peak"
    assert (given.peak_tflops, given.peak_basis, given.why_no_mfu) == (31.2, "given", None)
    assert given.mfu == pytest.approx(0.5)


def benchmark(recipe: str, seed: int, *, last: float, best: float, **fields: Any) -> RunRecord:  # noqa: ANN401
    gflops = replace(run().metrics["val_accuracy"], name="gflops", last=last, max=best)
    known = {"work": None, "metrics": {"gflops": gflops}, "params": {"model.recipe": recipe}, "uid": f"{recipe}{seed}"}
    return run("fp32", seed, **{**known, **fields})


def test_a_cpu_is_measured_by_the_fastest_product_on_the_same_one() -> None:
    gemms = [benchmark("gemm", seed, last=60.0, best=best, facts=CPU) for seed, best in enumerate([70.0, 80.0])]
    slower = benchmark("gemm", 2, last=99.0, best=99.0, facts={**CPU, "threads": 16})
    in_fp64 = benchmark("gemm", 3, last=99.0, best=99.0, facts=CPU, precision_effective="fp64")
    emulated = benchmark("gemm", 4, last=99.0, best=99.0, facts=CPU, numerics="emulated")
    lu = benchmark("lu", 0, last=20.0, best=90.0, facts=CPU)

    rows = attain([*gemms, slower, in_fp64, emulated, lu], StepCurves(**NO_CURVES)).attained

    of_lu = next(row for row in rows if row.where["model.recipe"] == "lu")
    assert (of_lu.peak_tflops, of_lu.peak_basis) == (0.08, "measured by model=gemm")
    assert of_lu.mfu == pytest.approx(0.25)


def test_runs_without_a_rate_are_counted_by_their_reasons() -> None:
    good, emulated = trained(), trained(seed=1, numerics="emulated")

    found = look(good, emulated)

    assert [flag.text for flag in found.flags] == [
        "not counted: numerics emulated: its times say nothing about the device (1 run)"
    ]
    with pytest.raises(ComparisonError, match=r"no run of 1 has a rate: numerics emulated"):
        look(emulated)
    with pytest.raises(ComparisonError, match="step_time_s was not reported"):
        attain([good], StepCurves(step_s={}, communication_s={}, waiting_s={}))


def test_the_two_roofs_are_told_apart_by_what_was_done_for_a_byte() -> None:
    usage = Usage(gpus=4, util_percent=99, dram_percent=80)
    [memory] = look(trained(usage=usage)).attained

    assert memory.intensity_flop_per_byte == pytest.approx(15.6e12 / (0.8 * 1555e9), rel=1e-3)
    assert memory.roof_tflops == pytest.approx(15.6 / 0.8, rel=1e-3)
    assert memory.limits[0].startswith("the memory's bandwidth: it is read or written 80 %")
    [arithmetic] = look(trained(usage=Usage(gpus=4, dram_percent=5))).attained
    assert arithmetic.roof_tflops == 156


def test_waiting_for_input_is_a_share_of_the_time_from_step_to_step() -> None:
    one = trained()
    stalls = [Point(step, step / 10, 1.0 if step % 10 == 0 else 0.0) for step in range(STEPS)]  # as long as ten steps
    for waits in (constant(STEP_S), stalls):
        curves = StepCurves(step_s={one.uid: constant(STEP_S)}, communication_s={}, waiting_s={one.uid: waits})
        [row] = attain([one], curves).attained

        assert row.data_share == pytest.approx(0.5)
        assert row.limits == ("waits for input 50 % of the time",)


@pytest.mark.parametrize("recipe", ["gemm", "lu", None])
def test_a_benchmark_has_the_rate_that_it_measured(recipe: str | None) -> None:
    measured = {"gflops": replace(run().metrics["val_accuracy"], name="gflops", last=78_000.0)}
    one = trained(work=None, metrics=measured, params={"model.recipe": recipe})
    nothing = StepCurves(step_s={}, communication_s={}, waiting_s={})

    if recipe is None:  # of a program of the user's own nothing says what its gflops are of
        with pytest.raises(ComparisonError, match="step_time_s was not reported"):
            attain([one], nothing)
        return
    [row] = attain([one], nothing).attained

    assert (row.step_ms, row.achieved_tflops, row.peak_tflops, row.mfu) == (None, 78, 156, 0.5)
    assert row.why_no_mfu is None


def test_steps_that_loss_scaling_skipped_are_told() -> None:
    skipped = MetricSummary(
        name="skipped_steps", n=STEPS, n_nonfinite=0, first=0, last=10, last_step=40,
        min=0, min_step=1, max=10, max_step=40, mean=5,
    )  # fmt: skip
    [row] = look(trained("amp_fp16", metrics={"skipped_steps": skipped})).attained

    assert row.limits == ("loss scaling throws away 25 % of the steps",)


def test_more_than_the_peak_is_no_success_but_a_mistake() -> None:
    [row] = look(trained(work=Work(devices=1, model_flops=200e12 * STEP_S, flops_doubt="2 modules of 0"))).attained

    assert any("more than the peak" in flag.text for flag in row.flags)
    assert "operations: 2 modules of 0" in {flag.text for flag in row.flags}


def test_what_others_published_of_the_same_kind_of_gpu_stands_beside_and_changes_nothing() -> None:
    found = look(*(trained(seed=seed) for seed in range(3)))

    assert {figure.architecture for figure in found.published} == {"ampere_ga100"}
    assert not look(trained(facts={"gpu_model": "Unheard Of"})).published


RULES = {
    "data_share": (limits.WAITING, "waits for input"),
    "communication_share": (limits.COMMUNICATION, "communication takes"),
    "throttled_power_share": (limits.THROTTLED, "the power limit lowers"),
    "throttled_thermal_share": (limits.THROTTLED, "heat lowers"),
    "skipped_share": (limits.SKIPPED, "loss scaling throws away"),
    "dram_percent": (limits.DRAM_FROM, "the memory's bandwidth"),
}


@pytest.mark.parametrize("sign", RULES)
def test_a_rule_speaks_from_its_threshold_on(sign: str) -> None:
    threshold, words = RULES[sign]

    assert find_limits(replace(Signs(), **{sign: threshold}))[0].startswith(words)  # type: ignore[arg-type]
    assert find_limits(replace(Signs(), **{sign: threshold * 0.99})) == ()  # type: ignore[arg-type]


def test_what_was_not_measured_triggers_nothing() -> None:
    assert find_limits(Signs()) == ()
    assert find_limits(Signs(step_s=0.001, mfu=0.01, uses_tensor_cores=True)) == ()


def test_an_idle_gpu_is_explained_by_what_is_known_of_the_steps() -> None:
    assert "launching kernels takes longer" in find_limits(Signs(util_percent=30, step_s=0.005))[0]
    assert "the host is slow" in find_limits(Signs(util_percent=30, step_s=0.5))[0]
    assert find_limits(Signs(util_percent=30, step_s=0.5, data_share=0.6)) == ("waits for input 60 % of the time",)


def test_small_kernels_keep_a_gpu_busy_and_empty() -> None:
    measured = find_limits(Signs(util_percent=98, sm_active_percent=12, step_s=0.004))
    guessed = find_limits(Signs(util_percent=98, step_s=0.004, mfu=0.02))

    assert measured[0].startswith("small kernels: one runs 98 % of the time, on 12 % of the multiprocessors, and steps")
    assert "was not measured" in guessed[0]
    assert find_limits(Signs(util_percent=98, step_s=0.4, mfu=0.02)) == ()


def test_full_multiprocessors_without_tensor_cores_are_told_only_of_precisions_that_use_them() -> None:
    signs = {"util_percent": 99.0, "sm_active_percent": 90.0, "tensor_percent": 2.0}

    assert find_limits(Signs(**signs, uses_tensor_cores=True)) == (
        "tensor cores work 2 % of the time only: most kernels do not use them",
    )
    assert find_limits(Signs(**signs, uses_tensor_cores=False)) == ()


def test_the_likeliest_limit_comes_first() -> None:
    signs = Signs(communication_share=0.4, data_share=0.2, throttled_power_share=0.9)

    assert [words.split()[0] for words in find_limits(signs)] == ["communication", "waits", "the"]
