"""The serial share of a scaling study, the work that does not divide: Amdahl's and Gustafson's laws, fitted.

With E the efficiency on r times the reference's devices and s the serial share, both laws are lines through the origin:

- strong scaling: ``1/E - 1 = s (r - 1)`` (G. Amdahl, AFIPS 1967). Solved for s at one point it is the metric of A. Karp
  and H. Flatt (Commun. ACM 33, 1990).
- weak scaling: ``1 - E = s (1 - 1/r)`` (J. Gustafson, Commun. ACM 31, 1988).

The fit is weighted least squares, with the weights of times whose noise is in proportion to them. Whether the law
describes the times at all is tested against the seeds' own spread (lack of fit, by generalised least squares on the
logarithms: all slow-downs share the noise of the reference). Where Amdahl's law does not, a third term is tried, a cost
for each doubling of the devices as a tree of messages has it: ``1/E = 1 + s (r - 1) + c r log2 r``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import special  # not scipy.stats: it takes a second to import

from hpcml.analysis import stats
from hpcml.analysis.stats import Contrast
from hpcml.model.comparison import Interval
from hpcml.model.scaling import Kind, SerialShare

_FEWEST_FOR_AN_INTERVAL = 3  # numbers of devices: two points lie on any such line, so that nothing is tested
_ROUNDING = 1e-12
BySeed = Mapping[int, float]
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One number of devices, relative to the reference: a point of the fitted line."""

    ratio: float  # of the devices
    slowdown: float  # 1/E, by geometric means
    coefficient: float  # of its point in the fitted share


def fit_serial_share(kind: Kind, reference: int, costs_s: Mapping[int, BySeed]) -> SerialShare | None:
    """Return the fitted share with its 95 % interval, or None where no number above the reference's has a speed.

    *costs_s* are positive times in seconds of a sample (or of a step, where all steps are alike) by number of devices
    and seed; *reference* is a number of devices. The interval is Student's t over one fit for each seed where all
    numbers have the same seeds, else by the delta method; it is None below three numbers of devices.

    >>> found = fit_serial_share("strong", 1, {1: {0: 1.0}, 2: {0: 0.55}, 4: {0: 0.325}})
    >>> found is not None and (found.law, round(found.share, 3))
    ('Amdahl', 0.1)
    """
    used = {devices: values for devices, values in costs_s.items() if devices >= reference and values}
    others = sorted(used.keys() - {reference})
    if reference not in used or not others or any(min(values.values()) <= 0 for values in used.values()):
        return None
    places = _places(kind, reference, used, others)
    share = _settled(sum(place.coefficient * _ordinate(kind, place.slowdown) for place in places.values()))
    interval = None
    if len(others) + 1 >= _FEWEST_FOR_AN_INTERVAL:
        seeds = {frozenset(values) for values in used.values()}
        if len(seeds) == 1 and len(next(iter(seeds))) > 1:
            interval = _by_seed(kind, reference, used, places)
        else:
            interval = _by_delta(kind, reference, used, places, share)
    if interval is not None:
        interval = replace(interval, low=_settled(interval.low), high=_settled(interval.high))
    is_amdahl = kind == "strong"
    noise = _noise(used)
    p = None if noise is None else _p_lack_of_fit(_deviations(kind, share, places), noise, used, reference)
    beside = None
    if is_amdahl and p is not None and p < stats.ALPHA and noise is not None:
        beside = _with_doublings(places, noise, used, reference)
    return SerialShare(
        law="Amdahl" if is_amdahl else "Gustafson",
        share=share,
        ci95=interval,
        most_speedup=1 / share if is_amdahl and share > 0 else None,
        misfit=max(abs(_expected(kind, share, place.ratio) / place.slowdown - 1) for place in places.values()),
        p_lack_of_fit=p,
        per_doubling=None if beside is None else beside[1],
        serial_beside=None if beside is None else beside[0],
    )


def _settled(share: float) -> float:
    """Return 0 for a *share* that is rounding alone: times that divide without a rest, say."""
    return share if abs(share) > _ROUNDING else 0.0


def _places(kind: Kind, reference: int, used: Mapping[int, BySeed], others: list[int]) -> dict[int, _Place]:
    slowdowns = {n: n / reference * _geometric(used[n]) / _geometric(used[reference]) for n in others}
    weights = {n: slowdowns[n] ** (-2 if kind == "strong" else 2) for n in others}
    abscissas = {n: _abscissa(kind, n / reference) for n in others}
    total = sum(weights[n] * abscissas[n] ** 2 for n in others)
    return {
        n: _Place(ratio=n / reference, slowdown=slowdowns[n], coefficient=weights[n] * abscissas[n] / total)
        for n in others
    }


def _by_seed(kind: Kind, reference: int, used: Mapping[int, BySeed], places: Mapping[int, _Place]) -> Interval | None:
    shares = [
        sum(
            place.coefficient * _ordinate(kind, place.ratio * used[n][seed] / used[reference][seed])
            for n, place in places.items()
        )
        for seed in used[reference]
    ]
    return stats.mean(shares).interval(0.95)


