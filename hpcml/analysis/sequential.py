"""Looking at growing data more than once: how many seeds each look has, and at which level a claim is made there.

A plan of looks at ``n1 < n2 < ... < N`` seeds spends the risk ``alpha (n/N)²`` (K. K. G. Lan and D. L. DeMets,
Biometrika 70, 1983, with the power family of K. Kim and D. L. DeMets, Biometrika 74, 1987; the exponent 2 lies between
Pocock's and O'Brien and Fleming's boundaries). A claim is made at a look where its one-sided t test has a p at or below
the look's nominal level; stopped at whichever look by whatever rule, a false claim is made in alpha of studies at most.

The levels are exact, without simulation. At the edge of a hypothesis the direction of the values (x1 .. xn) is
independent of their length, so ``u = Σx / sqrt(Σx²)`` is a Markov chain in one dimension (as W. J. Hall, R. A. Wijsman
and J. K. Ghosh, Ann. Math. Statist. 36, 1965, say why): with k more values ``u' = u sqrt(W) + sqrt(1 - W) sqrt(k) c``,
where W is Beta(n/2, k/2) and c the first coordinate of a random unit vector in k dimensions. The t statistic is
``u sqrt(n - 1) / sqrt(n - u²)``. The chain is carried from look to look on a grid of normal scores of t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import special  # not scipy.stats: it takes a second to import

ALPHA = 0.05
MOST_LOOKS = 4
FIRST_LOOK = 4  # seeds: the critical t of a look at 3 is 5 to 10, which never helped
FUTILE_BELOW = 0.05  # predictive chance that the last look shows the claim; a rule that may be ignored
SAVED = {0.80: 9, 0.90: 12, 0.95: 15}  # by power: per cent of a fixed plan's seeds; benchmarks/look_savings.py, 10,000
_EXPONENT = 2.0
_EDGES = np.concatenate([np.linspace(-6, 0, 60, endpoint=False), np.linspace(0, 4.5, 181)])  # normal scores of t
_NODES, _PLACES = 48, 4000  # over quantiles of W: of Gauss and Legendre; equidistant where one more value makes jumps

Array = NDArray[np.float64]


def look_sizes(n: int) -> tuple[int, ...]:
    """Return the numbers of seeds at which a plan of *n* seeds in all is looked at: four at most, the first at 4.

    >>> look_sizes(16), look_sizes(6), look_sizes(4)
    ((4, 8, 12, 16), (4, 5, 6), (4,))
    """
    first = max(FIRST_LOOK, -(-n // MOST_LOOKS))
    return (n,) if n <= first else tuple(sorted({round(float(size)) for size in np.linspace(first, n, MOST_LOOKS)}))


def find_levels(sizes: Sequence[int], rows: int = 1) -> tuple[tuple[float, ...], ...]:
    """Return the nominal one-sided level of each look of *sizes*, for 5 %/j with j = 1 .. *rows* (Holm's steps).

    The levels at 5 %/j are a little more than those at 5 % divided by j would allow, hence each has its own.
    """
    mids = (_EDGES[:-1] + _EDGES[1:]) / 2
    steps = [
        _Step(before=before, after=after, carried=_transition(mids, before, after)) for before, after in pairwise(sizes)
    ]
    return tuple(_levels(sizes, steps, ALPHA / j) for j in range(1, rows + 1))


def saved_percent(power: float) -> float:
    """Return what looks save of a fixed plan's seeds where arms are equal: the mean over plans of 6 to 24 seeds.

    Powers below and above those that were simulated count as the nearest of them.

    >>> saved_percent(0.8), saved_percent(0.99)
    (9.0, 15.0)
    """
    return float(np.interp(power, list(SAVED), list(SAVED.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """From a look to the next: the chance to be below each edge then, by where one is now."""

    before: int
    after: int
    carried: Array


def _levels(sizes: Sequence[int], steps: Sequence[_Step], alpha: float) -> tuple[float, ...]:
    below = special.ndtr(_EDGES)  # the chance of a score below each edge, without a claim before
    alive, spent, levels = 1.0, 0.0, []
    for at, n in enumerate(sizes):
        target = alpha * (n / sizes[-1]) ** _EXPONENT
        alive -= target - spent
        spent = target
        critical = float(np.interp(alive, below, _EDGES))
        levels.append(float(special.ndtr(-critical)))
        if at == len(steps):
            break
        step = steps[at]
        last = int(np.searchsorted(_EDGES, critical)) - 1  # the cell that the boundary cuts
        mass = np.diff(below)[:last]
        rest = alive - float(below[last])
        cut = _transition(np.array([(_EDGES[last] + critical) / 2]), step.before, step.after)[:, 0]
        below = step.carried[:, :last] @ mass + rest * cut
    return tuple(levels)


def _direction(scores: Array, n: int) -> Array:
    """Return u of the t statistic of *n* values that has the normal score *scores*."""
    lower = special.stdtrit(n - 1, np.clip(special.ndtr(-np.abs(scores)), 1e-300, 0.5))
    t = -np.sign(scores) * lower
    return np.asarray(np.sqrt(n) * t / np.sqrt(n - 1 + t * t))


def _transition(scores: Array, before: int, after: int) -> Array:
    """Return the chance that the score of *after* values is below each edge (rows), given that of *before*."""
    more = after - before
    now, edges = _direction(scores, before), _direction(_EDGES, after)
    found = np.zeros((len(_EDGES), len(scores)))
    if more == 1:  # c is -1 or 1
        shares = special.betaincinv(before / 2, 0.5, (np.arange(_PLACES) + 0.5) / _PLACES)
        for column, u in enumerate(now):
            then = np.sort([u * np.sqrt(shares) + sign * np.sqrt(1 - shares) for sign in (-1, 1)], axis=None)
            found[:, column] = np.searchsorted(then, edges, side="right") / len(then)
        return found
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    shares = special.betaincinv(before / 2, more / 2, (nodes + 1) / 2)
    half = (more - 1) / 2  # the first coordinate of a random unit vector is a Beta(half, half) on -1 .. 1
    for share, weight in zip(shares, weights / 2, strict=True):
        c = (edges[:, None] - now[None, :] * np.sqrt(share)) / np.sqrt((1 - share) * more)
        found += weight * special.betainc(half, half, np.clip((c + 1) / 2, 0, 1))
    return found


def critical_t(level: float, df: float) -> float:
    """Return the value that Student's t exceeds with the chance *level*."""
    return -float(special.stdtrit(df, level))


def chance_to_show(
    gain: float, sd: float, margin: float, *, n: int, of: int, last_level: float, is_two_sided: bool
) -> float:
    """Return the predictive chance that the look at *of* seeds shows a claim, given *n* seeds of paired differences.

    *gain* is the mean difference, positive for better, and *sd* the spread of differences. Two-sided is "equivalent" at
    *margin*; else "above -margin". The true difference is taken to be as seen, with its uncertainty (a t of n - 1).
    """
    reach = margin - critical_t(last_level, of - 1) * sd / np.sqrt(of)
    spread = sd * np.sqrt(1 / n - 1 / of)
    if spread == 0:
        return 1.0
    if is_two_sided:
        if reach <= 0:
            return 0.0
        high, low = ((bound - abs(gain)) / spread for bound in (reach, -reach))
        return float(special.stdtr(n - 1, high) - special.stdtr(n - 1, low))
    return float(special.stdtr(n - 1, (gain + reach) / spread))
