"""Samples summed up in spans of ten seconds, in however many pieces they come."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcml.runs.journal import Event, Metrics
from hpcml.store.spans import Bucket, Buckets

Record = Metrics | Event


def tick(at_s: float, **values: float) -> Metrics:
    """One sample of gpu0 and the host."""
    named = {f"host.{name[5:]}" if name.startswith("host_") else f"gpu0.{name}": v for name, v in values.items()}
    return Metrics(seq=0, t_s=at_s, step=0, values={"gpu0.at_s": at_s, "host.at_s": at_s, **named})


def summed(
    records: Sequence[Record], *, cuts: Sequence[int] = (), base_ms: float = 0.0
) -> dict[tuple[str, int], Bucket]:
    """Return the last word on each span when *records* come in pieces that end at *cuts*."""
    carry, found = "{}", {}
    ends = [*sorted(cuts), len(records)]
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        buckets = Buckets.resume(carry)
        buckets.add(records[begin:end], base_ms=base_ms)
        found |= {(bucket.device, bucket.t_ms): bucket for bucket in buckets.take()}
        carry = buckets.carry()
    return found


def test_a_span_has_means_differences_and_extremes_of_its_samples() -> None:
    records = [
        tick(at, power_w=200 + at, energy_j=1000 + 100 * at, memory_mb=at, host_cpu_s=at / 2) for at in range(15)
    ]

    found = summed(records)

    first, second = found["gpu0", 0].values, found["gpu0", 10_000].values
    assert (first["samples"], first["covered_s"], first["energy_j"], first["max_memory_mb"]) == (10, 9.0, 900.0, 9.0)
    assert first["mean_power_w"] == 204.5
    assert (second["samples"], second["covered_s"], second["energy_j"]) == (5, 5.0, 500.0)  # since the sample before
    assert found["host", 10_000].values["cpu_s"] == 2.5
    assert found["host", 10_000].values["mean_power_w"] is None


def test_the_integral_stands_in_for_a_counter_that_is_not_there() -> None:
    records = [tick(at, power_integral_j=50.0 * at) for at in range(3)]

    assert summed(records)["gpu0", 0].values["energy_j"] == 100.0


def test_what_a_counter_counted_while_it_was_reset_is_left_out() -> None:
    counter = (1000.0, 1100.0, 20.0, 120.0)

    found = summed([tick(at, energy_j=value) for at, value in enumerate(counter)])

    assert found["gpu0", 0].values["energy_j"] == 200.0


def test_a_counter_of_throttling_that_is_not_repeated_has_not_moved() -> None:
    records = [tick(0, throttle_power_s=3.0), *(tick(at) for at in range(1, 10)), tick(11, throttle_power_s=4.5)]

    found = summed(records)

    assert found["gpu0", 0].values["throttled_power_s"] == 0.0
    assert found["gpu0", 10_000].values["throttled_power_s"] == 1.5
    assert found["gpu0", 10_000].values["throttled_thermal_s"] is None  # which no counter tells


def test_of_several_counters_of_heat_the_longest_counts() -> None:
    names = ("throttle_thermal_s", "throttle_sw_thermal_s", "throttle_hw_thermal_s")
    records = [
        tick(at, **{name: at * speed for name, speed in zip(names, (0.1, 0.4, 0.0), strict=True)}) for at in (0, 5)
    ]

    assert summed(records)["gpu0", 0].values["throttled_thermal_s"] == 2.0


def test_where_no_counter_tells_the_samples_do() -> None:
    found = summed([tick(at, throttled_power_percent=100.0 * (at >= 4)) for at in range(9)])

    assert found["gpu0", 0].values["throttled_power_s"] == pytest.approx(5 / 9 * 8)


def test_a_gpu_has_the_uuid_that_the_journal_begins_with() -> None:
    devices = Event(seq=0, t_s=0.0, name="devices", details={"gpus": [{"gpu": "gpu0", "uuid": "GPU-7"}]})

    found = summed([devices, tick(0), tick(1)], cuts=[1])

    assert (found["gpu0", 0].uuid, found["host", 0].uuid) == ("GPU-7", None)


def test_what_is_not_finite_is_no_reading() -> None:
    found = summed([tick(0, power_w=math.nan, memory_mb=math.inf), tick(1, power_w=5.0)])

    assert (found["gpu0", 0].values["mean_power_w"], found["gpu0", 0].values["max_memory_mb"]) == (5.0, None)


@pytest.mark.parametrize("gpus", [None, 3, [None], [{"gpu": "gpu0"}], [{"uuid": 4}], {"gpu0": "x"}])
def test_an_odd_event_names_no_gpu(gpus: object) -> None:
    found = summed([Event(seq=0, t_s=0.0, name="devices", details={"gpus": gpus}), tick(0)])

    assert found["gpu0", 0].uuid is None


def test_what_is_no_device_is_passed_over() -> None:
    values = {"gpu\0.at_s": 1.0, "gpus.at_s": 1.0, "sampler.at_s": 1.0, "sampler.cpu_s": 2.0, "at_s": 1.0}

    assert summed([Metrics(seq=0, t_s=1.0, step=0, values=values)]) == {}


def test_a_sample_at_no_time_is_passed_over() -> None:
    assert summed([Metrics(seq=0, t_s=math.nan, step=0, values={"gpu0.at_s": 1.0})]) == {}


VALUES = st.dictionaries(
    st.sampled_from(["power_w", "energy_j", "util_percent", "memory_mb", "throttle_power_s", "host_cpu_s"]),
    st.floats(0, 1e6),
)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 30), VALUES), max_size=20),
    st.lists(st.integers(0, 20), max_size=4),
    st.floats(-1e9, 1e9),
)
def test_in_pieces_it_is_to_the_bit_what_it_is_at_once(
    samples: list[tuple[float, dict[str, float]]], cuts: list[int], base_ms: float
) -> None:
    at_s, records = 0.0, []
    for later_s, values in samples:
        at_s += later_s
        records.append(tick(at_s, **values))

    cuts = [min(cut, len(records)) for cut in cuts]
    assert summed(records, cuts=cuts, base_ms=base_ms) == summed(records, base_ms=base_ms)
