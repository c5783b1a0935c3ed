"""How many seeds a verdict needs, from the spread of the runs at hand: runs sorted into cells, spreads into plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcml.analysis import equivalence
from hpcml.analysis.arms import Arm, sort_runs
from hpcml.analysis.factor import Factor, find_factor, find_reference, natural, show
from hpcml.analysis.objective import Yardstick, find_margin, find_yardstick
from hpcml.analysis.power import MOST_SEEDS, pooled, seeds_needed, trial
from hpcml.errors import ComparisonError
from hpcml.planning import Design, PowerCell, PowerPlan, Spread, WantedVerdict
from hpcml.records import RunRecord
from hpcml.spec import changes_results

COLUMNS = (3, 5, 8, 10, 15, 20, 30)  # seeds of the table
_MARGINS = (0.5, 0.75, 1.0, 1.5, 2.0)  # of the table, times the one asked for
_HARDLY_KNOWN = 4  # degrees of freedom; with fewer, the 80 % bounds of a spread are a factor of 2 apart or more
_ALWAYS_NAMED = ("model.name", "data.name")
_NOT_ASKED = ("seed", "experiment")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What all cells have in common."""

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
    """Return what it takes to show *verdict* with *power*, cell by cell.

    Raises `ComparisonError` where no margin is known or no two runs tell a spread.
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
        raise ComparisonError(
            f"the spread of {terms.yardstick.metric} cannot be told: {unusable[0]}"
            f"{f' (and {len(unusable) - 1} cells more)' if len(unusable) > 1 else ''}; it takes two seeds of one "
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
    """Yield the runs that are alike in all but factor and seed, with what tells them from the others."""
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
    unpaired = pooled([list(arm.values.values()) for arm in arms.values()])
    if unpaired is None:
        counts = ", ".join(f"{level} n={n}" for level, n in seeds.items())
        return f"{', '.join(f'{key}={value}' for key, value in where.items())}: {counts}"
    margin = find_margin([run for arm in arms.values() for run in arm.ok], metric, terms.margin)
    if margin.value is None or margin.source is None:
        raise ComparisonError(
            f"which difference in {metric} matters? say --margin X, from what the result is for and not from its "
            "spread, or set objective.margin in the configuration"
        )
    spreads = [(True, _paired_spread(arms, terms.reference)), (False, unpaired)]
    return PowerCell(
        where=where,
        margin=margin.value,
        margin_source=margin.source,
        seeds=seeds,
        designs=[_design(spread, margin.value, terms, paired=paired) for paired, spread in spreads if spread],
        remarks=tuple(_remarks(arms, [spread for _, spread in spreads if spread], terms)),
    )


def _paired_spread(arms: Mapping[str, Arm], reference: str) -> Spread | None:
    """Return the spread of the differences to the reference, over the seeds that both have; None: none can be told."""
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
        values, references = arm.aligned(shared), base.aligned(shared)
        differences.append([value - other for value, other in zip(values, references, strict=True)])
        ones, others = ones + _centred(values), others + _centred(references)
    return pooled(differences, rho=equivalence.correlation(ones, others)) if differences else None


def _centred(values: Sequence[float]) -> list[float]:
    mean = sum(values) / len(values)
    return [value - mean for value in values]


def _design(spread: Spread, margin: float, terms: _Terms, *, paired: bool) -> Design:
    def needed(sd: float) -> int | None:
        if sd == 0:
            return 2
        return seeds_needed(
            margin / sd, power=terms.power, verdict=terms.verdict, paired=paired, comparisons=terms.comparisons
        )

    trials = [trial(n, paired=paired, comparisons=terms.comparisons) for n in COLUMNS]
    margins = [factor * margin for factor in _MARGINS]
    has_spread = spread.sd > 0
    return Design(
        paired=paired,
        spread=spread,
        seeds=needed(spread.sd),
        seeds_low=needed(spread.low),
        seeds_high=needed(spread.high),
        table=[
            (each, [one.power(each / spread.sd, terms.verdict) if has_spread else 1.0 for one in trials])
            for each in margins
        ],
        smallest=[spread.sd * one.smallest_margin(terms.power, terms.verdict) if has_spread else 0.0 for one in trials],
    )


def _remarks(arms: Mapping[str, Arm], spreads: Sequence[Spread], terms: _Terms) -> Iterator[str]:
    if lost := sum(len(arm.failed) + len(arm.nan) + len(arm.without_metric) for arm in arms.values()):
        yield f"{lost} ended runs gave no value and are left out: plan more seeds, if as many will be lost again"
    df = min(spread.df for spread in spreads)
    if df < _HARDLY_KNOWN:
        yield f"the spread itself is hardly known ({df} degrees of freedom): read the bounds, not the number"
    if any(spread.sd == 0 for spread in spreads):
        yield "no spread at all: does the seed change anything? two seeds are the least that a test takes"
    if len(spreads) == 1:
        yield f"not paired: no two seeds were run with {terms.reference} and another {terms.factor.name}"
    if len(arms) > 2 and terms.comparisons == 1:
        yield (
            f"{len(arms) - 1} levels are judged against {terms.reference}: --comparisons {len(arms) - 1} plans for "
            "all of them together"
        )
    if any(spread.sd > 0 for spread in spreads):
        yield f"the two arms are taken to be truly equal and to vary alike; at most {MOST_SEEDS} seeds are tried"
