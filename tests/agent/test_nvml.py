"""NVML as it is asked, against the fake that is loaded as the real library would be, and the one in Python."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hpcml.agent.nvml.inventory import list_gpus, shown_gpus
from hpcml.agent.nvml.reader import GpuLostError, GpuReader
from hpcml.agent.nvml.session import started
from hpcml.agent.telemetry.gpus import Gpu, gpu_facts

Nvml = Callable[..., dict[str, str]]


@contextmanager
def readers(*, traffic: bool = False) -> Iterator[list[GpuReader]]:
    with started(os.environ) as obstacle:
        assert obstacle is None
        gpus = [part for gpu in shown_gpus()[0] for part in gpu.instances or (gpu,)]
        yield [GpuReader(gpu, traffic=traffic) for gpu in gpus]


def test_listing_the_gpus_of_any_machine_works() -> None:
    """Without a driver the list is empty; with one, every device has an identity."""
    assert all(found.uuid.startswith("GPU-") for found in list_gpus(os.environ))


def test_a_gpu_tells_what_it_is(nvml: Nvml) -> None:
    nvml("driver 570.86.15\ncuda 12080\ngpu\nuuid GPU-1\ncc 8.0\ncores 6912\npower_limit_w 300\nminor 3\nprocess 77")

    (gpu,) = list_gpus(os.environ)

    assert (gpu.uuid, gpu.driver, gpu.cuda_driver, gpu.minor) == ("GPU-1", "570.86.15", "12.8", 3)
    assert (gpu.compute_capability, gpu.sm_count, gpu.memory_mb) == ((8, 0), 108, 81_559)
    assert (gpu.power_limit_w, gpu.power_limit_default_w) == (300.0, 700.0)
    assert (gpu.compute_mode, gpu.persistence, gpu.ecc, gpu.mig_mode) == ("default", True, True, False)
    assert (gpu.max_sm_mhz, gpu.applications_sm_mhz, gpu.applications_mem_mhz, gpu.pcie) == (
        1980,
        1830,
        2619,
        "gen5 x16",
    )
    assert gpu.processes == 1
    assert gpu.refused == {}


def test_what_a_gpu_refuses_to_tell_is_none_with_the_reason(nvml: Nvml) -> None:
    nvml("gpu", fail="nvmlDeviceGetEnforcedPowerLimit=4;nvmlDeviceGetEccMode=3")

    (gpu,) = list_gpus(os.environ)

    assert gpu.power_limit_w is gpu.ecc is None
    assert gpu.refused == {"power_limit": "Insufficient Permissions", "ecc": "Not Supported"}


def test_a_lost_gpu_hides_no_other(nvml: Nvml) -> None:
    nvml("gpu\nlost_after_s 0\ngpu\nuuid GPU-2")

    assert [gpu.uuid for gpu in list_gpus(os.environ)] == ["GPU-2"]


def test_one_reading_has_everything_that_the_gpu_has(nvml: Nvml) -> None:
    nvml("gpu\nused_mib 1000\nreserved_mib 300\nmean_w 200\nswing_w 0\necc_corrected 5")
    with readers(traffic=True) as (reader,):
        reader.read(time.monotonic())
        time.sleep(0.12)  # what GPM wants between two samples
        values = reader.read(time.monotonic(), whatever_it_takes=True)

    assert values["power_w"] == pytest.approx(200.0, abs=0.1)
    assert reader.power_field == "average_1s"
    assert (values["memory_mb"], values["memory_reserved_mb"]) == (1000.0, 300.0)
    assert (values["util_percent"], values["sm_mhz"], values["temperature_c"]) == (93.0, 1755.0, 61.0)
    assert (values["tensor_percent"], values["dram_percent"]) == (37.0, 52.0)
    assert values["ecc_corrected"] == 5
    assert values["pcie_tx_mb"] > 0
    assert values["nvlink_tx_mb"] == pytest.approx(18 * values["pcie_tx_mb"], rel=0.05)  # of 18 links
    assert values["throttle_power_s"] > 0
    assert reader.throttle_from == "counters"
    assert not [name for name in values if name.startswith("throttled_")]
    assert reader.refused == {}


def test_an_activity_that_is_no_number_is_not_there(nvml: Nvml) -> None:
    nvml("gpu\ndram_percent nan")
    with readers() as (reader,):
        reader.read(time.monotonic())
        time.sleep(0.12)
        values = reader.read(time.monotonic())

    assert "dram_percent" not in values
    assert values["tensor_percent"] == 37.0


def test_reasons_for_lower_clocks_that_no_driver_counts_are_sampled(nvml: Nvml) -> None:
    nvml(f"gpu\ncounters 0\nreasons {0x04 | 0x08 | 0x40 | 0x01}")  # power cap, hardware and its heat; idle
    with readers() as (reader,):
        first, second = (reader.read(time.monotonic()) for _ in range(2))

    sampled = {name: value for name, value in first.items() if name.startswith("throttle")}
    assert sampled == {
        "throttled_power_percent": 100.0,
        "throttled_hw_percent": 100.0,
        "throttled_hw_thermal_percent": 100.0,
        "throttled_sync_boost_percent": 0.0,
        "throttled_sw_thermal_percent": 0.0,
        "throttled_power_brake_percent": 0.0,
    }
    assert sampled.items() <= second.items()
    assert reader.throttle_from == "samples"


def test_a_driver_that_tells_no_reasons_at_all_is_believed(nvml: Nvml) -> None:
    nvml("gpu\ncounters 0\nreasons -1")
    with readers() as (reader,):
        values = reader.read(time.monotonic())

    assert not [name for name in values if name.startswith("throttle")]
    assert reader.throttle_from is None
    assert reader.refused["throttle reasons"] == "Not Supported"


@pytest.mark.parametrize(
    ("config", "links"), [("gpu\ngpu\nnvlinks 4", 4), ("gpu\nnvlinks 0", 0), ("gpu\nmig\nmig", 18)]
)
def test_the_least_number_of_nvlinks_is_a_fact(nvml: Nvml, config: str, links: int) -> None:
    nvml(config)
    with started(os.environ):
        assert gpu_facts([part for gpu in shown_gpus()[0] for part in gpu.instances or (gpu,)])["gpu_nvlinks"] == links


@pytest.mark.parametrize(
    ("kind", "field"),
    [("", "average_1s"), ("average 0", "instant"), ("average 0\ninstant 0", "usage")],
)
def test_which_power_was_read_is_known(nvml: Nvml, kind: str, field: str) -> None:
    nvml(f"gpu\nswing_w 0\n{kind}")
    with readers() as (reader,):
        values = reader.read(time.monotonic())

    assert reader.power_field == field
    assert values["power_w"] == pytest.approx(250.0, abs=0.1)


def test_an_old_gpu_leaves_out_what_it_has_not(nvml: Nvml) -> None:
    nvml("gpu\nenergy 0\ncounters 0\ngpm 0\necc 0\nutil 0\naverage 0\ninstant 0\ncc 3.7")
    with readers() as (reader,):
        values = reader.read(time.monotonic())

    assert {"power_w", "memory_mb", "sm_mhz"} <= values.keys()
    assert not {"energy_j", "throttle_power_s", "util_percent", "tensor_percent", "ecc_corrected"} & values.keys()
    assert reader.refused["energy_j"] == reader.refused["activity"] == "Not Supported"


def test_a_mig_instance_has_its_own_memory_and_its_boards_power(nvml: Nvml) -> None:
    nvml("gpu\nuuid GPU-1\nmig\nuuid MIG-1\nused_mib 100\nsms 16\nmig\nuuid MIG-2\nused_mib 200\ntensor_percent 7")
    with readers() as (first, second):
        for reader in (first, second):
            reader.read(time.monotonic())
        time.sleep(0.12)
        values = [reader.read(time.monotonic(), whatever_it_takes=True) for reader in (first, second)]

    assert (first.gpu.board, first.gpu.instance, first.gpu.sm_count) == ("GPU-1", (1, 0), 16)
    assert [value["memory_mb"] for value in values] == [100.0, 200.0]
    assert [value["tensor_percent"] for value in values] == [37.0, 7.0]
    assert values[0]["energy_j"] == pytest.approx(values[1]["energy_j"], rel=1e-4)
    assert "util_percent" not in values[0]
    assert "MIG" in first.refused["utilization"]


def test_gpm_that_is_not_permitted_is_left_out_with_the_reason(nvml: Nvml) -> None:
    nvml("gpu", fail="nvmlGpmSampleGet=4")
    with readers() as (reader,):
        assert "power_w" in reader.read(time.monotonic())

    assert reader.refused["activity"] == "Insufficient Permissions"


def test_a_call_that_fails_once_is_made_again(nvml: Nvml) -> None:
    nvml("gpu", fail="nvmlDeviceGetTemperature=999")
    with readers() as (reader,):
        assert "temperature_c" not in reader.read(time.monotonic())
        os.environ["FAKE_NVML_FAIL"] = ""
        assert "temperature_c" in reader.read(time.monotonic(), whatever_it_takes=True)


def test_a_slow_call_is_made_less_often_and_comes_back(nvml: Nvml) -> None:
    nvml("gpu", slow="nvmlDeviceGetTemperature=0.05")
    with readers() as (reader,):
        seen = ["temperature_c" in reader.read(time.monotonic()) for _ in range(7)]
        slow = dict(reader.backed_off)
        os.environ["FAKE_NVML_SLOW"] = ""
        reader.read(time.monotonic(), whatever_it_takes=True)

        assert seen == [True, False, True, False, False, False, True]
        assert slow["temperature"] == 8
        assert reader.slowest_s >= 0.05


def test_a_lost_gpu_is_an_exception_of_its_own(nvml: Nvml) -> None:
    nvml("gpu", fail="nvmlDeviceGetFieldValues=15,after=1")
    with readers() as (reader,):
        reader.read(time.monotonic())
        with pytest.raises(GpuLostError, match="lost"):
            reader.read(time.monotonic(), whatever_it_takes=True)


@pytest.mark.parametrize(
    ("fail", "words"),
    [("nvmlInitWithFlags=18", "version mismatch"), ("nvmlInitWithFlags=9", "Driver Not Loaded")],
)
def test_a_driver_that_does_not_start_is_a_reason_and_no_error(nvml: Nvml, fail: str, words: str) -> None:
    nvml("gpu", fail=fail)
    with started(os.environ) as obstacle:
        assert words in (obstacle or "")
    assert list_gpus(os.environ) == []


def test_one_library_after_another_can_be_used(nvml: Nvml) -> None:
    nvml("gpu\nuuid GPU-1")
    first = list_gpus(os.environ)
    nvml("gpu\nuuid GPU-2")

    assert [gpu.uuid for gpu in (*first, *list_gpus(os.environ))] == ["GPU-1", "GPU-2"]
    assert isinstance(first[0], Gpu)
