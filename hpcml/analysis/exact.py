"""Exact tests and intervals, which assume no distribution: lost runs, times to a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from hpcml.model.comparison import Interval

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
