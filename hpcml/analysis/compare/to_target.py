"""Time and energy until the metric first reached a target (``hpcml compare --target``); also for runs that never did.

A run that ended without reaching the target is censored: its time is only known to be longer than it was watched. So
arms are compared by the share that reached it and by the mean time restricted to a common budget (restricted mean
survival time: P. Royston, M. Parmar, BMC Med. Res. Methodol. 13:152, 2013). `energy_at` gives the energy drawn by then.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean, median
from typing import Literal

import numpy as np

from hpcml.analysis import statistics
from hpcml.analysis.compare.arms import Arm, BySeed, by_seed, median_of
from hpcml.analysis.compare.contrasts import match
from hpcml.analysis.compare.grid import LINEAR
from hpcml.analysis.compare.nodes import (
    Placed,
    PlacedContrast,
    PlacedRatio,
    by_place_of,
    by_seed_of,
    difference_over_places,
    node_of,
    ratio_over_places,
)
from hpcml.analysis.exact import log_rank
from hpcml.model.choices import Numerics
from hpcml.model.comparison import ToTarget, Unit
from hpcml.model.metric_sources import READ_AFTERWARDS
from hpcml.model.query_results import Timeline
from hpcml.model.records import Point, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """The target of a cell's runs, and the curves and timelines by uid from which the way there is read."""

    metric: str
    target: float
    higher_is_better: bool
    curves: Mapping[str, Sequence[Point]]  # of the metric
    timelines: Mapping[str, Sequence[Timeline]]  # of the GPUs' energy; absent where nothing was sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """One run: when it first reached the target, or how long it was watched without reaching it; in seconds."""

    run: RunRecord
    at_s: float | None  # since the run's start; None: it never did
    watched_s: float
    is_timed: bool  # these times say something of the arm: it was native, and the metric was read as it came

    def within(self, budget_s: float) -> float:
        """Return the seconds to the target, or *budget_s* where it was not reached by then."""
        return budget_s if self.at_s is None else min(self.at_s, budget_s)


def find_reaches(arm: Arm, race: Race) -> list[Reach]:
    """Return one entry for each run of *arm* that is over; a failed one that had not reached the target never did."""
    found = []
    for run in arm.ended:
        curve = race.curves.get(run.uid, ())
        at_s = next((point.t_s for point in curve if _is_there(point.value, race)), None)
        watched_s = run.wall_s if run.wall_s is not None else max((point.t_s for point in curve), default=0.0)
        is_timed = run.numerics == Numerics.native.name and f"{READ_AFTERWARDS}{race.metric}" not in run.facts
        found.append(Reach(run=run, at_s=at_s, watched_s=max(watched_s, at_s or 0.0), is_timed=is_timed))
    return found


def find_budget_s(reaches: Sequence[Reach]) -> float | None:
    """Return the time in seconds up to which all runs of a cell can be compared; None where no timed run ended.

    That is the shortest completed run that did not reach the target: nobody knows what it would have done later. A run
    that failed limits nothing, since it counts as never reaching the target. Without such a run it is the longest time.
    """
    reaches = [reach for reach in reaches if reach.is_timed]
    ended_without = [reach.watched_s for reach in reaches if reach.at_s is None and not _broke_off(reach.run)]
    every = [reach.watched_s if reach.at_s is None else reach.at_s for reach in reaches]
    return min(ended_without) if ended_without else max(every, default=None)


def to_target(
    reaches: Sequence[Reach], reference: Sequence[Reach] | None, race: Race, budget_s: float | None
) -> ToTarget | None:
    """Return the times to the target of one row and their ratio to the *reference*'s; None where no run ended.

    Runs of one seed are averaged first; a seed has reached the target if all of its runs have. Times in seconds, energy
    in kJ. Where not all runs were timed only the count of seeds is given. The ratio is None where any run was
    censored.
    """
    seeds = _by_seed(reaches)
    if not seeds:
        return None
    reached = {seed: of for seed, of in seeds.items() if _have_reached(of)}
    untimed = ToTarget(
        target=race.target,
        reached=len(reached),
        n=len(seeds),
        median_s=None,
        restricted_mean_s=None,
        budget_s=None,
        ratio=None,
        ratio_ci95=None,
        median_kj=None,
    )
    if not _are_timed(reaches) or budget_s is None:
        return untimed
    ratio = target_ratio(reaches, reference)
    saved = target_difference(reaches, reference, budget_s)
    unit = None if saved is None else saved.unit
    energies, basis = _energies_kj(reaches, race)
    return replace(
        untimed,
        median_s=median(_times(reached).values()) if reached else None,
        restricted_mean_s=fmean(fmean(reach.within(budget_s) for reach in of) for of in seeds.values()),
        budget_s=budget_s,
        ratio=None if ratio is None else ratio.value,
        ratio_ci95=None if ratio is None else ratio.ci95,
        saved_s=None if saved is None or saved.contrast is None else saved.contrast.value,
        saved_ci95=None if saved is None or saved.contrast is None else saved.contrast.interval(0.95),
        unit=unit,
        p_log_rank=_p_log_rank(reaches, reference, budget_s, unit),
        median_kj=median_of(energies),
        energy_basis=basis,
    )


def _is_there(value: float, race: Race) -> bool:
    if not math.isfinite(value):
        return False
    return value >= race.target if race.higher_is_better else value <= race.target


