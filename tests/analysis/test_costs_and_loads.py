from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from recorded_runs import arm, curves, ratio_of, run, summary, texts

from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.result import ComparisonRequest, Cost, Load, Row
from hpcml.analysis.rates import attained, samples_per_step
from hpcml.analysis.steady import SteadyState, Window
from hpcml.model.records import Point, RunRecord, Usage, Work

VALUES = [0.910, 0.913, 0.908, 0.912, 0.911]
STEP_S = {"fp32": 0.020, "tf32": 0.010}
GPU = {"gpu_model": "NVIDIA A100-SXM4-80GB"}
USAGE = Usage(gpus=2, gpu_s=7200.0, energy_j=64_000.0, energy_method="counter", energy_scope="gpu", mean_power_w=300.0)
STEADY = SteadyState(
    median_s=0.01,
    mean_s=0.01,
    p5_s=0.009,
    p95_s=0.011,
    n=50,
    window=Window(from_step=50, to_step=99),
)


def measured(precision: str, energy_share: float = 1.0, **usage: Any) -> list[RunRecord]:  # noqa: ANN401
    runs = arm(precision, VALUES, facts=GPU)
    return [
        replace(
            r,
            usage=replace(USAGE, energy_j=64_000.0 * energy_share, **usage),
            metrics={**r.metrics, "step_time_s": summary("step_time_s", 0.01, n=100)},
        )
        for r in runs
    ]


def rows_of(runs: list[RunRecord], **more: Any) -> tuple[Row, ...]:  # noqa: ANN401
    return compare(runs, curves(runs, STEP_S), ComparisonRequest(**more)).cells[0].rows


def cost_of(row: Row) -> Cost:
    assert row.cost is not None
    return row.cost


def load_of(row: Row) -> Load:
    assert row.load is not None
    return row.load


def test_what_a_row_took_is_known_for_the_run_and_for_a_sample() -> None:
    reference, row = rows_of(measured("fp32") + measured("tf32", 0.5))

    found = cost_of(reference)
    assert (found.gpu_hours, found.energy_kj, found.energy_method, found.energy_scope) == (2.0, 64.0, "counter", "gpu")
    assert found.energy_per_sample_j == pytest.approx(64_000 / (64 * 100))
    assert (found.n, found.energy_ratio) == (5, None)
    assert cost_of(row).energy_ratio == pytest.approx(0.5)
    assert cost_of(row).energy_ratio_ci95 is None  # every run drew the same


def test_swapping_reference_and_arm_turns_the_ratio_of_energies_over() -> None:
    runs = measured("fp32") + measured("tf32", 0.5)

    there, back = rows_of(runs)[1], rows_of(runs, reference="tf32")[1]

    assert cost_of(there).energy_ratio == pytest.approx(0.5)
    assert cost_of(back).energy_ratio == pytest.approx(2.0)


def test_no_row_that_was_not_all_native_has_a_cost_or_a_load() -> None:
    emulated = [replace(r, numerics="emulated") for r in measured("tf32")]

    reference, row = rows_of(measured("fp32") + emulated)

    assert (row.cost, row.load) == (None, None)
    assert reference.cost is not None


def test_energy_is_not_invented() -> None:
    reference, row = rows_of(measured("fp32") + measured("tf32", energy_method=None, energy_scope=None))
    without = [replace(r, usage=replace(USAGE, energy_j=None, energy_method=None)) for r in measured("tf32")]

    unknown = cost_of(rows_of(measured("fp32") + without)[1])

    assert (unknown.energy_kj, unknown.energy_per_sample_j, unknown.energy_ratio, unknown.n) == (None, None, None, 0)
    assert cost_of(row).energy_method is None
    assert cost_of(reference).co2_g is None
    assert rows_of(arm("fp32", VALUES) + arm("tf32", VALUES))[1].cost is None


