"""The statistics of `hpcml compare`, `scaling`, `plan` and `report`: contrasts of two arms, verdicts, p values.

An arm holds the runs of one setting; its values are one number per seed, in the unit of the metric, never one per step:
a thousand steps of one run are one observation. The sections of the file, each of pure functions:

- Contrasts: `mean`, `paired` (t test on differences), `welch` (Welch's t test) and `ratio` (either, on logarithms).
- Verdicts from one-sided t tests at 5 %. Equivalence is TOST (D. J. Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987),
  which says the same as a 90 % interval inside the margin.
- Holm's adjustment of the p values of a whole table (S. Holm, Scand. J. Statist. 6, 1979). The chance of even one false
  claim of a kind in the table is at most 5 %, also where the rows depend on each other by their common reference.
- Lost runs and times to a target: the interval of a share, the log-rank test.
- `band`: the mean of several seeds' curves with its interval.

n < 2 in an arm: there is no interval, hence None. n < 3: there is one, but no claim (`LEAST_SEEDS`). All quantiles come
from Student's t; nothing is resampled, since bootstraps under-cover below ten runs an arm.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy import special  # its distributions: scipy.stats takes a second to import

from hpcml.analysis.compare.result import Band, Interval, Verdict

LEAST_SEEDS = 3  # below, no verdict: two runs that happen to agree would be certain of anything
ENOUGH_SEEDS = 5  # below, indicative: power at the usual margins is 2 to 30 % with 3
ALPHA = 0.05
_ROUNDING = 1e-14  # a relative spread below this is arithmetic, not data: some 50 last bits
BySeed = Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """An estimate with its standard error, both in the unit of the values.

    `df` are the degrees of freedom of Student's t; None where there is no standard error (n < 2), which is 0 then.
    """

    value: float
    standard_error: float
    df: float | None

    @property
    def has_no_spread(self) -> bool:
        """Whether several values were seen and are all the same: nothing says how certain the estimate is."""
        return self.df is not None and not self.standard_error

    def interval(self, confidence: float) -> Interval | None:
        """Return the two-sided t interval ``value ± t(df, (1 + confidence) / 2) * standard_error``; None for n < 2."""
        if self.df is None:
            return None
        half = self.standard_error * float(special.stdtrit(self.df, (1 + confidence) / 2)) if self.standard_error else 0
        return Interval(low=self.value - half, high=self.value + half, confidence=confidence)

    def p_above(self, bound: float) -> float | None:
        """Return the p value of a one-sided t test of "the true value is not above *bound*", or None for n < 2."""
        if self.df is None:
            return None
        if not self.standard_error:
            return 0.0 if self.value > bound else 1.0
        return float(special.stdtr(self.df, (bound - self.value) / self.standard_error))

    def p_tost(self, margin: float) -> float | None:
        """Return the p value of two one-sided tests of "the true value lies outside ±margin", or None for n < 2.

        Below 0.05 exactly where the 90 % interval lies inside ±margin.
        """
        above, below = self.p_above(-margin), self.turned().p_above(-margin)
        return None if above is None or below is None else max(above, below)

    def turned(self) -> Contrast:
        """Return the contrast of reference minus arm instead of arm minus reference."""
        return Contrast(value=-self.value, standard_error=self.standard_error, df=self.df)


def average(values: Sequence[float]) -> float:
    """Return the mean of *values*, of which there is one at least; near the largest number, too.

    >>> average([0.25, 0.5]), average([1.5e308, 1.5e308])
    (0.375, 1.5e+308)
    """
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # a C program's "best so far" begins with the largest number that there is
        return math.fsum(value / len(values) for value in values)


def sd(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (divisor n - 1), or None for n < 2; exactly 0.0 where it is only rounding.

    >>> sd([1.0, 2.0, 3.0])
    1.0
    """
    return None if len(values) < 2 else _sd(values, max(map(abs, values)))


def _sd(values: Sequence[float], scale: float) -> float:
    """Return the standard deviation of *values*, which were computed from numbers up to *scale*."""
    moved = np.asarray(values, dtype=float) - values[0]  # exact where values lie near each other, however large
    widest = float(np.abs(moved).max())
    if widest <= _ROUNDING * scale:
        return 0.0
    return float(np.std(moved / widest, ddof=1)) * widest  # else squares over- or underflow


def _mean(values: Sequence[float], scale: float) -> Contrast:
    if len(values) < 2:
        return Contrast(value=float(values[0]), standard_error=0.0, df=None)
    n = len(values)
    return Contrast(value=average(values), standard_error=_sd(values, scale) / math.sqrt(n), df=n - 1)


def mean(values: Sequence[float]) -> Contrast:
    """Return the mean of one arm with its standard error ``sd / sqrt(n)`` and n - 1 degrees of freedom.

    *values* is one number per seed and must not be empty.

    >>> mean([1.0, 2.0, 3.0]).value
    2.0
    """
    return _mean(values, max(map(abs, values)))


