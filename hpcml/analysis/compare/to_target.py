"""Time and energy until the metric first reached a target (``hpcml compare --target``); also for runs that never did.

A run that ended without reaching the target is censored: its time is only known to be longer than it was watched. So
arms are compared by the share that reached it and by the mean time restricted to a common budget (restricted mean
survival time: P. Royston, M. Parmar, BMC Med. Res. Methodol. 13:152, 2013). `energy_until` gives the energy
drawn by then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

import numpy as np

from hpcml.analysis.compare.result import ToTarget
from hpcml.analysis.frame import Arm, by_seed, median_of
from hpcml.analysis.nodes import Measured, MeasuredDifference, difference, measured, seed_means
from hpcml.analysis.stats import log_rank
from hpcml.analysis.steady import Curves
from hpcml.model.choices import Numerics
from hpcml.model.metric_sources import READ_AFTERWARDS
from hpcml.model.query_results import Timeline
from hpcml.model.records import RunRecord
from hpcml.model.state import State

_HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """The target of a cell's runs, and the curves and timelines by uid from which the way there is read."""

    metric: str
    target: float
    higher_is_better: bool
    curves: Curves  # of the metric
    timelines: Mapping[str, Sequence[Timeline]]  # of the GPUs' energy; absent where nothing was sampled

    def is_reached(self, value: float) -> bool:
        """Tell whether a *value* of the metric is at the target, or better."""
        return math.isfinite(value) and (value >= self.target if self.higher_is_better else value <= self.target)


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
        at_s = next((point.t_s for point in curve if race.is_reached(point.value)), None)
        watched_s = run.wall_s if run.wall_s is not None else max((point.t_s for point in curve), default=0.0)
        is_timed = run.numerics == Numerics.native.name and f"{READ_AFTERWARDS}{race.metric}" not in run.facts
        found.append(Reach(run=run, at_s=at_s, watched_s=max(watched_s, at_s or 0.0), is_timed=is_timed))
    return found


def find_budget_s(reaches: Sequence[Reach]) -> float | None:
    """Return the time in seconds up to which all runs of a cell can be compared; None where no timed run ended.

    That is the shortest completed run that did not reach the target: nobody knows what it would have done later. A run
    that failed limits nothing, since it counts as never reaching the target. Without such a run it is the longest time.
    """
    timed = [reach for reach in reaches if reach.is_timed]
    without = [reach.watched_s for reach in timed if reach.at_s is None and reach.run.state is State.COMPLETED]
    every = [reach.watched_s if reach.at_s is None else reach.at_s for reach in timed]
    return min(without) if without else max(every, default=None)


def saved_time(
    reaches: Sequence[Reach], reference: Sequence[Reach] | None, budget_s: float | None
) -> MeasuredDifference | None:
    """Return the difference of restricted means, the reference's minus these; None where one of the two has none.

    Up to *budget_s* no run is censored, so that the restricted mean is a plain one and t holds for it.
    """
    if not reaches or not reference or budget_s is None or not _are_timed([*reaches, *reference]):
        return None
    return difference(_within(reference, budget_s), _within(reaches, budget_s))


def to_target(
    reaches: Sequence[Reach],
    reference: Sequence[Reach] | None,
    race: Race,
    budget_s: float | None,
    saved: MeasuredDifference | None,
) -> ToTarget | None:
    """Return the times to the target of one row, and what it *saved* against *reference*; None where no run ended.

    Runs of one seed are averaged first; a seed has reached the target if all of its runs have. Times in seconds, energy
    in kJ. Where not all runs were timed only the count of seeds is given.
    """
    seeds = {reach.run.seed for reach in reaches}
    if not seeds:
        return None
    reached = seeds - {reach.run.seed for reach in reaches if reach.at_s is None}
    is_timed = _are_timed(reaches) and budget_s is not None
    times = {reach.run.uid: reach for reach in reaches if reach.run.seed in reached}
    runs = [reach.run for reach in times.values()] if is_timed else []
    within = seed_means(_within(reaches, budget_s)) if is_timed and budget_s is not None else {}
    p = None
    if saved is not None and saved.unit != "none" and not saved.nodes and reference and budget_s is not None:
        others = seed_means(_within(reference, budget_s))
        p = log_rank(list(within.values()), list(others.values()), budget_s)
    return ToTarget(
        target=race.target,
        reached=len(reached),
        n=len(seeds),
        median_s=median_of(by_seed(runs, lambda run: times[run.uid].at_s)),
        restricted_mean_s=fmean(within.values()) if within else None,
        budget_s=budget_s if is_timed else None,
        median_kj=median_of(by_seed(runs, lambda run: _sampled_kj(times[run.uid], race))),
        saved_s=None if saved is None else saved.contrast.value,
        saved_ci95=None if saved is None else saved.contrast.interval(0.95),
        p_log_rank=p,
        unit=None if saved is None else saved.unit,
    )


def _are_timed(reaches: Sequence[Reach]) -> bool:
    return all(reach.is_timed for reach in reaches)


def _within(reaches: Sequence[Reach], budget_s: float) -> list[Measured]:
    times = {reach.run.uid: reach.within(budget_s) for reach in reaches}
    return measured([reach.run for reach in reaches], lambda run: times[run.uid])


def _sampled_kj(reach: Reach, race: Race) -> float | None:
    lines = race.timelines.get(reach.run.uid)
    if not lines or reach.at_s is None:
        return None
    return energy_until(reach.at_s, lines)


def energy_until(at_s: float, timelines: Sequence[Timeline]) -> float | None:
    """Return the energy in kJ that all GPUs of a run together had drawn *at_s* seconds after its start, or None.

    It is not known unless every GPU has the energy of each of its spans that lasts. Within a span it is taken to be
    drawn evenly; before the first and after the last span nothing is added.
    """
    lasting = [(line, [span for span in line.spans if span.covered_s]) for line in timelines]
    gpus = [spans for line, spans in lasting if line.device != _HOST and line.spans]
    total = 0.0
    for spans in gpus:
        drawn = [span.energy_j for span in spans if span.energy_j is not None]
        if not drawn or len(drawn) < len(spans):
            return None
        moments = [*(span.t_s for span in spans), spans[-1].end_s]
        total += float(np.interp(at_s, moments, [0.0, *accumulate(drawn)]))
    return total / 1000 if gpus else None
