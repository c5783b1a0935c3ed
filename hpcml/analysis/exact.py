"""Exact tests and intervals, which assume no distribution: lost runs, signs of differences, times to a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from hpcml.model.comparison import Interval

_ALL_SIGNS_UP_TO = 16  # pairs: 65536 ways to turn the signs; above that many are drawn
_DRAWN = 100_000
_AT_ONCE = 2_000  # of these
_STREAM = 20_260  # of the drawn signs: the same data give the same p
_ROUNDING = 1e-12
_MOST_DEALS = 20_000  # of the runs of two arms to these arms, that are all looked at


def share_interval(hits: int, n: int, confidence: float = 0.90) -> Interval | None:
    """Return the two-sided interval of Clopper and Pearson (1934) for a share of which *hits* of *n* were seen.

    Each end is a one-sided bound at ``(1 + confidence) / 2``. None where nothing was seen (n = 0).

    >>> round(share_interval(0, 5).high, 3)
    0.451
    """
    if n == 0:
        return None
    tail = (1 - confidence) / 2
    low = float(special.betaincinv(hits, n - hits + 1, tail)) if hits else 0.0
    high = float(special.betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0
    return Interval(low=low, high=high, confidence=confidence)


@cache
def p_more(hits: int, n: int, other_hits: int, other_n: int) -> float:
    """Return Boschloo's exact one-sided p that a share is not larger than another one (Boschloo 1970).

    >>> round(p_more(8, 10, 0, 10), 4)
    0.0001
    """
    if not hits or not n or not other_n:
        return 1.0
    from scipy.stats import boschloo_exact  # noqa: PLC0415 - scipy.stats takes a second, and most arms lose no run

    table = [[hits, other_hits], [n - hits, other_n - other_hits]]
    return min(1.0, float(boschloo_exact(table, alternative="greater").pvalue))


def sign_flips(differences: Sequence[float], claims: Sequence[tuple[float, Literal[1, -1]]]) -> list[float]:
    """Return the one-sided p of each of *claims*: a bound, and 1 for "above it" or -1 for "below it".

    What is tested is "the differences lie symmetrically around the bound, or on its other side" (R. A. Fisher, 1935):
    p is the share of all ways to turn the signs of their distances from it that give a sum as large as the observed
    one. These are all ways up to 16 differences, above that 100000 drawn ones and the observed one: the same for all
    claims, and a few at a time, so that thousands of seeds need no memory.

    >>> sign_flips([1.0, 2.0, 3.0], [(0.0, 1), (10.0, -1)])
    [0.125, 0.125]
    """
    values = np.asarray(differences, dtype=float)
    if len(values) <= _ALL_SIGNS_UP_TO:
        return [_all_flips(side * (values - bound)) for bound, side in claims]
    hits = [1] * len(claims)  # the observed one
    noise = np.random.default_rng(_STREAM)
    centre = float(values.mean())  # of what is turned: differences far from 0 lose no digits
    for _ in range(0, _DRAWN, _AT_ONCE):
        signs = (noise.integers(0, 2, size=(_AT_ONCE, len(values)), dtype=np.int8) * 2 - 1).astype(float)
        turned, balance = signs @ (values - centre), signs.sum(axis=1)
        for at, (bound, side) in enumerate(claims):
            own = side * (values - bound)
            least = float(own.sum()) - _ROUNDING * float(np.abs(own).sum())
            hits[at] += int(np.count_nonzero(side * (turned + (centre - bound) * balance) >= least))
    return [each / (_DRAWN + 1) for each in hits]


def _all_flips(values: NDArray[np.float64]) -> float:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate((sums + value, sums - value))
    return float(np.mean(sums >= float(values.sum()) - _ROUNDING * float(np.abs(values).sum())))


def log_rank(times: Sequence[float], others: Sequence[float], end: float) -> float | None:
    """Return the two-sided p of the log-rank test of two arms (N. Mantel, Cancer Chemother. Rep. 50, 1966).

    Times of *end* or more are censored there; None where all are. The p is exact where 20000 or fewer ways to deal the
    runs to two arms exist (eight each), else of the chi-square distribution, which for three runs each would be wrong
    in 10 % of cases.
    """
    every = np.array([*times, *others], dtype=float)
    if (every >= end).all():
        return None
    if math.comb(len(every), len(times)) > _MOST_DEALS:
        return _chi_square_log_rank(times, others, end)
    scores = _log_rank_scores(every, end)
    seen = abs(float(scores[: len(times)].sum()))
    deals = np.array(list(combinations(range(len(every)), len(times))))
    return float(np.mean(np.abs(scores[deals].sum(axis=1)) >= seen - _ROUNDING * len(every)))


def _log_rank_scores(times: NDArray[np.float64], end: float) -> NDArray[np.float64]:
    """Return of each run whether it was there, less Nelson and Aalen's cumulative hazard by its time.

    An arm's sum is the numerator of its log-rank statistic: those that were there less those expected to be.
    """
    moments, there = np.unique(times[times < end], return_counts=True)
    hazard = there / (times[None, :] >= moments[:, None]).sum(axis=1)
    expected = np.where(moments[None, :] <= times[:, None], hazard[None, :], 0.0).sum(axis=1)
    scores: NDArray[np.float64] = (times < end).astype(float) - expected
    return scores


def _chi_square_log_rank(times: Sequence[float], others: Sequence[float], end: float) -> float | None:
    from scipy import stats  # noqa: PLC0415 - takes a second to import, and few comparisons have a target

    arms = [np.asarray(each, dtype=float) for each in (times, others)]
    known = [stats.CensoredData(uncensored=each[each < end], right=each[each >= end].clip(max=end)) for each in arms]
    p = float(stats.logrank(*known).pvalue)
    return p if math.isfinite(p) else None
