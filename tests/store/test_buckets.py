"""Samples summed up in spans of about ten seconds, in however many pieces they come."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise

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


def begin(bucket: Bucket) -> int:
    return bucket.t_ms


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
    assert (first["samples"], first["covered_s"], first["energy_j"], first["max_memory_mb"]) == (11, 10.0, 1000.0, 10.0)
    assert first["mean_power_w"] == 205.0
    assert (second["samples"], second["covered_s"], second["energy_j"]) == (4, 4.0, 400.0)  # since the sample before
    assert found["host", 10_000].values["cpu_s"] == 2.0
    assert found["host", 10_000].values["mean_power_w"] is None


def test_the_integral_stands_in_for_a_counter_that_is_not_there() -> None:
    records = [tick(at, power_integral_j=50.0 * at) for at in range(3)]

    assert summed(records)["gpu0", 0].values["energy_j"] == 100.0


def test_what_a_counter_counted_while_it_was_reset_is_left_out() -> None:
    counter = (1000.0, 1100.0, 20.0, 120.0)

    found = summed([tick(at, energy_j=value) for at, value in enumerate(counter)])

    assert found["gpu0", 0].values["energy_j"] == 200.0


def test_a_counter_of_throttling_that_is_not_repeated_has_not_moved() -> None:
    records = [tick(0, throttle_power_s=3.0), *(tick(at) for at in range(1, 11)), tick(11, throttle_power_s=4.5)]

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


def test_the_first_span_begins_with_the_first_sample_whenever_that_was() -> None:
    records = [tick(at, energy_j=300.0 * at, host_cpu_s=2.0 * at) for at in range(25)]

    found = summed(records, base_ms=19_300.0)  # 0.7 s before full ten seconds of the epoch

    assert [t_ms for device, t_ms in found if device == "gpu0"] == [19_300, 29_300, 39_300]
    assert all(bucket.values["energy_j"] is not None for (device, _), bucket in found.items() if device == "gpu0")


def test_a_record_that_was_written_late_is_of_the_time_of_its_sample() -> None:
    slow = Metrics(seq=0, t_s=3.0, step=0, values={"host.at_s": 500.0, "sampler.tick_us": 2e6})

    assert list(summed([slow])) == [("host", 1000)]


def test_a_total_that_is_read_now_and_then_grows_between_its_readings() -> None:
    cores = 1.5
    read_at = {0, 7, 13, 20, 24}
    records = [tick(at, **({"host_cpu_s": cores * at} if at in read_at else {})) for at in range(25)]

    found = [bucket.values for (device, _), bucket in summed(records).items() if device == "host"]

    assert [(each["cpu_s"], each["cpu_covered_s"]) for each in found] == [(15.0, 10.0), (15.0, 10.0), (6.0, 4.0)]


def test_a_rest_that_is_an_instant_belongs_to_the_span_before() -> None:
    records = [*(tick(at, host_cpu_s=at / 2) for at in range(11)), tick(10.02, host_cpu_s=5.2)]

    ((_, bucket),) = [one for one in summed(records).items() if one[0][0] == "host"]

    assert (bucket.values["samples"], bucket.values["covered_s"], bucket.values["cpu_s"]) == (12, 10.02, 5.2)


def test_a_total_that_is_never_read_again_does_not_keep_spans_for_ever() -> None:
    buckets = Buckets.resume("{}")
    buckets.add((tick(at, **({"host_cpu_s": 1.0 * at} if at < 5 else {})) for at in range(3600)), base_ms=0.0)

    assert len(buckets.take()) == 2 * 360
    assert len(json.loads(buckets.carry())["devices"]["host"]["spans"]) < 40


@settings(deadline=None)
@given(
    st.integers(1, 128),
    st.floats(-1e9, 1e9),
    st.lists(st.tuples(st.floats(0.01, 12), st.floats(0, 1), st.booleans()), min_size=1, max_size=80),
)
def test_spans_follow_each_other_and_no_node_is_busier_than_it_has_cores(
    cores: int, base_ms: float, samples: list[tuple[float, float, bool]]
) -> None:
    at_s, used_s, read = 1000.0, 0.0, [(1000.0, 0.0)]
    records = [tick(at_s, host_cpu_s=0.0)]
    for later_s, busy, is_read in samples:
        at_s, used_s = at_s + later_s, used_s + later_s * busy * cores
        records.append(tick(at_s, **({"host_cpu_s": used_s} if is_read else {})))
        read += [(at_s, used_s)] * is_read

    found = sorted(
        (bucket for (device, _), bucket in summed(records, base_ms=base_ms).items() if device == "host"), key=begin
    )

    spans = [(bucket.t_ms, bucket.values["covered_s"], bucket.values) for bucket in found]
    assert spans[0][0] == pytest.approx(base_ms + 1000 * 1000, abs=1)
    assert sum(covered_s for _, covered_s, _ in spans) == pytest.approx(at_s - 1000.0)
    for (begin_ms, covered_s, _), (next_ms, _, _) in pairwise(spans):
        assert begin_ms + covered_s * 1000 == pytest.approx(next_ms, abs=2)
    assert sum(values["cpu_s"] or 0.0 for *_, values in spans) == pytest.approx(read[-1][1])
    assert sum(values["cpu_covered_s"] or 0.0 for *_, values in spans) == pytest.approx(read[-1][0] - 1000.0)
    for *_, values in spans:
        if values["cpu_covered_s"]:
            assert 0 <= values["cpu_s"] / values["cpu_covered_s"] <= cores * (1 + 1e-6)
