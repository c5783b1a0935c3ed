"""The serial share of a scaling study, the work that does not divide: Amdahl's and Gustafson's laws, fitted.

With E the efficiency on r times the reference's devices and s the serial share, both laws are lines through the origin:

- strong scaling: ``1/E - 1 = s (r - 1)`` (G. Amdahl, AFIPS 1967). Solved for s at one point it is the metric of A. Karp
  and H. Flatt (Commun. ACM 33, 1990).
- weak scaling: ``1 - E = s (1 - 1/r)`` (J. Gustafson, Commun. ACM 31, 1988).

The fit is weighted least squares, with the weights of times whose noise is in proportion to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hpcml.analysis import statistics
from hpcml.analysis.statistics import Contrast
from hpcml.model.comparison import Interval
from hpcml.model.scaling import Kind, SerialShare

_FEWEST_FOR_AN_INTERVAL = 3  # numbers of devices: two points lie on any such line, so that nothing is tested
BySeed = Mapping[int, float]


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
    share = sum(place.coefficient * _ordinate(kind, place.slowdown) for place in places.values())
    interval = None
    if len(others) + 1 >= _FEWEST_FOR_AN_INTERVAL:
        seeds = {frozenset(values) for values in used.values()}
        if len(seeds) == 1 and len(next(iter(seeds))) > 1:
            interval = _by_seed(kind, reference, used, places)
        else:
            interval = _by_delta(kind, reference, used, places, share)
    is_amdahl = kind == "strong"
    return SerialShare(
        law="Amdahl" if is_amdahl else "Gustafson",
        share=share,
        ci95=interval,
        most_speedup=1 / share if is_amdahl and share > 0 else None,
        misfit=max(abs(_expected(kind, share, place.ratio) / place.slowdown - 1) for place in places.values()),
    )


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
    return statistics.mean(shares).interval(0.95)


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
        logs = statistics.mean([math.log(value) for value in used[n].values()])
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
