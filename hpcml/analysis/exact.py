"""Exact tests and intervals, which assume no distribution of the metric: lost runs, and the signs of differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy import special

from hpcml.model.comparison import Interval

_ALL_SIGNS_UP_TO = 16  # pairs: 65536 ways to turn the signs; above that many are drawn
_DRAWN = 100_000
_STREAM = 20_260  # of the drawn signs: the same data give the same p
_ROUNDING = 1e-12


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


def sign_flip(differences: Sequence[float]) -> float:
    """Return the one-sided p of "the differences lie symmetrically around 0 or below" (R. A. Fisher, 1935).

    It is the share of all ways to turn the signs of *differences* that give a sum as large as the observed one: all
    ways up to 16 differences, above that 100000 drawn ones and the observed one.

    >>> sign_flip([1.0, 2.0, 3.0])
    0.125
    """
    values = np.asarray(differences, dtype=float)
    observed = float(values.sum()) - _ROUNDING * float(np.abs(values).sum())
    n = len(values)
    if n <= _ALL_SIGNS_UP_TO:
        sums = np.zeros(1)
        for value in values:
            sums = np.concatenate((sums + value, sums - value))
        return float(np.mean(sums >= observed))
    noise = np.random.default_rng(_STREAM)
    turned = noise.integers(0, 2, size=(_DRAWN, n), dtype=np.int8) * 2 - 1
    return (1 + int(np.count_nonzero(turned @ values >= observed))) / (_DRAWN + 1)


def least_p(n: int) -> float:
    """Return the smallest p that `sign_flip` can give with *n* differences."""
    return math.ldexp(1.0, -n)
