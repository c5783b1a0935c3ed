"""Differences between two arms with their uncertainty, and what may be concluded from them.

Values are one number per seed, never per step: a thousand steps of one run are one observation. Decided here once:

- n < 2 in an arm: there is no interval, hence None, and the verdict is "inconclusive".
- No spread at all (sd 0, up to rounding): the interval is the point itself; TOST's p is 0 inside the margin, else 1.
- All quantiles come from Student's t; nothing is resampled, since bootstraps under-cover below ten runs an arm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # not scipy.stats: it takes a second to import, and `hpcml` is typed often

from hpcml.comparison import Interval, Verdict

INDICATIVE_BELOW = 5  # seeds; power at the usual margins is 2 to 30 % with 3
_ROUNDING = 1e-12  # a relative spread below this is arithmetic, not data


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """An estimate with its standard error; `df` is None where there is no standard error (n < 2)."""

    value: float
    standard_error: float
    df: float | None

    def interval(self, confidence: float) -> Interval | None:
        """Return the two-sided interval, or None for n < 2."""
        if self.df is None:
            return None
        half = self.standard_error * float(special.stdtrit(self.df, (1 + confidence) / 2)) if self.standard_error else 0
        return Interval(low=self.value - half, high=self.value + half, confidence=confidence)

    def p_tost(self, margin: float) -> float | None:
        """Return the p value of "the true value lies outside ±margin", or None for n < 2."""
        if self.df is None:
            return None
        if not self.standard_error:
            return 0.0 if abs(self.value) < margin else 1.0
        nearest = (margin - abs(self.value)) / self.standard_error  # the nearer bound gives the larger p
        return float(special.stdtr(self.df, -nearest))

    def p_above(self, bound: float) -> float | None:
        """Return the p value of "the true value is not above *bound*", or None for n < 2."""
        if self.df is None:
            return None
        if not self.standard_error:
            return 0.0 if self.value > bound else 1.0
        return float(special.stdtr(self.df, (bound - self.value) / self.standard_error))

    def turned(self) -> Contrast:
        """Return the contrast the other way round."""
        return Contrast(value=-self.value, standard_error=self.standard_error, df=self.df)


def sd(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1), exactly 0 where it is only rounding, or None for n < 2."""
    if len(values) < 2:
        return None
    scale = max(map(abs, values))
    if scale == 0:
        return 0.0
    relative = float(np.std([value / scale for value in values], ddof=1))  # scaled: squares overflow and underflow
    return 0.0 if relative <= _ROUNDING else relative * scale


def mean(values: Sequence[float]) -> Contrast:
    """Return the mean of one arm, which must not be empty."""
    spread = sd(values)
    if spread is None:
        return Contrast(value=float(values[0]), standard_error=0.0, df=None)
    n = len(values)
    return Contrast(value=math.fsum(values) / n, standard_error=spread / math.sqrt(n), df=n - 1)


def paired(arm: Sequence[float], reference: Sequence[float]) -> Contrast:
    """Return the mean of arm minus reference, taken pair by pair."""
    differences = [a - r for a, r in zip(arm, reference, strict=True)]
    contrast = mean(differences)
    scale = max(map(abs, (*arm, *reference)))
    if contrast.standard_error <= _ROUNDING * scale:  # 0.3 - 0.2 and 0.2 - 0.1 differ in their last bit only
        return Contrast(value=contrast.value, standard_error=0.0, df=contrast.df)
    return contrast


def welch(arm: Sequence[float], reference: Sequence[float]) -> Contrast:
    """Return the difference of the means of two independent arms, whose variances may differ."""
    one, other = mean(arm), mean(reference)
    value = one.value - other.value
    if one.df is None or other.df is None:
        return Contrast(value=value, standard_error=0.0, df=None)
    error = math.hypot(one.standard_error, other.standard_error)
    if error == 0:
        return Contrast(value=value, standard_error=0.0, df=one.df + other.df)
    shares = (one.standard_error / error) ** 2, (other.standard_error / error) ** 2
    df = 1 / (shares[0] ** 2 / one.df + shares[1] ** 2 / other.df)  # Welch and Satterthwaite
    return Contrast(value=value, standard_error=error, df=df)


def ratio(
    numerator: Sequence[float], denominator: Sequence[float], *, pairs: bool, confidence: float = 0.95
) -> tuple[float, Interval | None] | None:
    """Return the ratio of two arms of positive values, by t on the logarithms; None where a value is not positive.

    The estimate is the ratio of the geometric means. *pairs* says that values at the same place belong together.
    """
    if not numerator or not denominator or min(*numerator, *denominator) <= 0:
        return None
    tops, bottoms = ([math.log(value) for value in values] for values in (numerator, denominator))
    contrast = paired(tops, bottoms) if pairs else welch(tops, bottoms)
    interval = contrast.interval(confidence)
    if interval is None:
        return _exp(contrast.value), None
    return _exp(contrast.value), Interval(low=_exp(interval.low), high=_exp(interval.high), confidence=confidence)


def is_paired(arm: Mapping[int, float], reference: Mapping[int, float]) -> bool:
    """Whether two arms can be compared seed by seed: the same seeds, and at least two."""
    return len(arm) >= 2 and set(arm) == set(reference)


def correlation(arm: Sequence[float], reference: Sequence[float]) -> float | None:
    """Return Pearson's rho of the pairs; None below 3 pairs (it is always ±1 there) or where an arm has no spread."""
    if len(arm) < 3 or not sd(arm) or not sd(reference):
        return None
    ones, others = (np.asarray(values) - np.mean(values) for values in (arm, reference))
    ones, others = ones / np.abs(ones).max(), others / np.abs(others).max()  # rho has no scale, and squares underflow
    rho = float(ones @ others / math.sqrt(float(ones @ ones) * float(others @ others)))
    return max(-1.0, min(1.0, rho))


def verdict(ci90: Interval | None, margin: float | None, *, higher_is_better: bool) -> Verdict:
    """Return what the 90 % interval of arm minus reference allows to say; *margin* was fixed beforehand."""
    if margin is None:
        return "no margin"
    if ci90 is None:
        return "inconclusive"
    low, high = (ci90.low, ci90.high) if higher_is_better else (-ci90.high, -ci90.low)
    if -margin < low and high < margin:
        return "equivalent"
    if low > 0:
        return "better"
    if low > -margin:
        return "non-inferior"
    return "worse" if high < 0 else "inconclusive"


def p_not_worse(
    arm: Sequence[float], reference: Sequence[float], margin: float, *, higher_is_better: bool
) -> float | None:
    """Return the share of all pairs in which a value of *arm* is not worse than one of *reference* by *margin* or more.

    That is Mann and Whitney's U over the number of pairs, with the arm moved by the margin; a tie is half a pair.
    """
    if not arm or not reference:
        return None
    sign = 1.0 if higher_is_better else -1.0
    moved = sign * np.asarray(arm)[:, None] + margin - sign * np.asarray(reference)[None, :]
    scale = max(map(abs, (*arm, *reference)))
    ties = np.abs(moved) <= _ROUNDING * scale
    return float(np.mean(np.where(ties, 0.5, moved > 0)))


def _exp(value: float) -> float:
    return math.exp(max(-700.0, min(700.0, value)))  # two runs with wild times: beyond lies only an overflow
