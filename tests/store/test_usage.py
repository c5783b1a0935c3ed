"""What events say of a run's use of its GPUs and nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcml.model.records import Usage, Work
from hpcml.store.facts import Happening, JournalStart
from hpcml.store.usage import MEASURED, Carbon, fold_usage, fold_work

GPU: dict[str, Any] = {
    "uuid": "GPU-1",
    "scope": "gpu",
    "energy_j": 20_000.0,
    "energy_method": "counter",
    "energy_covered_s": 100.0,
    "energy_uncertainty_j": 25.0,
    "energy_disagrees": False,
    "mean_power_w": 200.0,
    "max_power_w": 250.0,
    "mean_util_percent": 90.0,
    "median_sm_mhz": 1500.0,
    "max_memory_mb": 1000.0,
    "max_temperature_c": 60.0,
    "throttle_power_s": 5.0,
    "samples": 100,
}
OF_NODE: dict[str, Any] = {
    "mapping": "CUDA_VISIBLE_DEVICES",
    "wall_s": 100.0,
    "data_until_s": 100.0,
    "host_cpu_s": 50.0,
}


def telemetry(*gpus: dict[str, Any], node: int = 0, attempt: int = 1, **of_node: Any) -> Happening:  # noqa: ANN401
    """One event as the agent of a node writes it."""
    energies = [gpu.get("energy_j") for gpu in {gpu.get("board", gpu["uuid"]): gpu for gpu in gpus}.values()]
    energy_j = None if None in energies or not energies else sum(energies)
    told = {**OF_NODE, "node": node, "gpus": len(gpus), "energy_j": energy_j}
    told |= {f"gpu{at}_{name}": value for at, gpu in enumerate(gpus) for name, value in gpu.items()}
    return happening("telemetry", {**told, **of_node}, node=node, attempt=attempt)


def happening(name: str, details: dict[str, Any], *, node: int = 0, attempt: int = 1, writer: str = "") -> Happening:
    writer = writer or f"agent{node or ''}"
    journal = JournalStart(file=f"{attempt}-{writer}.jsonl", writer=writer, attempt=attempt, t0=0.0)
    return Happening(journal=journal, ordinal=0, at=0.0, name=name, details=details)


def began(*, node: int = 0, attempt: int = 1) -> Happening:
    return happening("attempt_started", {"node": node}, node=node, attempt=attempt)


def gpu(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    return {**GPU, **changes}


def used(*happenings: Happening, counted: tuple[int, ...] = (1,), carbon: Carbon | None = None) -> Usage:
    usage = fold_usage(happenings, counted, carbon)
    assert usage is not None
    return usage


def test_sums_are_over_all_nodes_and_gpus() -> None:
    two = [gpu(), gpu(uuid="GPU-2", energy_j=30_000.0)]

    usage = used(telemetry(*two), telemetry(*two, node=1, host_cpu_s=7.0))

    assert (usage.gpus, usage.gpu_s) == (4, 400.0)
    assert (usage.energy_j, usage.energy_uncertainty_j, usage.energy_method) == (100_000.0, 100.0, "counter")
    assert (usage.mean_power_w, usage.max_power_w) == (250.0, 250.0)
    assert (usage.cpu_s, usage.incomplete, usage.energy_reason) == (57.0, None, None)


def test_only_attempts_whose_work_counts_are_added_up() -> None:
    attempts = [telemetry(gpu(), attempt=attempt) for attempt in (0, 1, 2)]

    usage = used(*attempts, counted=(1, 2))

    assert (usage.energy_j, usage.gpu_s, usage.gpus) == (40_000.0, 200.0, 1)


def test_a_run_that_nothing_was_measured_of_has_no_usage() -> None:
    assert fold_usage([began()], (1,)) is None
    assert fold_usage([telemetry(gpu(), attempt=1)], (2,)) is None


def test_a_node_that_told_nothing_leaves_energy_and_time_unknown_and_is_named() -> None:
    usage = used(began(), began(node=1), telemetry(gpu()))

    assert (usage.energy_j, usage.energy_uncertainty_j, usage.gpu_s, usage.cpu_s) == (None, None, None, None)
    assert usage.energy_reason == usage.incomplete == "node 1, attempt 1: told nothing (yet)"
    assert usage.mean_power_w == 200.0  # of what was measured


def test_an_attempt_whose_sampler_was_killed_has_no_energy_and_the_reason() -> None:
    half = gpu(energy_j=10_000.0, energy_covered_s=50.0)

    usage = used(telemetry(half, data_until_s=50.0, trouble="the sampler has ended: SIGKILL"))

    assert usage.energy_j is None
    assert usage.energy_reason == "gpu0 of node 0, attempt 1: no data for 50 of 100 s"
    assert usage.incomplete == "node 0, attempt 1: the sampler has ended: SIGKILL"
    assert usage.throttled_power_share == pytest.approx(5 / 50)  # of the time with samples


def test_a_gpu_without_energy_leaves_that_of_the_run_unknown() -> None:
    blind = gpu(uuid="GPU-2", energy_j=None, energy_reason="Not Supported", mean_power_w=None)

    usage = used(telemetry(gpu(), blind))

    assert (usage.energy_j, usage.energy_reason) == (None, "gpu1 of node 0, attempt 1: Not Supported")


def test_instances_of_one_board_count_its_energy_once() -> None:
    mig = [gpu(uuid=f"MIG-{at}", board="GPU-1", scope="board", scope_reason="a MIG instance") for at in range(3)]

    usage = used(telemetry(*mig))

    assert (usage.gpus, usage.gpu_s) == (3, 300.0)
    assert (usage.energy_j, usage.energy_uncertainty_j, usage.energy_scope) == (20_000.0, 25.0, "board")
    assert usage.energy_reason == "a MIG instance"


def test_the_worst_scope_and_every_method_are_told() -> None:
    shared = gpu(uuid="GPU-2", scope="shared", scope_reason="2 other processes", energy_method="integral")

    usage = used(telemetry(gpu(), shared))

    assert (usage.energy_scope, usage.energy_method, usage.energy_reason) == ("shared", "mixed", "2 other processes")


def test_the_gpu_hours_of_gpus_that_may_be_anybodys_are_not_known() -> None:
    usage = used(telemetry(gpu(scope="shared"), mapping="shared/unknown", mapping_reason="no variable names them"))

    assert usage.gpu_s is None
    assert "no variable names them" in str(usage.incomplete)


def test_a_node_without_nvml_beside_one_with_it_leaves_the_energy_unknown() -> None:
    usage = used(telemetry(gpu()), telemetry(node=1, mapping="none shown", mapping_reason="no driver"))

    assert (usage.energy_j, usage.gpu_s) == (None, None)
    assert usage.energy_reason == "node 1, attempt 1: no driver"


def test_a_run_on_the_cpu_has_cpu_time_and_no_energy() -> None:
    usage = used(telemetry(mapping="the run uses none", host_max_memory_mb=80.0))

    assert (usage.gpus, usage.gpu_s, usage.energy_j, usage.energy_reason) == (0, None, None, None)
    assert (usage.cpu_s, usage.max_host_memory_mb) == (50.0, 80.0)


def test_means_are_weighted_by_samples() -> None:
    usage = used(telemetry(gpu(mean_util_percent=100.0, samples=300), gpu(uuid="GPU-2", mean_util_percent=20.0)))

    assert usage.util_percent == pytest.approx(80.0)
    assert usage.tensor_percent is None


def test_heat_throttles_for_as_long_as_the_longest_of_its_counters_says() -> None:
    hot = gpu(throttle_thermal_s=10.0, throttle_sw_thermal_s=12.0, throttle_hw_thermal_s=0.0)

    usage = used(telemetry(hot, gpu(uuid="GPU-2")))

    assert usage.throttled_thermal_share == pytest.approx(0.12)  # the other GPU tells none of them
    assert usage.throttled_power_share == pytest.approx(0.05)


def test_where_no_counter_tells_the_share_of_samples_does() -> None:
    old = gpu(mean_throttled_power_percent=30.0, mean_throttled_hw_percent=50.0)
    del old["throttle_power_s"]

    usage = used(telemetry(old, gpu(uuid="GPU-2", throttle_power_s=10.0)))

    assert usage.throttled_power_share == pytest.approx(0.2)
    assert usage.throttled_thermal_share is None  # a slowdown by hardware may be something else than heat


def test_the_lowest_power_limit_counts() -> None:
    facts = [happening("facts", {"gpu_power_limit_w": limit}, node=node) for node, limit in enumerate((400.0, 300.0))]

    assert used(telemetry(gpu()), *facts).power_limit_w == 300.0


def test_a_disagreement_is_told_with_its_size() -> None:
    usage = used(telemetry(gpu(energy_disagrees=True, energy_disagreement=0.12)))

    assert usage.energy_disagrees is True
    assert usage.energy_reason == "gpu0 of node 0, attempt 1: integral and counter differ by +12%"


def test_co2_is_energy_times_the_clusters_factor_and_says_of_what() -> None:
    carbon = Carbon(g_per_kwh=400.0, source="the site, 2025")

    usage = used(telemetry(gpu(energy_j=3.6e6)), carbon=carbon)

    assert (usage.co2_g, usage.co2_source) == (400.0, "GPU boards only, 400 g/kWh: the site, 2025")


@pytest.mark.parametrize("missing", ["energy", "factor"])
def test_co2_is_absent_where_energy_or_factor_is_not_known(missing: str) -> None:
    told = telemetry(gpu(energy_j=None if missing == "energy" else 1.0))

    usage = used(told, carbon=Carbon(g_per_kwh=1.0, source="x") if missing == "energy" else None)

    assert (usage.co2_g, usage.co2_source) == (None, None)


def test_work_is_the_last_that_was_told_and_memory_the_fullest_device_of_all() -> None:
    first = happening("work", {"devices": 2, "model_flops": 1e9, "samples": 64.0}, writer="rank0")
    again = happening("work", {"devices": 4, "model_flops": 2e9, "flops_doubt": "2 ops"}, attempt=2, writer="rank0")
    of_ranks = [
        happening("memory", {"device": "cuda:0", "peak_allocated_mb": mb, "peak_reserved_mb": None}, writer=f"rank{at}")
        for at, mb in enumerate((100.0, 300.0))
    ]

    work = fold_work([again, first, *of_ranks], (1, 2))

    assert work == Work(devices=4, model_flops=2e9, flops_doubt="2 ops", peak_allocated_mb=300.0)
    assert fold_work([again, first], (1,)) == Work(devices=2, model_flops=1e9, samples=64.0)
    assert fold_work([began()], (1,)) is None


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())
NAMES = ["node", "gpus", "mapping", "energy_j", "wall_s", "trouble", "devices", "model_flops", "peak_allocated_mb"]


@settings(deadline=None)
@given(
    st.sampled_from(MEASURED),
    st.dictionaries(st.sampled_from([*NAMES, *(f"gpu0_{name}" for name in GPU), "gpu_power_limit_w"]), ANYTHING),
)
def test_no_details_whatever_break_the_fold(name: str, details: dict[str, Any]) -> None:
    told = [began(), happening(name, details), happening("facts", details)]

    fold_usage(told, (1,), Carbon(g_per_kwh=1.0, source="x"))
    fold_work(told, (1,))