def paired(arm: Sequence[float], reference: Sequence[float]) -> Contrast:
    """Return the mean of arm minus reference with the standard error of the paired t test.

    The values at the same place belong to the same seed; raises `ValueError` where the two differ in length.

    >>> round(paired([0.92, 0.93, 0.91], [0.90, 0.92, 0.90]).value, 4)
    0.0133
    """
    differences = [a - r for a, r in zip(arm, reference, strict=True)]
    return _mean(differences, max(map(abs, (*arm, *reference))))  # 0.3 - 0.2 and 0.2 - 0.1 differ in their last bit


def welch(arm: Sequence[float], reference: Sequence[float]) -> Contrast:
    """Return the difference of the means of two independent arms, whose variances may differ.

    Welch's t test: the standard error is ``sqrt(s1²/n1 + s2²/n2)``, the degrees of freedom are those of Welch and
    Satterthwaite (B. L. Welch, Biometrika 34, 1947). The arms may have different numbers of seeds.

    >>> found = welch([2.0, 4.0], [1.0, 3.0])
    >>> found.value, round(found.standard_error, 6), round(found.df, 6)
    (1.0, 1.414214, 2.0)
    """
    one, other = mean(arm), mean(reference)
    value = one.value - other.value
    if one.df is None or other.df is None:
        return Contrast(value=value, standard_error=0.0, df=None)
    error = math.hypot(one.standard_error, other.standard_error)
    if error == 0:
        return Contrast(value=value, standard_error=0.0, df=one.df + other.df)
    shares = (one.standard_error / error) ** 2, (other.standard_error / error) ** 2
    return Contrast(value=value, standard_error=error, df=1 / (shares[0] ** 2 / one.df + shares[1] ** 2 / other.df))


def paired_seeds(arm: BySeed, reference: BySeed) -> tuple[int, ...]:
    """Return the seeds that two arms, both by seed, are compared by one by one, ascending; () where they are not.

    That is where both have the same two seeds or more, or where they share three or more, and half of the larger arm at
    least: one that was lost of one arm is left out, and costs the others nothing. Values are never looked at.

    >>> paired_seeds({0: 0.91, 1: 0.92, 2: 0.9, 3: 0.9}, {0: 0.90, 1: 0.93, 3: 0.9})
    (0, 1, 3)
    """
    shared = tuple(sorted(arm.keys() & reference.keys()))
    of_larger = max(len(arm), len(reference))
    is_half = len(shared) >= LEAST_SEEDS and 2 * len(shared) >= of_larger
    return shared if is_half or 2 <= len(shared) == of_larger else ()


def by_seeds(arm: BySeed, reference: BySeed) -> Contrast:
    """Return arm minus reference, neither of them empty: over `paired_seeds` where there are some, else unpaired."""
    if pairs := paired_seeds(arm, reference):
        return paired([arm[seed] for seed in pairs], [reference[seed] for seed in pairs])
    return welch(list(arm.values()), list(reference.values()))


def correlation(arm: Sequence[float], reference: Sequence[float]) -> float | None:
    """Return Pearson's correlation of the pairs; None below 3 (it is ±1 there) or where an arm has no spread."""
    if len(arm) < 3 or not sd(arm) or not sd(reference):
        return None
    ones, others = (np.asarray(values) - np.mean(values) for values in (arm, reference))
    return float(np.corrcoef(ones / np.abs(ones).max(), others / np.abs(others).max())[0, 1])


def exp_of(contrast: Contrast) -> tuple[float, Interval | None]:
    """Return the ratio whose logarithm *contrast* is, with its 95 % interval; None where nothing varies."""
    interval = None if contrast.has_no_spread else contrast.interval(0.95)
    if interval is not None:
        interval = Interval(low=_exp(interval.low), high=_exp(interval.high), confidence=0.95)
    return _exp(contrast.value), interval


def _exp(value: float) -> float:
    return math.exp(max(-700.0, min(700.0, value)))  # two runs with wild times: beyond lies only an overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """One p value for each claim that a row could make; each null hypothesis is that the claim does not hold."""

    equivalent: float
    better: float
    non_inferior: float
    worse_by_margin: float
    worse: float


KINDS = tuple(field.name for field in fields(Claims))
_VERDICTS: Mapping[Verdict, str] = {  # in the order in which they are tried
    "equivalent": "equivalent",
    "better": "better",
    "non-inferior": "non_inferior",
    "worse by more than the margin": "worse_by_margin",
    "worse": "worse",
}


