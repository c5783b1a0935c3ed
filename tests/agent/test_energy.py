import math
from collections.abc import Callable

import pytest

from hpcml.agent.telemetry.energy import COUNTER_STALE_S, EnergyMeter, PowerIntegral


def wave(at_s: float) -> float:
    return 250 + 50 * math.sin(2 * math.pi * at_s / 4)


def wave_j(at_s: float) -> float:
    """The exact integral of `wave` from 0."""
    return 250 * at_s + 50 * 4 / (2 * math.pi) * (1 - math.cos(2 * math.pi * at_s / 4))


@pytest.mark.parametrize("step_s", [1.0, 0.5, 0.1, 0.02])
def test_the_trapezoid_integral_is_as_exact_as_theory_says(step_s: float) -> None:
    """Its error is at most T/12 h^2 max|P''| (any book of numerical analysis); here max|P''| = 50 (2 pi / 4)^2."""
    integral, whole_s = PowerIntegral(), 30.0
    for tick in range(round(whole_s / step_s) + 1):
        integral.add(tick * step_s, wave(tick * step_s))

    bound_j = whole_s / 12 * step_s**2 * 50 * (2 * math.pi / 4) ** 2
    assert abs(integral.energy_j - wave_j(whole_s)) <= bound_j


def test_a_reading_that_is_not_new_adds_nothing() -> None:
    integral = PowerIntegral()
    for at_s in (0.0, 1.0, 1.0, 0.5, 2.0):
        integral.add(at_s, 100.0)

    assert integral.energy_j == 200.0


def metered(meter: EnergyMeter, ticks: int, **readings: Callable[[float], float]) -> EnergyMeter:
    for tick in range(ticks):
        meter.add(float(tick), **{name: read(float(tick)) for name, read in readings.items()})
    return meter


def test_between_two_ticks_the_counter_is_linear_and_only_the_time_of_the_program_counts() -> None:
    meter = metered(EnergyMeter(2.5, 7.25), 11, counter_j=lambda t: 1000 + 100 * t, power_w=lambda _: 100.0)

    energy = meter.result()

    assert energy.energy_j == pytest.approx(475.0)
    assert energy.method == "counter"
    assert energy.covered_s == pytest.approx(4.75)
    assert energy.mean_power_w == pytest.approx(100.0)
    assert energy.uncertainty_j == pytest.approx(COUNTER_STALE_S * 100.0)


def test_both_ways_are_told_with_their_difference() -> None:
    energy = metered(
        EnergyMeter(0.0), 11, counter_j=lambda t: 100 * t, integral_j=lambda t: 104 * t, power_w=lambda _: 104.0
    ).result()

    assert (energy.counter_j, energy.integral_j) == (pytest.approx(1000), pytest.approx(1040))
    assert energy.disagreement == pytest.approx(0.04)
    assert energy.disagrees is False


def test_a_difference_of_more_than_five_percent_is_flagged() -> None:
    energy = metered(EnergyMeter(0.0), 11, counter_j=lambda t: 187 * t, integral_j=lambda t: 327 * t).result()

    assert energy.disagrees is True


def test_without_a_counter_the_integral_counts_with_the_scatter_of_its_readings() -> None:
    energy = metered(EnergyMeter(0.0), 101, integral_j=wave_j, power_w=wave).result()

    assert energy.method == "integral"
    assert energy.counter_j is energy.disagreement is None
    assert energy.energy_j == pytest.approx(wave_j(100.0))
    # 2 s T / sqrt(N), where a sine of amplitude 50 has s = 50 / sqrt(2)
    assert energy.uncertainty_j == pytest.approx(2 * 50 / math.sqrt(2) * 100 / math.sqrt(100), rel=0.02)


def test_a_counter_that_was_reset_is_seen_and_the_integral_stands_in() -> None:
    energy = metered(
        EnergyMeter(0.0),
        11,
        counter_j=lambda t: 5000 + 100 * t if t < 5 else 100 * (t - 4.5),
        integral_j=lambda t: 100 * t,
        power_w=lambda _: 100.0,
    ).result()

    assert energy.counter_resets == 1
    assert energy.method == "counter+integral"
    assert energy.energy_j == pytest.approx(1000.0)
    assert energy.counter_j is None


def test_a_reset_without_power_leaves_a_gap_that_is_not_filled() -> None:
    energy = metered(EnergyMeter(0.0), 11, counter_j=lambda t: 100 * t if t < 5 else 100 * (t - 5)).result()

    assert energy.energy_j == pytest.approx(900.0)
    assert energy.covered_s == pytest.approx(9.0)


@pytest.mark.parametrize("ticks", [0, 1])
def test_what_cannot_be_known_is_none_with_the_reason(ticks: int) -> None:
    energy = metered(EnergyMeter(0.0), ticks, counter_j=lambda t: t).result()

    assert energy.energy_j is energy.method is energy.uncertainty_j is None
    assert energy.reason