def _by_delta(
    kind: Kind, reference: int, used: Mapping[int, BySeed], places: Mapping[int, _Place], share: float
) -> Interval | None:
    """Return the interval by the delta method: the variances of the mean logarithms times the squared slopes.

    Its degrees of freedom are those of Welch and Satterthwaite.
    """
    gradient = {
        n: place.coefficient * (place.slowdown if kind == "strong" else 1 / place.slowdown)
        for n, place in places.items()
    }
    gradient[reference] = -sum(gradient.values())
    variances = []
    for n, slope in gradient.items():
        logs = stats.mean([math.log(value) for value in used[n].values()])
        if logs.df is None:
            return None
        variances.append(((slope * logs.standard_error) ** 2, logs.df))
    variance = sum(part for part, _ in variances)
    if variance == 0:
        return Interval(low=share, high=share, confidence=0.95)
    df = variance**2 / sum(part**2 / df for part, df in variances)
    return Contrast(value=share, standard_error=math.sqrt(variance), df=df).interval(0.95)


def _abscissa(kind: Kind, ratio: float) -> float:
    return ratio - 1 if kind == "strong" else 1 - 1 / ratio


def _ordinate(kind: Kind, slowdown: float) -> float:
    return slowdown - 1 if kind == "strong" else 1 - 1 / slowdown


def _expected(kind: Kind, share: float, ratio: float) -> float:
    """Return the 1/E of the law; infinite where it would need an efficiency of zero or less."""
    if kind == "strong":
        return 1 + share * (ratio - 1)
    efficiency = 1 - share * (1 - 1 / ratio)
    return 1 / efficiency if efficiency > 0 else math.inf


def _geometric(values: BySeed) -> float:
    return math.exp(math.fsum(map(math.log, values.values())) / len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noise:
    """The variance of the logarithm of a time between seeds, and its degrees of freedom."""

    variance: float
    df: int


def _noise(used: Mapping[int, BySeed]) -> _Noise | None:
    """Return the noise pooled over all numbers of devices, without what seeds have in common; None without a spread."""
    logs = [{seed: math.log(value) for seed, value in values.items()} for values in used.values()]
    means = [math.fsum(of.values()) / len(of) for of in logs]
    if len({frozenset(of) for of in logs}) == 1:
        seeds = list(logs[0])
        table = np.array([[of[seed] for seed in seeds] for of in logs])
        rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
        squares, df = float((rest**2).sum()), (len(logs) - 1) * (len(seeds) - 1)
    else:
        squares = math.fsum((x - mean) ** 2 for of, mean in zip(logs, means, strict=True) for x in of.values())
        df = sum(len(of) - 1 for of in logs)
    return _Noise(variance=squares / df, df=df) if df and squares > 0 else None


def _deviations(kind: Kind, share: float, places: Mapping[int, _Place]) -> tuple[_Array, _Array] | None:
    """Return how the logarithms of the slow-downs leave the law, and their slopes by the share; None beyond the law."""
    expected = np.array([_expected(kind, share, place.ratio) for place in places.values()])
    if not np.all(np.isfinite(expected) & (expected > 0)):
        return None
    abscissas = np.array([_abscissa(kind, place.ratio) for place in places.values()])
    slopes = abscissas / expected if kind == "strong" else abscissas * expected
    return np.log([place.slowdown for place in places.values()]) - np.log(expected), slopes[:, None]


def _p_lack_of_fit(
    told: tuple[_Array, _Array] | None, noise: _Noise, used: Mapping[int, BySeed], reference: int
) -> float | None:
    """Return the p value of an F test of what remains after the best fit; None where nothing can remain."""
    if told is None:
        return 0.0
    deviations, slopes = told
    others = sorted(used.keys() - {reference})
    df = len(others) - slopes.shape[1]
    if df < 1:
        return None
    covariance = np.diag([1 / len(used[n]) for n in others]) + 1 / len(used[reference])
    inverse = np.linalg.inv(covariance)
    fitted = np.linalg.solve(slopes.T @ inverse @ slopes, slopes.T @ inverse @ deviations)
    rest = deviations - slopes @ fitted
    return float(special.fdtrc(df, noise.df, float(rest @ inverse @ rest) / noise.variance / df))


def _with_doublings(
    places: Mapping[int, _Place], noise: _Noise, used: Mapping[int, BySeed], reference: int
) -> tuple[float, float] | None:
    """Return the serial share and the cost of a doubling that describe the times, or None where none do."""
    ratios = np.array([place.ratio for place in places.values()])
    slowdowns = np.array([place.slowdown for place in places.values()])
    terms = np.stack([ratios - 1, ratios * np.log2(ratios)], axis=1)
    if len(ratios) < 3:  # as many unknowns as numbers: nothing would be tested
        return None
    (share, cost), *_ = np.linalg.lstsq(terms / slowdowns[:, None], (slowdowns - 1) / slowdowns, rcond=None)
    expected = 1 + terms @ np.array([share, cost])
    if cost <= 0 or share < 0 or np.any(expected <= 0):
        return None
    p = _p_lack_of_fit((np.log(slowdowns / expected), terms / expected[:, None]), noise, used, reference)
    return (float(share), float(cost)) if p is not None and p >= stats.ALPHA else None
