"""`hpcml plan`: how many seeds a verdict needs, from the spread of the runs at hand.

Runs are sorted into cells, the spread of each is estimated, and the power of the tests of `hpcml.analysis.stats` is
simulated for it: one-sided t tests (Welch's where seeds are not paired) on values from normal distributions that are
truly equal. The standard errors that a comparison may see are drawn; given them, the estimate is normal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy import special  # not scipy.stats: it takes a second to import

from hpcml.analysis import stats
from hpcml.analysis.compare.cells import find_cells
from hpcml.analysis.compare.factor import Factor, find_factor, find_reference
from hpcml.analysis.compare.objective import Yardstick, find_margin, find_yardstick, not_ended
from hpcml.analysis.flags import Flag, FlagCode, flag
from hpcml.analysis.frame import Arm, sort_runs
from hpcml.analysis.planning import Design, PowerCell, PowerPlan, Spread, WantedVerdict
from hpcml.errors import ComparisonError
from hpcml.model.records import RunRecord

COLUMNS = (3, 5, 8, 10, 15, 20, 30)  # seeds of the table
_SHARED = 0.5  # correlation of differences to one reference, where all arms vary alike
_ONE_SEED = 1.0  # of values of one seed in several arms, at most: what so few runs show of it is too uncertain
_MARGINS = (0.5, 0.75, 1.0, 1.5, 2.0)  # of the table, times the one asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What is the same for all cells of one plan."""

    factor: Factor
    reference: str
    yardstick: Yardstick
    margin: float | None
    power: float
    verdict: WantedVerdict
    comparisons: int


class _How(TypedDict):
    verdict: WantedVerdict
    paired: bool
    comparisons: int


def plan_seeds(
    runs: Sequence[RunRecord],
    *,
    by: str,
    reference: str | None,
    metric: str | None,
    margin: float | None,
    power: float,
    verdict: WantedVerdict,
    comparisons: int,
) -> PowerPlan:
    """Return the seeds needed to show *verdict* with *power* (a share, e.g. 0.8), cell by cell.

    *by*, *reference* and *metric* are as for `hpcml compare`; *margin* is in the unit of the metric, None means the
    runs' own. *comparisons* verdicts share the risk of 5 %. Raises `ComparisonError` where no margin is known, or where
    no cell has two seeds of one level.
    """
    if not runs:
        raise ComparisonError("no runs to plan from: none matches the selection")
    runs = [run for _, run in sorted({run.uid: run for run in runs}.items())]
    factor = find_factor(by, runs)
    levels = sorted({factor.level(run) for run in runs}, key=factor.sort_key)
    terms = _Terms(
        factor=factor,
        reference=find_reference(factor, levels, reference),
        yardstick=find_yardstick(runs, metric, None),
        margin=margin,
        power=power,
        verdict=verdict,
        comparisons=comparisons,
    )
    cells, unusable = [], []
    for cell in find_cells(factor, runs):
        outcome = _cell(dict(cell.where), cell.runs, terms)
        if isinstance(outcome, PowerCell):
            cells.append(outcome)
        else:
            unusable.append(outcome)
    if not cells:
        waiting = not_ended(runs)
        raise ComparisonError(
            f"the spread of {terms.yardstick.metric} cannot be told: {unusable[0]}"
            f"{f' (and {len(unusable) - 1} more)' if len(unusable) > 1 else ''}"
            f"{f'; {waiting}' if waiting else ''}; it takes two seeds of one "
            "configuration at least, better five: hpcml run -m 'seed=range(5)'"
        )
    return PowerPlan(
        by=factor.name,
        metric=terms.yardstick.metric,
        verdict=verdict,
        power=power,
        comparisons=comparisons,
        columns=COLUMNS,
        cells=cells,
        unusable=unusable,
    )