def find_claims(contrast: Contrast, margin: float | None, *, higher_is_better: bool) -> Claims | None:
    """Return the p values of what *contrast* (arm minus reference) may show; None without a margin, or for n < 2.

    "equivalent" is tested by TOST, the others by a one-sided t test against 0 or -margin, each at 5 %: of two truly
    equal arms one in ten is called better or worse.
    """
    if margin is None or contrast.df is None:
        return None
    gain = contrast if higher_is_better else contrast.turned()
    loss = gain.turned()
    ps = (
        *(contrast.p_tost(margin), gain.p_above(0.0), gain.p_above(-margin)),
        *(loss.p_above(margin), loss.p_above(0.0)),
    )
    return Claims(**dict(zip(KINDS, (1.0 if p is None else p for p in ps), strict=True)))


def holm(ps: Sequence[float]) -> list[float]:
    """Return the p values of *ps* adjusted by Holm (1979), in their order.

    The k-th smallest of m is multiplied by m - k + 1; none is below a smaller one's, none above 1.

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    adjusted = [1.0] * len(ps)
    most = 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        most = max(most, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = most
    return adjusted


def adjust(claims: Sequence[Claims]) -> list[Claims]:
    """Return *claims*, one per row of a table, in their order, adjusted by Holm; each kind is a family of its own."""
    kinds = [holm([getattr(row, kind) for row in claims]) for kind in KINDS]
    return [Claims(**dict(zip(KINDS, ps, strict=True))) for ps in zip(*kinds, strict=True)]


def p_of(claims: Claims, verdict: Verdict) -> float | None:
    """Return the p value of what *verdict* claims; None where it claims nothing."""
    kind = _VERDICTS.get(verdict)
    return None if kind is None else float(getattr(claims, kind))


def verdict_of(claims: Claims) -> Verdict:
    """Return the first claim whose adjusted p value is below 5 %; else "inconclusive"."""
    held: list[Verdict] = [verdict for verdict, kind in _VERDICTS.items() if getattr(claims, kind) < ALPHA]
    return held[0] if held else "inconclusive"


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

    Times of *end* or more are censored there. None below five times an arm, where chi-square is off, and where all are
    censored.
    """
    from scipy import stats  # noqa: PLC0415 - takes half a second to import, and few comparisons have a target

    if min(len(times), len(others)) < ENOUGH_SEEDS:
        return None
    arms = [np.asarray(values, dtype=float) for values in (times, others)]
    known = [stats.CensoredData(uncensored=arm[arm < end], right=np.minimum(arm[arm >= end], end)) for arm in arms]
    p = float(stats.logrank(*known).pvalue) if any(arm.min() < end for arm in arms) else math.nan
    return p if math.isfinite(p) else None


CONFIDENCE = 0.95
_MOST = 120  # points of a band: more than a chart has room for steps in a mean
Track = tuple[Sequence[float], Sequence[float]]  # x, which increases, and y


def band(tracks: Sequence[tuple[int, Track]], *, most: int = _MOST) -> Band | None:
    """Return the mean of *tracks* with its 95 % t interval at each place, or None where they have no x in common.

    *tracks* are pairs of a seed and its curve (x, y) with x increasing. Tracks of one seed are averaged first: the seed
    is the unit. Nothing is drawn beyond the end of the shortest, since a mean over fewer seeds would jump there.
    Between two points of a track the straight line counts. The band has at most *most* places; where a value is not
    finite its mean is None, and with one seed there are no ends.
    """
    known = [(seed, np.asarray(x, dtype=float), np.asarray(y, dtype=float)) for seed, (x, y) in tracks if len(x)]
    if not known:
        return None
    first, last = max(float(x[0]) for _, x, _ in known), min(float(x[-1]) for _, x, _ in known)
    if first > last:
        return None
    grid = _grid([x for _, x, _ in known], first, last, most)
    by_seed: defaultdict[int, list[NDArray[np.float64]]] = defaultdict(list)
    for seed, x, y in known:
        by_seed[seed].append(np.interp(grid, x, y))
    with np.errstate(over="ignore", invalid="ignore"):  # what is no number any more is left out below
        values = np.array([np.mean(lines, axis=0) for lines in by_seed.values()])
    points = [_point([float(value) for value in column]) for column in values.T]
    return Band(
        x=tuple(float(x) for x in grid),
        mean=tuple(mean for mean, _, _ in points),
        low=tuple(low for _, low, _ in points),
        high=tuple(high for _, _, high in points),
        confidence=CONFIDENCE,
        seeds=len(by_seed),
    )


def _grid(tracks: Sequence[NDArray[np.float64]], first: float, last: float, most: int) -> NDArray[np.float64]:
    """Return all x of the tracks within first and last, or *most* equidistant ones where they are more than that."""
    own = np.unique(np.concatenate(tracks))
    own = own[(own >= first) & (own <= last)]
    return own if len(own) <= most else np.linspace(first, last, most)


def _point(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    if not all(math.isfinite(value) for value in values):
        return None, None, None
    centre = mean(values)
    interval = centre.interval(CONFIDENCE)
    return (centre.value, None, None) if interval is None else (centre.value, interval.low, interval.high)
