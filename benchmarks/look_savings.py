"""What planned looks save: ``python benchmarks/look_savings.py [STUDIES]`` prints the table of docs/statistics.md.

Pairs of equal arms with normal differences; the margin is the one at which a fixed plan of so many seeds has the power
asked for. The plan of looks has a tenth more seeds at most, as `hpcml plan` proposes it, and stops at a claim of
"equivalent" or where that is futile, as `schedule.until=verdict` does.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import numpy as np

from hpcml.analysis.planning.seeds import trial
from hpcml.analysis.sequential import FUTILE_BELOW, chance_to_show, critical_t, find_levels, look_sizes

FIXED = (5, 6, 8, 10, 12, 16, 24)  # seeds
POWERS = (0.8, 0.9, 0.95)


def rounds(fixed: int, power: float, studies: int, *, seed: int = 1) -> tuple[float, float]:
    """Return the seeds that looks take on average, over those of the *fixed* plan, and the power that they reach."""
    margin = trial(fixed, paired=True).smallest_margin(power, "equivalent")
    sizes = look_sizes(max(-(-11 * fixed // 10), fixed + 1))
    (levels,) = find_levels(sizes)
    taken = shown = 0
    for values in np.random.default_rng(seed).normal(size=(studies, sizes[-1])):
        n, is_shown = look_by_look(values, margin, sizes, levels)
        taken += n
        shown += is_shown
    return taken / studies / fixed, shown / studies


def look_by_look(
    values: np.ndarray[tuple[int], np.dtype[np.float64]],
    margin: float,
    sizes: tuple[int, ...],
    levels: tuple[float, ...],
) -> tuple[int, bool]:
    """Return how many of the differences *values* are looked at, and whether they show "equivalent"."""
    for n, level in zip(sizes, levels, strict=True):
        mean, sd = float(values[:n].mean()), float(values[:n].std(ddof=1))
        if abs(mean) + critical_t(level, n - 1) * sd / math.sqrt(n) < margin:
            return n, True
        if n == sizes[-1]:
            break
        chance = chance_to_show(mean, sd, margin, n=n, of=sizes[-1], last_level=levels[-1], is_two_sided=True)
        if chance < FUTILE_BELOW:
            return n, False
    return n, False


def table(studies: int) -> Iterator[str]:
    """Yield the table line by line: for each fixed plan the seeds saved, and the power that is reached, in per cent."""
    yield f"| seeds of the fixed plan | {' | '.join(f'{power:.0%} power' for power in POWERS)} |"
    yield f"|---|{'---|' * len(POWERS)}"
    for fixed in FIXED:
        found = [rounds(fixed, power, studies) for power in POWERS]
        cells = [f"{100 * (1 - share):.0f} % saved, {100 * power:.0f} %" for share, power in found]
        yield f"| {fixed} | {' | '.join(cells)} |"


if __name__ == "__main__":
    for line in table(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000):
        print(line, flush=True)