def _cell(where: Mapping[str, str], runs: Sequence[RunRecord], terms: _Terms) -> PowerCell | str:
    """Return the plan of one cell, or in words why there is none."""
    factor, metric = terms.factor, terms.yardstick.metric
    arms = {
        level: sort_runs(level, [run for run in runs if factor.level(run) == level], metric)
        for level in sorted({factor.level(run) for run in runs}, key=factor.sort_key)
    }
    seeds = {level: len(arm.values) for level, arm in arms.items()}
    if all(len(arm.values) < 2 for arm in arms.values()):
        counts = ", ".join(f"{level} n={n}" for level, n in seeds.items())
        return f"{', '.join(f'{key}={value}' for key, value in where.items())}: {counts}"
    margin = find_margin([run for arm in arms.values() for run in arm.ok], metric, terms.margin)
    if margin.value is None or margin.source is None:
        raise ComparisonError(
            f"which difference in {metric} matters? say --margin X, from what the result is for and not from its "
            "spread, or set objective.margin in the configuration"
        )
    spreads = find_spreads(arms, terms.reference)
    lost = _lost_share(arms)
    designs = [_design(spread, margin.value, terms, paired=pairs, lost=lost) for pairs, spread in spreads.items()]
    return PowerCell(
        where=where,
        margin=margin.value,
        margin_source=margin.source,
        seeds=seeds,
        designs=designs,
        flags=tuple(_flags(arms, designs, terms)),
    )


def find_spreads(arms: Mapping[str, Arm], reference: str) -> dict[bool, Spread]:
    """Return the spread of differences (True, where some seeds are shared) and that of an arm (False), by `paired`.

    Their bounds reckon with what arms have in common: the reference, or the seeds. Empty where no arm has two seeds.
    """
    unpaired, paired = pooled([list(arm.values.values()) for arm in arms.values()]), _paired_spread(arms, reference)
    if unpaired is None:
        return {}
    if paired is None:
        return {False: unpaired}
    return {True: _narrowed(paired, len(arms) - 1, _SHARED), False: _narrowed(unpaired, len(arms), _ONE_SEED)}


def _narrowed(spread: Spread, groups: int, rho: float) -> Spread:
    """Return *spread* with the degrees of freedom that *groups* of values which correlate by *rho* really have.

    The sums of squares of two such groups correlate by rho², and a sum of them has the variance of a chi-square with
    ``df / (1 + (groups - 1) rho²)`` (Satterthwaite's rule).
    """
    return _bounded(spread.sd, spread.df / (1 + max(0, groups - 1) * rho**2))


def _lost_share(arms: Mapping[str, Arm]) -> float:
    lost = sum(len(arm.without_value) for arm in arms.values())
    return lost / (lost + sum(len(arm.ok) for arm in arms.values())) if lost else 0.0


def _paired_spread(arms: Mapping[str, Arm], reference: str) -> Spread | None:
    """Return the spread of differences to the reference over shared seeds; None below two of them."""
    base = arms[reference].values if reference in arms else {}
    others = [arm.values for level, arm in arms.items() if level != reference]
    return pooled([[values[seed] - base[seed] for seed in values if seed in base] for values in others])


def _design(spread: Spread, margin: float, terms: _Terms, *, paired: bool, lost: float) -> Design:
    how = _How(verdict=terms.verdict, paired=paired, comparisons=terms.comparisons)

    def needed(sd: float) -> int | None:
        if sd == 0:
            return stats.LEAST_SEEDS
        return seeds_needed(margin / sd, terms.power, **how)

    seeds = needed(spread.sd)
    return Design(
        paired=paired,
        spread=spread,
        seeds=seeds,
        to_launch=math.ceil(seeds / (1 - lost)) if seeds is not None and 0 < lost < 1 else None,
        seeds_low=needed(spread.low),
        seeds_high=needed(spread.high),
        table=[
            (each * margin, [power(n, each * margin / spread.sd, **how) if spread.sd else 1.0 for n in COLUMNS])
            for each in _MARGINS
        ],
    )


def _flags(arms: Mapping[str, Arm], designs: Sequence[Design], terms: _Terms) -> Iterator[Flag]:
    spreads = [design.spread for design in designs]
    if lost := sum(len(arm.without_value) for arm in arms.values()):
        launch = ", ".join(
            f"{design.to_launch} for {design.seeds} {'in pairs' if design.paired else 'unpaired'}"
            for design in designs
            if design.to_launch is not None
        )
        more = f"launch {launch}" if launch else "plan more seeds"
        yield flag(
            FlagCode.INCOMPLETE, what=f"{lost} ended runs without a value; if as large a share is lost again, {more}"
        )
    if any(spread.sd == 0 for spread in spreads):
        advice = "does the seed change anything? three seeds are the least that a verdict takes"
        yield flag(FlagCode.NO_SPREAD, "doubt", advice=advice)
    if len(spreads) == 1:
        how = f"not paired: no two seeds were run with {terms.reference} and another {terms.factor.name}"
        yield flag(FlagCode.UNPAIRED, how=how)
    if len(arms) > 2 and terms.comparisons == 1:
        others = len(arms) - 1
        what = f"{others} levels are judged against {terms.reference}: --comparisons {others} plans for all together"
        yield flag(FlagCode.ASSUMED, "doubt", what=what)
    if any(spread.sd > 0 for spread in spreads):
        what = f"the two arms are taken to be truly equal and to vary alike; at most {MOST_SEEDS} seeds are tried"
        yield flag(FlagCode.ASSUMED, what=what)


