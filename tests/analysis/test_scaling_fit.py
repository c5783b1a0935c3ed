from __future__ import annotations

import numpy as np
import pytest
from scaling_runs import amdahl, gustafson

from hpcml.analysis.scaling.fit import fit_serial_share
from hpcml.analysis.scaling.result import Kind

GPUS = (1, 2, 4, 8)
REPLICATIONS = 1500


def exact(kind: Kind, share: float) -> dict[int, dict[int, float]]:
    """Return times of a sample without noise, of two seeds of which one is slower."""
    step_s = amdahl(share) if kind == "strong" else gustafson(share)
    samples = {n: 64 if kind == "strong" else 64 * n for n in GPUS}
    return {n: {seed: (1 + seed) * step_s(n) / samples[n] for seed in (0, 1)} for n in GPUS}


@pytest.mark.parametrize("kind", ["strong", "weak"])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.4, 1.0])
def test_a_law_without_noise_gives_its_share_back(kind: Kind, share: float) -> None:
    fit = fit_serial_share(kind, 1, exact(kind, share))

    assert fit is not None
    assert fit.law == ("Amdahl" if kind == "strong" else "Gustafson")
    assert fit.share == pytest.approx(share, abs=1e-9)
    assert fit.misfit == pytest.approx(0, abs=1e-9)
    assert fit.ci95 is not None
    assert fit.ci95.low == pytest.approx(share, abs=1e-9) == fit.ci95.high
    if kind == "strong" and share:
        assert fit.most_speedup == pytest.approx(1 / share)
    elif kind == "weak":
        assert fit.most_speedup is None


@pytest.mark.parametrize("numbers", [(1, 2, 4), (1, 3, 5), (1, 2, 4, 8), (1, 3, 7)])
@pytest.mark.parametrize("whole_s", [0.1, 0.3, 0.7, 10.0])
def test_times_that_divide_without_a_rest_leave_no_rounding(whole_s: float, numbers: tuple[int, ...]) -> None:
    fit = fit_serial_share("strong", 1, {n: dict.fromkeys(range(3), whole_s / n) for n in numbers})

    assert fit is not None
    assert (fit.share, fit.most_speedup) == (0.0, None)


def test_the_share_is_of_the_time_on_the_reference_also_where_that_is_not_one_device() -> None:
    costs = {n: values for n, values in exact("strong", 0.1).items() if n > 1}

    fit = fit_serial_share("strong", 2, costs)

    assert fit is not None
    assert fit.share == pytest.approx(0.1 / (0.1 + 0.9 / 2))


def test_two_numbers_of_devices_give_karp_and_flatts_metric_and_no_interval() -> None:
    speedup = 3.2
    fit = fit_serial_share("strong", 1, {1: {0: 1.0, 1: 1.0}, 4: {0: 1 / speedup, 1: 1 / speedup}})

    assert fit is not None
    assert fit.share == pytest.approx((1 / speedup - 1 / 4) / (1 - 1 / 4))
    assert fit.ci95 is None


def test_times_that_follow_no_law_are_told_by_their_misfit() -> None:
    rising = {1: {0: 1.0}, 2: {0: 0.6}, 4: {0: 0.9}, 8: {0: 2.0}}

    fit = fit_serial_share("strong", 1, rising)

    assert fit is not None
    assert fit.misfit > 0.3


def test_nothing_is_fitted_without_a_second_number_of_devices() -> None:
    assert fit_serial_share("strong", 1, {1: {0: 1.0, 1: 1.1}}) is None
    assert fit_serial_share("strong", 4, {1: {0: 1.0}, 4: {0: 0.3}}) is None


@pytest.mark.parametrize("kind", ["strong", "weak"])
@pytest.mark.parametrize("seeds", [3, 5])
def test_the_interval_covers_the_true_share_as_often_as_it_says(kind: Kind, seeds: int) -> None:
    share, rng = 0.08, np.random.default_rng(20261121)
    truth = exact(kind, share)
    covered = 0
    for _ in range(REPLICATIONS):
        of_seed = rng.normal(0, 0.02, seeds)  # what all runs of a seed have in common: only pairing takes it out
        costs = {
            n: {seed: truth[n][0] * float(np.exp(rng.normal(0, 0.02) + of_seed[seed])) for seed in range(seeds)}
            for n in GPUS
        }
        fit = fit_serial_share(kind, 1, costs)
        assert fit is not None
        assert fit.ci95 is not None
        covered += fit.ci95.low <= share <= fit.ci95.high

    assert 0.93 <= covered / REPLICATIONS <= 0.97  # 95 % within three standard errors of the simulation, rounded up


def test_seeds_that_not_all_numbers_have_are_left_out_of_the_interval() -> None:
    costs = exact("strong", 0.1)
    apart = {n: {100 * n + seed: time_s for seed, time_s in values.items()} for n, values in costs.items()}
    one_more = {n: {**values, **({9: values[0] * 1.1} if n == 2 else {})} for n, values in costs.items()}

    of_apart, of_most = (fit_serial_share("strong", 1, each) for each in (apart, one_more))

    assert of_apart is not None
    assert of_most is not None
    assert of_apart.ci95 is None
    assert of_most.ci95 is not None