def _broke_off(run: RunRecord) -> bool:
    return run.state.is_final and run.state.value != "COMPLETED"


def _are_timed(reaches: Sequence[Reach]) -> bool:
    return all(reach.is_timed for reach in reaches)


def _have_reached(reaches: Sequence[Reach]) -> bool:
    return all(reach.at_s is not None for reach in reaches)


def _times(seeds: Mapping[int, Sequence[Reach]]) -> dict[int, float]:
    """Return the time of each seed all of whose runs have reached the target."""
    return {seed: fmean(reach.at_s for reach in of if reach.at_s is not None) for seed, of in seeds.items()}


def target_ratio(reaches: Sequence[Reach], reference: Sequence[Reach] | None) -> PlacedRatio | None:
    """Return the ratio of times to the target to the reference's; None where a run of either never reached it.

    A mean over those that did would flatter the arm with more failures. None also without a run, or one that was not
    timed.
    """
    if not reaches or not reference or not _are_timed([*reaches, *reference]):
        return None
    if not _have_reached([*reaches, *reference]):
        return None
    return ratio_over_places(_placed(reaches, math.inf), _placed(reference, math.inf))


def target_difference(
    reaches: Sequence[Reach], reference: Sequence[Reach] | None, budget_s: float | None
) -> PlacedContrast | None:
    """Return the difference of restricted means, the reference's minus these; None where one of the two has none.

    Up to *budget_s* no run is censored, so that the restricted mean is a plain one and t holds for it.
    """
    if not reaches or not reference or budget_s is None or not _are_timed([*reaches, *reference]):
        return None
    over, under = _placed(reference, budget_s), _placed(reaches, budget_s)
    found = difference_over_places(over, under)
    if found.contrast is None:  # by seeds, as pairs where they are shared
        found = replace(found, contrast=match(by_seed_of(over), by_seed_of(under), LINEAR, None).contrast)
    return found


def _placed(reaches: Sequence[Reach], budget_s: float) -> list[Placed]:
    return [Placed(seed=reach.run.seed, place=node_of(reach.run), value=reach.within(budget_s)) for reach in reaches]


def _p_log_rank(
    reaches: Sequence[Reach], reference: Sequence[Reach] | None, budget_s: float, unit: Unit | None
) -> float | None:
    """Return the p of the log-rank test of *unit*s; who is not there by *budget_s* is censored at that time.

    None below three seeds, where no run was there in time, and where nodes are no sample of nodes.
    """
    if not reference or unit not in ("seeds", "nodes", "node means"):
        return None
    means = by_seed_of if unit == "seeds" else by_place_of
    mine, theirs = means(_placed(reaches, budget_s)), means(_placed(reference, budget_s))
    if min(len(mine), len(theirs)) < statistics.LEAST_SEEDS:
        return None
    return log_rank(list(mine.values()), list(theirs.values()), budget_s)


def _by_seed(reaches: Sequence[Reach]) -> dict[int, list[Reach]]:
    seeds: defaultdict[int, list[Reach]] = defaultdict(list)
    for reach in reaches:
        seeds[reach.run.seed].append(reach)
    return dict(sorted(seeds.items()))


def _energies_kj(reaches: Sequence[Reach], race: Race) -> tuple[BySeed, Literal["samples", "share of time"] | None]:
    """Return the energy in kJ until the target by seed, and its source: samples, or energy times share of time."""
    reached = {reach.run.uid: reach for reach in reaches if reach.at_s is not None}
    runs = [reach.run for reach in reached.values()]
    sampled = by_seed(runs, lambda run: _sampled_kj(reached[run.uid], race))
    if sampled and set(sampled) == {run.seed for run in runs}:
        return sampled, "samples"
    shared = by_seed(runs, lambda run: _shared_kj(reached[run.uid]))
    return shared, "share of time" if shared else None


def _sampled_kj(reach: Reach, race: Race) -> float | None:
    lines = race.timelines.get(reach.run.uid)
    if not lines or reach.at_s is None:
        return None
    found = energy_at([Point(step=0, t_s=reach.at_s, value=race.target)], lines)
    return None if found is None else found[0]


def _shared_kj(reach: Reach) -> float | None:
    usage = reach.run.usage
    if usage is None or usage.energy_j is None or reach.at_s is None or not reach.watched_s:
        return None
    return usage.energy_j / 1000 * min(1.0, reach.at_s / reach.watched_s)


_HOST = "host"


def energy_at(points: Sequence[Point], timelines: Sequence[Timeline]) -> list[float] | None:
    """Return the energy in kJ that all GPUs of a run together had drawn at the times of *points*, or None if not known.

    It is not known unless every GPU has the energy of each of its spans that lasts. Within a span it is taken to be
    drawn evenly; before the first and after the last span nothing is added. *points* and *timelines* count seconds
    from the run's start.
    """
    lasting = [(line, [span for span in line.spans if span.covered_s]) for line in timelines]
    gpus = [spans for line, spans in lasting if line.device != _HOST and line.spans]
    if not gpus or not points:
        return None
    at = [point.t_s for point in points]
    total = np.zeros(len(points))
    for spans in gpus:
        drawn = [span.energy_j for span in spans if span.energy_j is not None]
        if not drawn or len(drawn) < len(spans):
            return None
        moments = [*(span.t_s for span in spans), spans[-1].end_s]
        total += np.interp(at, moments, [0.0, *accumulate(drawn)])
    return [float(joules) / 1000 for joules in total]
