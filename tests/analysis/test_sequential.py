"""Levels of planned looks: against a published-by-simulation table, and against simulated paths."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from benchmarks.look_savings import rounds
from hpcml.analysis.sequential import chance_to_show, find_levels, look_sizes, saved_percent


@pytest.mark.parametrize(
    ("n", "sizes", "levels"),
    [
        (6, (4, 5, 6), {1: (2.22, 2.39, 3.18), 8: (0.278, 0.243, 0.306)}),
        (10, (4, 6, 8, 10), {1: (0.8, 1.25, 2.1, 3.28), 4: (0.2, 0.287, 0.464, 0.703)}),
        (16, (4, 8, 12, 16), {1: (0.312, 0.992, 2.05, 3.59), 2: (0.156, 0.488, 0.978, 1.68)}),
    ],
)
def test_levels_are_those_that_a_finer_grid_gave(
    n: int, sizes: tuple[int, ...], levels: dict[int, tuple[float, ...]]
) -> None:
    assert look_sizes(n) == sizes
    found = find_levels(sizes, max(levels))
    for j, percent in levels.items():
        assert [100 * level for level in found[j - 1]] == pytest.approx(percent, rel=0.01)


def test_a_path_at_the_edge_of_a_hypothesis_crosses_in_five_per_cent() -> None:
    sizes, draws = look_sizes(12), 200_000
    noise = np.random.default_rng(3)
    values = noise.normal(size=(draws, sizes[-1]))
    crossed = np.zeros(draws, dtype=bool)
    for n, level in zip(sizes, find_levels(sizes)[0], strict=True):
        seen = values[:, :n]
        t = seen.mean(1) / (seen.std(1, ddof=1) / np.sqrt(n))
        crossed |= t > -special.stdtrit(n - 1, level)

    assert crossed.mean() == pytest.approx(0.05, abs=0.0016)  # three Monte-Carlo standard errors


def test_what_cannot_be_shown_any_more_is_futile_and_what_nearly_is_is_not() -> None:
    def chance(gain: float) -> float:
        return chance_to_show(gain, 0.5, 1.0, n=8, of=16, last_level=0.036, is_two_sided=True)

    assert chance(0.0) > 0.99
    assert chance(1.2) < 0.05
    assert chance(-1.2) == pytest.approx(chance(1.2))


@pytest.mark.parametrize("power", [0.8, 0.95])
def test_looks_save_about_what_is_told_for_about_the_same_power(power: float) -> None:
    taken, reached = rounds(16, power, 500)

    assert 100 * (1 - taken) == pytest.approx(saved_percent(power), abs=5)
    assert reached == pytest.approx(power, abs=0.06)
