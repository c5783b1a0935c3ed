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

import numpy as np
from numpy.typing import NDArray

from hpcml.analysis import stats
from hpcml.analysis.compare.result import Interval
from hpcml.analysis.scaling.result import Kind, SerialShare
from hpcml.analysis.stats import BySeed

_FEWEST_FOR_AN_INTERVAL = 3  # numbers of devices: two points lie on any such line, so that nothing is tested
_ROUNDING = 1e-12
_Array = NDArray[np.float64]


def fit_serial_share(kind: Kind, reference: int, costs_s: Mapping[int, BySeed]) -> SerialShare | None:
    """Return the fitted share with its 95 % interval, or None where no number above the reference's has a speed.

    *costs_s* are positive times in seconds of a sample (or of a step, where all steps are alike) by number of devices
    and seed; *reference* is a number of devices. The interval is Student's t over one fit for each seed that all
    numbers have; it is None below two of these, and below three numbers of devices.

    >>> found = fit_serial_share("strong", 1, {1: {0: 1.0}, 2: {0: 0.55}, 4: {0: 0.325}})
    >>> found is not None and (found.law, round(found.share, 3))
    ('Amdahl', 0.1)
    """
    used = {devices: values for devices, values in costs_s.items() if devices >= reference and values}
    others = sorted(used.keys() - {reference})
    if reference not in used or not others or any(min(values.values()) <= 0 for values in used.values()):
        return None
    ratios = np.array(others) / reference
    slowdowns = ratios * [_geometric(used[n]) / _geometric(used[reference]) for n in others]
    abscissas = ratios - 1 if kind == "strong" else 1 - 1 / ratios
    weights = slowdowns ** (-2.0 if kind == "strong" else 2.0)
    coefficients = weights * abscissas / np.sum(weights * abscissas**2)
    share = _settled(float(coefficients @ _ordinates(kind, slowdowns)))
    seeds = sorted(set.intersection(*(set(values) for values in used.values())))
    interval, noise = None, 0.0
    if len(used) >= _FEWEST_FOR_AN_INTERVAL and len(seeds) > 1:
        times = np.array([[used[n][seed] / used[reference][seed] for n in others] for seed in seeds])
        noise = float(np.max(np.std(np.log(times), axis=0, ddof=1))) / math.sqrt(len(seeds))
        found = stats.mean(list(_ordinates(kind, ratios * times) @ coefficients)).interval(0.95)
        if found is not None:
            interval = Interval(low=_settled(found.low), high=_settled(found.high), confidence=0.95)
    return SerialShare(
        law="Amdahl" if kind == "strong" else "Gustafson",
        share=share,
        ci95=interval,
        most_speedup=1 / share if kind == "strong" and share > 0 else None,
        noise=noise,
        misfit=float(np.max(np.abs(_expected(kind, share, ratios) / slowdowns - 1))),
    )


def _settled(share: float) -> float:
    """Return 0 for a *share* that is rounding alone: times that divide without a rest, say."""
    return float(share) if abs(share) > _ROUNDING else 0.0


def _ordinates(kind: Kind, slowdowns: _Array) -> _Array:
    return slowdowns - 1 if kind == "strong" else 1 - 1 / slowdowns


def _expected(kind: Kind, share: float, ratios: _Array) -> _Array:
    """Return the 1/E of the law; infinite where it would need an efficiency of zero or less."""
    if kind == "strong":
        return 1 + share * (ratios - 1)
    efficiencies = 1 - share * (1 - 1 / ratios)
    return np.where(efficiencies > 0, 1 / np.where(efficiencies > 0, efficiencies, 1.0), math.inf)


def _geometric(values: BySeed) -> float:
    return math.exp(math.fsum(map(math.log, values.values())) / len(values))