def test_co2_of_two_factors_is_not_averaged() -> None:
    one = measured("fp32", co2_g=5.0, co2_source="400 g/kWh, A")
    two = measured("tf32", co2_g=5.0, co2_source="400 g/kWh, A")
    two[0] = replace(two[0], usage=replace(USAGE, co2_g=1.0, co2_source="80 g/kWh, B"))

    reference, row = rows_of(one + two)

    assert (cost_of(reference).co2_g, cost_of(reference).co2_source) == (5.0, "400 g/kWh, A")
    assert (cost_of(row).co2_g, cost_of(row).co2_source) == (None, None)


def test_energy_that_may_be_doubted_is_flagged() -> None:
    tf32 = measured("tf32", energy_disagrees=True, incomplete="node 2 was not sampled")
    tf32[0] = replace(tf32[0], usage=replace(USAGE, energy_j=None))

    flags = " | ".join(texts(rows_of(measured("fp32") + tf32)[1]))

    assert "counter and integral of power disagree by more than 5 % (4 of 5 runs)" in flags
    assert "energy: not known of 1 of 5 runs" in flags
    assert "not all was measured beside 4 of 5 runs: node 2 was not sampled" in flags


def test_a_device_does_its_share_of_the_work_and_is_measured_against_the_measured_precision() -> None:
    work = Work(devices=2, model_flops=3.12e12, samples=128.0, tokens=640.0)

    rate = attained(run("tf32", facts=GPU, work=work, precision_effective="fp32"), STEADY)

    assert rate.achieved_tflops == pytest.approx(156.0)
    assert (rate.peak_tflops, rate.peak_basis) == (19.5, "data sheet")  # of FP32, since that is what it was
    assert rate.mfu == pytest.approx(8.0)
    assert rate.samples_per_s == pytest.approx(12_800.0)
    assert rate.tokens_per_s == pytest.approx(64_000.0)
    assert attained(run("tf32", facts=GPU, work=work), STEADY).mfu == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"work": None}, "did not count its operations"),
        ({"facts": {"gpu_model": "Unheard Of 9000"}}, "no peak is known of Unheard Of 9000"),
        ({"facts": {"device": "cpu"}}, "no peak is known of a CPU"),
        ({"precision_effective": None}, "in precision not proven"),
        ({"precision_effective": "mixed(conv=tf32, matmul=fp32, parameters=float32)"}, "mixed"),
        ({"numerics": "emulated"}, "emulated in precision tf32"),
    ],
)
def test_where_there_is_no_share_of_the_peak_the_reason_is_said(fields: dict[str, Any], reason: str) -> None:
    known: dict[str, Any] = {"facts": GPU, "work": Work(devices=1, model_flops=1e12)}

    rate = attained(run("tf32", **{**known, **fields}), STEADY)

    assert rate.mfu is None
    assert rate.why_no_mfu is not None
    assert reason in rate.why_no_mfu


def test_samples_are_those_that_the_program_counted_else_those_that_were_asked_for() -> None:
    assert samples_per_step(run(work=Work(samples=32.0))) == 32.0
    assert samples_per_step(run()) == 64.0
    assert samples_per_step(run(params={"model.recipe": None})) is None
    assert samples_per_step(run(params={"model.recipe": None}, work=Work(samples=32.0))) == 32.0


def test_the_load_of_a_row_has_the_share_of_the_peak_and_flags_the_impossible() -> None:
    work = Work(devices=1, model_flops=6e11, peak_allocated_mb=8192.0, flops_doubt="LSTM counted as 0")
    runs = [replace(r, work=work) for r in measured("fp32") + measured("tf32")]

    reference, row = rows_of(runs)

    assert load_of(row).achieved_tflops == pytest.approx(60.0, rel=0.02)
    assert load_of(row).mfu == pytest.approx(60 / 156, rel=0.02)
    assert load_of(row).peak_memory_mb == 8192.0
    assert load_of(reference).mfu is not None
    assert any("more than the peak" in flag for flag in texts(reference))  # 30 of 19.5
    assert not any("more than the peak" in flag for flag in texts(row))
    assert "operations: LSTM counted as 0" in texts(row)


