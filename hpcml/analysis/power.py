"""How often a verdict would be reached with so many seeds, and how many it takes: exact, and pure.

The power is that of the very tests in `equivalence`: two one-sided t tests (Welch's where seeds are not paired) on
values from normal distributions that are truly equal. Given the standard errors, the estimate is normal; what is left
is an integral over their chi-square distributions (for pairs, Owen's Q; D. B. Owen, Biometrika 52, 1965), done by
Gauss-Legendre over their quantiles. All lengths are in units of the true standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special  # not scipy.stats: it takes a second to import

from hpcml.planning import Spread, WantedVerdict

MOST_SEEDS = 1000  # tried; whoever needs more needs another margin
_RISK = 0.05  # of each one-sided test, as in equivalence
_SURE = 0.80  # confidence of each bound of a spread
_NODES_PAIRED, _NODES_WELCH = 200, 40  # held to 1e-3 by tests, against a simulation and statsmodels

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """So many seeds in each arm, seen over all spreads that they may happen to show."""

    error: float  # the true standard error of the estimate
    reach: Array  # critical t times the standard error that is seen
    weights: Array

    def power(self, margin: float, verdict: WantedVerdict) -> float:
        """Return how often truly equal arms are found so, at a *margin* in true standard deviations."""
        above = special.ndtr((margin - self.reach) / self.error)
        found = np.maximum(0.0, 2 * above - 1) if verdict == "equivalent" else above
        return float(np.dot(self.weights, found))

    def smallest_margin(self, power: float, verdict: WantedVerdict) -> float:
        """Return the smallest margin, in true standard deviations, that is shown with this *power*."""
        low, high = 0.0, self.error
        while self.power(high, verdict) < power:
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self.power(middle, verdict) >= power else (middle, high)
        return high


def trial(n: int, *, paired: bool, comparisons: int = 1) -> Trial:
    """Return the trial with *n* seeds in each arm, two at least; *comparisons* share the risk of 5 % (Bonferroni)."""
    df, risk = n - 1, _RISK / comparisons
    nodes, weights = np.polynomial.legendre.leggauss(_NODES_PAIRED if paired else _NODES_WELCH)
    nodes, weights = (nodes + 1) / 2, weights / 2
    variances = 2 * special.gammaincinv(df / 2, nodes) / df  # quantiles of chi-square over df
    if paired:
        reach = special.stdtrit(df, 1 - risk) * np.sqrt(variances / n)
        return Trial(error=1 / math.sqrt(n), reach=reach, weights=weights)
    one, other = np.meshgrid(variances, variances)
    welch = df * (one + other) ** 2 / (one**2 + other**2)  # Welch and Satterthwaite, as equivalence.welch
    reach = special.stdtrit(welch, 1 - risk) * np.sqrt((one + other) / n)
    return Trial(error=math.sqrt(2 / n), reach=reach.ravel(), weights=np.outer(weights, weights).ravel())


def seeds_needed(
    margin: float, *, power: float, verdict: WantedVerdict, paired: bool, comparisons: int = 1
) -> int | None:
    """Return the seeds in each arm that give *power* at a *margin* in true standard deviations; None: too many."""

    def suffices(n: int) -> bool:
        return trial(n, paired=paired, comparisons=comparisons).power(margin, verdict) >= power

    high = 2
    while not suffices(high):
        if high >= MOST_SEEDS:
            return None
        high = min(2 * high, MOST_SEEDS)
    low = high // 2  # does not suffice, or is below 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return max(2, high)


def pooled(groups: Sequence[Sequence[float]], *, rho: float | None = None) -> Spread | None:
    """Return the spread within *groups* that share one, each around its own mean; None: nothing varies freely."""
    groups = [group for group in groups if len(group) > 1]
    df = sum(len(group) - 1 for group in groups)
    if not df:
        return None
    means = [math.fsum(group) / len(group) for group in groups]
    squares = [(value - mean) ** 2 for group, mean in zip(groups, means, strict=True) for value in group]
    sd = math.sqrt(math.fsum(squares) / df)
    scale = max(abs(value) for group in groups for value in group)
    if sd <= 1e-12 * scale:  # rounding, as in equivalence.sd
        sd = 0.0
    low, high = (sd * math.sqrt(df / (2 * float(special.gammaincinv(df / 2, chance)))) for chance in (_SURE, 1 - _SURE))
    return Spread(sd=sd, df=df, low=low, high=high, rho=rho)
