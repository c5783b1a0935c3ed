from hpcml.agent.telemetry.summary import NodeSummary
from hpcml.runs.journal import Event, Metrics

ABOUT = {"mapping": "CUDA_VISIBLE_DEVICES", "gpus": [{"gpu": "gpu0", "uuid": "GPU-1", "scope": "gpu", "board": None}]}


def devices(**more: object) -> Event:
    return Event(seq=0, t_s=0.0, name="devices", details={**ABOUT, **more})


def tick(at_s: float, **values: float) -> Metrics:
    gpu = {f"gpu0.{name}": value for name, value in values.items() if not name.startswith("host_")}
    host = {f"host.{name.removeprefix('host_')}": value for name, value in values.items() if name.startswith("host_")}
    own = {"sampler.cpu_s": 0.01 * at_s, "sampler.tick_us": 100.0 + at_s, "sampler.missed_ticks": 0.0}
    return Metrics(seq=0, t_s=at_s, step=0, values={"gpu0.at_s": at_s, "host.at_s": at_s, **gpu, **host, **own})


def test_only_the_time_of_the_program_counts() -> None:
    summary = NodeSummary(2.0)
    summary.add([devices()])
    summary.add([tick(float(t), energy_j=100.0 * t, util_percent=50.0 if t >= 2 else 0.0) for t in range(5)])
    summary.end(7.5)
    summary.add([tick(float(t), energy_j=100.0 * t, util_percent=50.0) for t in range(5, 9)])

    found = summary.details()

    assert found["gpu0_energy_j"] == found["energy_j"] == 550.0
    assert found["gpu0_mean_util_percent"] == 50.0
    assert found["data_until_s"] == 5.5
    assert (found["gpu0_uuid"], found["mapping"]) == ("GPU-1", "CUDA_VISIBLE_DEVICES")


def test_throttling_is_a_difference_and_a_value_left_out_is_one_that_did_not_change() -> None:
    summary = NodeSummary(0.0)
    throttled = [{"throttle_power_s": 7.0}, {}, {"throttle_power_s": 8.5}, {}]
    summary.add([devices(), *(tick(float(t), **values) for t, values in enumerate(throttled))])
    summary.end(3.0)

    assert summary.details()["gpu0_throttle_power_s"] == 1.5


def test_throttling_that_was_sampled_is_a_share_of_the_samples() -> None:
    about = [{**ABOUT["gpus"][0], "throttle_from": "samples"}]
    summary = NodeSummary(0.0)
    seen = (100.0, 0.0, 0.0, 100.0)
    summary.add([devices(gpus=about), *(tick(float(t), throttled_power_percent=value) for t, value in enumerate(seen))])
    summary.end(3.0)

    found = summary.details()

    assert (found["gpu0_throttle_from"], found["gpu0_mean_throttled_power_percent"]) == ("samples", 50.0)
    assert "gpu0_throttle_power_s" not in found


def test_clocks_are_medians_memory_is_a_maximum_and_errors_are_counted() -> None:
    summary = NodeSummary(0.0)
    clocks = [1980.0, 1755.0, 1755.0, 1200.0, 1755.0]
    summary.add(
        [tick(float(t), sm_mhz=mhz, memory_mb=100.0 * t, ecc_uncorrected=3.0 + t) for t, mhz in enumerate(clocks)]
    )
    summary.add([Event(seq=0, t_s=0.0, name="xid", details={"gpu": "gpu0", "code": 31})] * 2)
    summary.end(4.0)

    found = summary.details()

    assert (found["gpu0_median_sm_mhz"], found["gpu0_max_memory_mb"]) == (1755.0, 400.0)
    assert (found["gpu0_ecc_uncorrected"], found["gpu0_xids"]) == (4, "31,31")


def test_a_shared_gpu_makes_the_whole_energy_shared() -> None:
    about = [{"gpu": "gpu0", "uuid": "GPU-1", "scope": "shared", "scope_reason": "nobody said", "board": None}]
    summary = NodeSummary(0.0)
    summary.add([devices(gpus=about), tick(0.0, energy_j=0.0), tick(1.0, energy_j=5.0)])
    summary.end(1.0)

    found = summary.details()

    assert (found["energy_j"], found["energy_scope"], found["gpu0_scope_reason"]) == (5.0, "shared", "nobody said")


def test_one_gpu_without_energy_leaves_the_sum_unknown_with_the_reason() -> None:
    about = [*ABOUT["gpus"], {"gpu": "gpu1", "uuid": "GPU-2", "scope": "gpu", "refused": {"energy_j": "Not Supported"}}]
    summary = NodeSummary(0.0)
    summary.add([devices(gpus=about), tick(0.0, energy_j=0.0), tick(1.0, energy_j=5.0)])
    summary.end(1.0)

    found = summary.details()

    assert (found["gpu0_energy_j"], found["gpu1_energy_j"], found["energy_j"]) == (5.0, None, None)
    assert found["gpu1_energy_reason"] == "energy_j: Not Supported"


def test_a_total_of_the_host_that_fell_is_told_as_incomplete() -> None:
    summary = NodeSummary(0.0)
    summary.add([tick(float(t), host_cpu_s=value, host_memory_mb=10.0) for t, value in enumerate([0.0, 4.0, 1.0, 3.0])])
    summary.end(3.0)

    found = summary.details()

    assert (found["host_cpu_s"], found["host_incomplete"], found["host_max_memory_mb"]) == (6.0, "cpu_s", 10.0)


def test_without_any_record_nothing_is_invented() -> None:
    summary = NodeSummary(0.0)
    summary.end(1.0)

    assert summary.details() == {"gpus": 0, "samples": 0, "missed_ticks": 0}