def test_waiting_for_data_comes_on_top_of_a_step_and_communication_is_in_it() -> None:
    runs = measured("fp32") + measured("tf32")
    steps = {r.uid: [Point(s, s / 10, 0.08) for s in range(100)] for r in runs}
    data = {r.uid: [Point(s, s / 10, 5.0 if s < 10 else 0.02) for s in range(100)] for r in runs}
    communication = {r.uid: [Point(s, s / 10, 0.02) for s in range(100)] for r in runs}

    row = (
        compare(runs, steps, more_curves={"data_time_s": data, "communication_time_s": communication}).cells[0].rows[1]
    )

    assert load_of(row).data_share == pytest.approx(0.2)  # the slow start is outside the window
    assert load_of(row).communication_share == pytest.approx(0.25)
    assert load_of(row).limited_by == "communication takes 25 % of a step"


def test_steps_skipped_by_loss_scaling_are_the_last_count() -> None:
    runs = [
        replace(r, metrics={**r.metrics, "skipped_steps": summary("skipped_steps", float(r.seed))})
        for r in measured("fp32") + measured("tf32")
    ]

    assert load_of(rows_of(runs)[1]).skipped_steps == 2.0


RATES = {"fp32": [100.0, 104.0, 98.0, 102.0, 101.0], "tf32": [800.0, 810.0, 790.0, 830.0, 806.0]}


def benchmarks(**more: Any) -> list[RunRecord]:  # noqa: ANN401
    """Return runs of products of matrices that timed no step, tf32 at the same energy in eight times the operations."""
    runs = []
    for precision, rates in RATES.items():
        for each, gflops in zip(arm(precision, VALUES, facts=GPU, **more), rates, strict=True):
            done = 5e5 if precision == "fp32" else 4e6
            metrics = {"gflops": summary("gflops", gflops), "total_gflop": summary("total_gflop", done)}
            settings = {**each.params, "model.recipe": "gemm", "objective.metric": "gflops", "objective.margin": None}
            runs.append(replace(each, metrics=metrics, params=settings, usage=USAGE))
    return runs


def test_the_speed_up_of_a_benchmark_is_the_ratio_of_its_rates() -> None:
    [cell] = compare(benchmarks(), {}).cells
    reference, row = cell.rows
    expected = ratio_of(RATES["tf32"], RATES["fp32"], pairs=True)

    assert row.speed is not None
    assert expected is not None
    assert (row.speed.speedup, row.speed.speedup_ci95) == expected
    assert row.speed.speedup == pytest.approx(7.99, abs=0.01)
    assert (row.speed.speedup_of, row.speed.speedup_paired, row.speed.n) == ("rates", True, 5)
    assert not any("step_time_s" in text for text in (*texts(reference), *texts(row)))
    assert load_of(row).achieved_tflops == pytest.approx(0.806)
    assert load_of(row).mfu == pytest.approx(0.806 / 156)


def test_an_operation_costs_an_eighth_where_eight_times_as_many_took_the_same() -> None:
    reference, row = compare(benchmarks(), {}).cells[0].rows

    assert cost_of(reference).energy_per_gflop_j == pytest.approx(64_000 / 5e5)
    assert cost_of(row).energy_per_gflop_j == pytest.approx(64_000 / 4e6)
    assert cost_of(row).energy_ratio == pytest.approx(1 / 8)
    assert cost_of(row).energy_per_sample_j is None


def test_emulated_benchmarks_have_neither_speed_up_nor_energy() -> None:
    _, row = compare(benchmarks(numerics="emulated"), {}).cells[0].rows

    assert (row.speed, row.cost, row.load) == (None, None, None)


def test_a_speed_that_a_program_reports_is_compared_as_one_and_a_rate_for_each_joule_is_not() -> None:
    values = {"fp32": [10.0, 11.0, 10.5], "tf32": [20.0, 22.0, 21.0]}
    for metric, speed_up in (("tokens_per_s", 2.0), ("tokens_per_j", None)):
        runs = [
            replace(each, metrics={metric: summary(metric, value)}, params={**each.params, "model.recipe": None})
            for precision, of in values.items()
            for each, value in zip(arm(precision, [0.9] * 3), of, strict=True)
        ]
        _, row = compare(runs, {}, ComparisonRequest(metric=metric)).cells[0].rows

        assert row.speed is not None
        assert row.speed.speedup == (None if speed_up is None else pytest.approx(speed_up))
