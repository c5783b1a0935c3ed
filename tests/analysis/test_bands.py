from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hpcml.analysis.compare.to_target import energy_until
from hpcml.analysis.stats import band
from hpcml.model.query_results import TelemetrySpan, Timeline


def test_a_band_is_the_mean_with_students_interval_at_each_place() -> None:
    found = band([(seed, ([0.0, 1.0], [value, 2 * value])) for seed, value in enumerate((1.0, 2.0, 6.0))])

    assert found is not None
    assert (found.x, found.mean, found.seeds) == ((0.0, 1.0), (3.0, 6.0), 3)
    low, high = stats.t.interval(0.95, 2, loc=3.0, scale=stats.sem([1.0, 2.0, 6.0]))
    assert (found.low[0], found.high[0]) == (pytest.approx(low), pytest.approx(high))


def test_runs_of_one_seed_are_averaged_before_they_count() -> None:
    found = band([(0, ([0.0], [1.0])), (0, ([0.0], [3.0])), (1, ([0.0], [4.0]))])

    assert found is not None
    assert (found.mean, found.seeds) == ((3.0,), 2)


def test_one_seed_has_a_mean_and_no_interval() -> None:
    found = band([(0, ([0.0, 1.0], [1.0, 2.0]))])

    assert found is not None
    assert (found.mean, found.low, found.high) == ((1.0, 2.0), (None, None), (None, None))


def test_a_band_ends_where_the_shortest_track_ends() -> None:
    found = band([(0, ([0.0, 10.0, 20.0], [0.0, 1.0, 2.0])), (1, ([5.0, 10.0], [0.0, 1.0]))])

    assert found is not None
    assert found.x == (5.0, 10.0)
    assert found.mean == (0.25, 1.0)  # the first track at 5 lies on the line between its points


def test_tracks_that_do_not_overlap_have_no_band() -> None:
    assert band([(0, ([0.0, 1.0], [0.0, 0.0])), (1, ([2.0, 3.0], [0.0, 0.0]))]) is None
    assert band([]) is None


def test_where_a_run_is_not_finite_the_band_has_a_gap() -> None:
    found = band([(0, ([0.0, 1.0, 2.0], [0.0, math.nan, 0.0])), (1, ([0.0, 1.0, 2.0], [1.0, 1.0, 1.0]))])

    assert found is not None
    assert found.mean == (0.5, None, 0.5)


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=300), min_size=1, max_size=4))
def test_a_mean_never_leaves_its_tracks(values: list[list[float]]) -> None:
    found = band([(seed, (list(map(float, range(len(each)))), each)) for seed, each in enumerate(values)], most=50)

    assert found is not None
    assert len(found.x) <= 50
    flat = [value for each in values for value in each]
    assert all(min(flat) - 1e-3 <= mean <= max(flat) + 1e-3 for mean in found.mean if mean is not None)


def gpu(*joules: float | None, device: str = "gpu0") -> Timeline:
    names = [
        field
        for field in TelemetrySpan.__dataclass_fields__
        if field not in ("t_s", "samples", "covered_s", "energy_j")
    ]
    rest = dict.fromkeys(names)
    spans = [
        TelemetrySpan(t_s=10.0 * at, samples=10, covered_s=10.0, energy_j=joule, **rest)  # type: ignore[arg-type]
        for at, joule in enumerate(joules)
    ]
    return Timeline(attempt=1, node=0, host="node7", device=device, uuid=None, spans=spans)


@pytest.mark.parametrize(("at_s", "kj"), [(0, 0), (5, 1.5), (15, 5.5), (99, 8)])
def test_energy_adds_up_over_time_and_over_gpus(at_s: float, kj: float) -> None:
    lines = [gpu(1000.0, 3000.0), gpu(2000.0, 2000.0, device="gpu1"), gpu(None, device="host")]

    assert energy_until(at_s, lines) == pytest.approx(kj)


def test_energy_is_not_known_where_one_gpu_misses_a_span() -> None:
    assert energy_until(5, [gpu(1000.0, 1000.0), gpu(1000.0, None, device="gpu1")]) is None
    assert energy_until(5, [gpu(None, device="host")]) is None
    assert energy_until(5, []) is None
