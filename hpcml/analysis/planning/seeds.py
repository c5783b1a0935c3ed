"""`hpcml plan`: how many seeds a verdict needs, from the spread of the runs at hand.

Runs are sorted into cells, the spread of each is estimated, and the power of the tests of `hpcml.analysis.statistics`
is computed for it: two one-sided t tests (Welch's where seeds are not paired) on values from normal distributions that
are truly equal. Given the standard errors, the estimate is normal; what is left is an integral over their chi-square
distributions (for pairs, Owen's Q; D. B. Owen, Biometrika 52, 1965), done by Gauss-Legendre over their quantiles. In
`Trial` and `seeds_needed` all lengths are in units of the true standard deviation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import special  # not scipy.stats: it takes a second to import

from hpcml.analysis import stats
from hpcml.analysis.compare.factor import Factor, find_factor, find_reference, natural
from hpcml.analysis.compare.objective import Yardstick, find_margin, find_yardstick, not_ended
from hpcml.analysis.frame import Arm, sort_runs
from hpcml.errors import ComparisonError
from hpcml.model.identity import changes_results
from hpcml.model.planning import Design, PowerCell, PowerPlan, Spread, WantedVerdict
from hpcml.model.records import RunRecord
from hpcml.model.told_apart import show

COLUMNS = (3, 5, 8, 10, 15, 20, 30)  # seeds of the table
_MARGINS = (0.5, 0.75, 1.0, 1.5, 2.0)  # of the table, times the one asked for
_HARDLY_KNOWN = 8  # degrees of freedom; with fewer, the power that is reached is points below what is asked for
_SHARED = 0.5  # correlation of differences to one reference, where all arms vary alike
_ONE_SEED = 1.0  # of values of one seed in several arms, at most: what so few runs show of it is too uncertain
_ALWAYS_NAMED = ("model.name", "data.name")
_NOT_ASKED = ("seed", "experiment")


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
    for where, members in _cells(factor, runs):
        outcome = _cell(where, members, terms)
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


def _cells(factor: Factor, runs: Sequence[RunRecord]) -> Iterator[tuple[Mapping[str, str], list[RunRecord]]]:
    """Yield the runs that are alike in all but factor and seed, with the settings that tell them from the others."""
    keys = sorted(
        key
        for key in {key for run in runs for key in run.params}
        if changes_results(key) and not factor.owns(key) and key not in _NOT_ASKED and not key.startswith("objective.")
    )
    members: dict[tuple[str, ...], list[RunRecord]] = defaultdict(list)
    for run in runs:
        members[tuple(show(run.params.get(key)) for key in keys)].append(run)
    differing = {key for at, key in enumerate(keys) if len({values[at] for values in members}) > 1}
    for values, of in sorted(members.items(), key=lambda item: [natural(value) for value in item[0]]):
        named = dict(zip(keys, values, strict=True))
        yield {key: named[key] for key in keys if key in differing or key in _ALWAYS_NAMED}, of


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
    step = 0.0
    spreads = find_spreads(arms, terms.reference, step)
    lost = _lost_share(arms)
    designs = [_design(spread, margin.value, terms, paired=pairs, lost=lost) for pairs, spread in spreads.items()]
    return PowerCell(
        where=where,
        margin=margin.value,
        margin_source=margin.source,
        seeds=seeds,
        designs=designs,
        warnings=tuple(_warnings(designs, terms)),
        remarks=tuple(_remarks(arms, designs, terms, step)),
    )


def find_spreads(arms: Mapping[str, Arm], reference: str, step: float = 0.0) -> dict[bool, Spread]:
    """Return the spread of differences (True, where some seeds are shared) and that of an arm (False), by `paired`.

    Their bounds reckon with what arms have in common: the reference, or the seeds. Nothing is below one *step* of the
    metric. Empty where no arm has two seeds.
    """
    unpaired, paired = pooled([list(arm.values.values()) for arm in arms.values()]), _paired_spread(arms, reference)
    if unpaired is None:
        return {}
    if paired is None:
        return {False: _floored(unpaired, step / math.sqrt(2))}
    return {
        True: _floored(_narrowed(paired, len(arms) - 1, _SHARED), step),
        False: _floored(_narrowed(unpaired, len(arms), _ONE_SEED), step / math.sqrt(2)),
    }


def _narrowed(spread: Spread, groups: int, rho: float) -> Spread:
    """Return *spread* with the degrees of freedom that *groups* of values which correlate by *rho* really have.

    The sums of squares of two such groups correlate by rho², and a sum of them has the variance of a chi-square with
    ``df / (1 + (groups - 1) rho²)`` (Satterthwaite's rule).
    """
    return _bounded(spread.sd, spread.df / (1 + max(0, groups - 1) * rho**2), rho=spread.rho)


def _floored(spread: Spread, least: float) -> Spread:
    """Return *spread* nowhere below *least*: a metric that moves in steps cannot show a smaller one."""
    return replace(spread, sd=max(spread.sd, least), low=max(spread.low, least), high=max(spread.high, least))


def _lost_share(arms: Mapping[str, Arm]) -> float:
    lost = sum(len(arm.without_value) for arm in arms.values())
    return lost / (lost + sum(len(arm.ok) for arm in arms.values())) if lost else 0.0


def _to_launch(needed: int, lost: float) -> int:
    """Return how many seeds leave *needed* in 80 % of cases, where each is lost with the chance *lost*."""
    launched = needed
    while float(special.bdtr(launched - needed, launched, lost)) < _SURE:
        launched += 1
    return launched


def _warnings(designs: Sequence[Design], terms: _Terms) -> Iterator[str]:
    """Yield what must be known before the numbers are read: the power that they really give."""
    for design in designs:
        if design.spread.df < _HARDLY_KNOWN and design.expected_power is not None and design.seeds is not None:
            how, asked = "paired" if design.paired else "unpaired", f"{100 * terms.power:.3g} %"
            sure = f"more than {MOST_SEEDS}" if design.seeds_high is None else design.seeds_high
            yield (
                f"{how}: a spread from so few runs is hardly known ({design.spread.df:.3g} degrees of freedom): "
                f"{design.seeds} seeds have a power of {100 * design.expected_power:.0f} % on average, not {asked}; "
                f"for {asked} with 80 % confidence it takes {sure}"
            )


def _paired_spread(arms: Mapping[str, Arm], reference: str) -> Spread | None:
    """Return the spread of differences to the reference over shared seeds; None below two of them."""
    base = arms.get(reference)
    if base is None:
        return None
    differences: list[list[float]] = []
    ones: list[float] = []
    others: list[float] = []
    for level, arm in arms.items():
        shared = [seed for seed in arm.seeds if seed in base.values]
        if level == reference or len(shared) < 2:
            continue
        values, references = [arm.values[seed] for seed in shared], [base.values[seed] for seed in shared]
        differences.append([value - other for value, other in zip(values, references, strict=True)])
        ones, others = ones + _centred(values), others + _centred(references)
    return pooled(differences, rho=stats.correlation(ones, others)) if differences else None


def _centred(values: Sequence[float]) -> list[float]:
    mean = stats.average(values)
    return [value - mean for value in values]


def _design(spread: Spread, margin: float, terms: _Terms, *, paired: bool, lost: float) -> Design:
    def needed(sd: float) -> int | None:
        if sd == 0:
            return stats.LEAST_SEEDS
        return seeds_needed(
            margin / sd, power=terms.power, verdict=terms.verdict, paired=paired, comparisons=terms.comparisons
        )

    trials = [trial(n, paired=paired, comparisons=terms.comparisons) for n in COLUMNS]
    margins = [factor * margin for factor in _MARGINS]
    has_spread = spread.sd > 0
    seeds = needed(spread.sd)
    return Design(
        paired=paired,
        spread=spread,
        seeds=seeds,
        expected_power=None if seeds is None else _expected_power(seeds, spread, margin, terms, paired=paired),
        to_launch=_to_launch(seeds, lost) if seeds is not None and 0 < lost < 1 else None,
        seeds_low=needed(spread.low),
        seeds_high=needed(spread.high),
        table=[
            (each, [one.power(each / spread.sd, terms.verdict) if has_spread else 1.0 for one in trials])
            for each in margins
        ],
        smallest=[spread.sd * one.smallest_margin(terms.power, terms.verdict) if has_spread else 0.0 for one in trials],
    )


def _expected_power(seeds: int, spread: Spread, margin: float, terms: _Terms, *, paired: bool) -> float:
    """Return the power of *seeds*, averaged over what the true spread may be, given the one that was seen.

    The variance that was seen times its degrees of freedom over the true one is chi-square; nothing else is assumed.
    """
    if spread.sd == 0:
        return 1.0
    chances = (np.arange(_CHANCES) + 0.5) / _CHANCES
    true = spread.sd * np.sqrt(spread.df / (2 * special.gammaincinv(spread.df / 2, chances)))
    one = trial(seeds, paired=paired, comparisons=terms.comparisons)
    return float(np.mean([one.power(margin / sd, terms.verdict) for sd in true]))


def _remarks(arms: Mapping[str, Arm], designs: Sequence[Design], terms: _Terms, step: float) -> Iterator[str]:
    spreads = [design.spread for design in designs]
    if lost := sum(len(arm.without_value) for arm in arms.values()):
        launch = ", ".join(
            f"{design.to_launch} for {design.seeds} {'in pairs' if design.paired else 'unpaired'}"
            for design in designs
            if design.to_launch is not None
        )
        more = f"to have the seeds above in 80 % of cases launch {launch}" if launch else "plan more seeds"
        yield f"{lost} ended runs gave no value and are left out: if as large a share is lost again, {more}"
    if step and any(spread.sd in (step, step / math.sqrt(2)) for spread in spreads):
        yield f"the spread was taken to be one step of the metric ({step:.3g}), which is more than was seen"
    if any(spread.sd == 0 for spread in spreads):
        yield "no spread at all: does the seed change anything? three seeds are the least that a verdict takes"
    if len(spreads) == 1:
        yield f"not paired: no two seeds were run with {terms.reference} and another {terms.factor.name}"
    if len(arms) > 2 and terms.comparisons == 1:
        yield (
            f"{len(arms) - 1} levels are judged against {terms.reference}: --comparisons {len(arms) - 1} plans for "
            "all of them together"
        )
    if any(spread.sd > 0 for spread in spreads):
        yield f"the two arms are taken to be truly equal and to vary alike; at most {MOST_SEEDS} seeds are tried"


MOST_SEEDS = 1000  # tried; whoever needs more needs another margin
_RISK = 0.05  # of each one-sided test, as in equivalence
_SURE = 0.80  # confidence of each bound of a spread
_CHANCES = 40  # places of a chi-square at which a power is averaged
_NODES_PAIRED, _NODES_WELCH = 200, 40  # held to 1e-3 by tests, against a simulation and statsmodels

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A test with so many seeds per arm: its critical values over all standard errors that it may happen to see.

    `reach` and `weights` are arrays of one shape, the nodes of the quadrature; the weights sum to 1.
    """

    error: float  # the true standard error of the estimate
    reach: Array  # critical t times the standard error that is seen
    weights: Array

    def power(self, margin: float, verdict: WantedVerdict) -> float:
        """Return the probability that truly equal arms get *verdict*; *margin* in true standard deviations."""
        above = special.ndtr((margin - self.reach) / self.error)
        found = np.maximum(0.0, 2 * above - 1) if verdict == "equivalent" else above
        return float(np.dot(self.weights, found))

    def smallest_margin(self, power: float, verdict: WantedVerdict) -> float:
        """Return the smallest margin, in true standard deviations, with this *power* (a share) or more."""
        low, high = 0.0, self.error
        while self.power(high, verdict) < power:
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self.power(middle, verdict) >= power else (middle, high)
        return high


def trial(n: int, *, paired: bool, comparisons: int = 1) -> Trial:
    """Return the test with *n* >= 2 seeds in each arm; *comparisons* share the risk of 5 % (Bonferroni).

    Unpaired, the degrees of freedom are those of Welch and Satterthwaite (B. L. Welch, Biometrika 34, 1947).
    """
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
    """Return the seeds in each arm for *power* at a *margin* in true standard deviations; None: above `MOST_SEEDS`.

    >>> seeds_needed(1.0, power=0.8, verdict="equivalent", paired=True)
    11
    """

    def suffices(n: int) -> bool:
        return trial(n, paired=paired, comparisons=comparisons).power(margin, verdict) >= power

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


def pooled(groups: Sequence[Sequence[float]], *, rho: float | None = None) -> Spread | None:
    """Return the pooled standard deviation of *groups* with 80 % bounds; None where each has one value.

    ``sd² = Σ(x - mean)² / Σ(n - 1)``; each bound is one-sided, from the chi-square distribution. *rho* is passed
    through.

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
    if sd <= 1e-12 * scale:  # rounding, as in equivalence.sd
        sd = 0.0
    return _bounded(sd, df, rho=rho)


def _bounded(sd: float, df: float, *, rho: float | None) -> Spread:
    low, high = (sd * math.sqrt(df / (2 * float(special.gammaincinv(df / 2, chance)))) for chance in (_SURE, 1 - _SURE))
    return Spread(sd=sd, df=df, low=low, high=high, rho=rho)