MOST_SEEDS = 1000  # tried; whoever needs more needs another margin
_SURE = 0.80  # confidence of each bound of a spread
_DRAWS = 6000  # of standard errors; the power is within 0.01 of the integral over all of them (tests)


@cache  # the same few numbers of seeds are asked about again and again, for other margins
def _half_intervals(n: int, *, paired: bool, comparisons: int) -> tuple[NDArray[np.float64], float]:
    """Return draws of half the interval that *n* seeds an arm see, and the true standard error of the difference."""
    df, risk = n - 1, stats.ALPHA / comparisons
    one, other = np.random.default_rng(n).chisquare(df, (2, _DRAWS)) / df  # variances, as two arms may see them
    if paired:
        return float(special.stdtrit(df, 1 - risk)) * np.sqrt(one / n), math.sqrt(1 / n)
    degrees = df * (one + other) ** 2 / (one**2 + other**2)  # Welch and Satterthwaite, as `stats.welch`
    return special.stdtrit(degrees, 1 - risk) * np.sqrt((one + other) / n), math.sqrt(2 / n)


def power(n: int, margin: float, *, verdict: WantedVerdict, paired: bool, comparisons: int = 1) -> float:
    """Return how often truly equal arms of *n* >= 2 seeds get *verdict*; *margin* in true standard deviations.

    That is of an arm, or of the differences where *paired*. *comparisons* share the risk of 5 % (Bonferroni).
    """
    half, error = _half_intervals(n, paired=paired, comparisons=comparisons)
    above = special.ndtr((margin - half) / error)  # given its length, the interval's lower end lies above -margin
    return float(np.mean(np.maximum(0.0, 2 * above - 1) if verdict == "equivalent" else above))


def seeds_needed(
    margin: float, wanted: float, *, verdict: WantedVerdict, paired: bool, comparisons: int = 1
) -> int | None:
    """Return the seeds in each arm for the power *wanted* at a *margin* (as `power`); None: above `MOST_SEEDS`.

    >>> seeds_needed(1.0, 0.8, verdict="equivalent", paired=True)
    11
    """

    def suffices(n: int) -> bool:
        return power(n, margin, verdict=verdict, paired=paired, comparisons=comparisons) >= wanted

    high = stats.LEAST_SEEDS
    while not suffices(high):
        if high >= MOST_SEEDS:
            return None
        high = min(2 * high, MOST_SEEDS)
    low = max(stats.LEAST_SEEDS - 1, high // 2)  # does not suffice, or is below the least
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def pooled(groups: Sequence[Sequence[float]]) -> Spread | None:
    """Return the pooled standard deviation of *groups* with 80 % bounds; None where each has one value.

    ``sd² = Σ(x - mean)² / Σ(n - 1)``; each bound is one-sided, from the chi-square distribution.

    >>> spread = pooled([[1.0, 3.0], [5.0, 7.0]])
    >>> spread is not None and (round(spread.sd, 3), spread.df)
    (1.414, 2)
    """
    groups = [group for group in groups if len(group) > 1]
    df = sum(len(group) - 1 for group in groups)
    if not df:
        return None
    means = [stats.average(group) for group in groups]
    moved = (value - mean for group, mean in zip(groups, means, strict=True) for value in group)
    sd = math.hypot(*moved) / math.sqrt(df)  # squares may over- or underflow
    scale = max(abs(value) for group in groups for value in group)
    if sd <= 1e-12 * scale:  # rounding
        sd = 0.0
    return _bounded(sd, df)


def _bounded(sd: float, df: float) -> Spread:
    low, high = (sd * math.sqrt(df / (2 * float(special.gammaincinv(df / 2, chance)))) for chance in (_SURE, 1 - _SURE))
    return Spread(sd=sd, df=df, low=low, high=high)
