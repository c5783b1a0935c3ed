"""Ratios of times over nodes: which unit, seed or node, the interval of a speed-up may rest on.

Nodes of one kind differ by some per cent, runs on one of them by much less. So runs on one node are no independent
witnesses for another (S. Hurlbert, Ecol. Monogr. 54, 1984, on pseudoreplication), and where each arm has a node of its
own, arm and node are one. The unit is chosen by counting nodes, never by what was measured; docs/statistics.md has the
rates. A place is a node and, where they are known, the GPUs of the run on it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from hpcml.analysis import statistics
from hpcml.analysis.statistics import Contrast
from hpcml.model.comparison import ENOUGH_NODES, Interval
from hpcml.model.records import RunRecord

Unit = Literal["seeds", "nodes", "these nodes", "node means", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The time of one run, in any unit, with its seed and its place (None: not recorded)."""

    seed: int
    place: str | None
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRatio:
    """The reference's time over an arm's, above 1 where the arm is faster; `unit` is what its interval counts.

    - seeds: nothing is known of nodes, or all ran on one
    - nodes: the difference on each of three shared nodes or more is one observation
    - these nodes: one or two are shared; the interval is that of the arms on them, and of no other node
    - node means: no node is shared, and each arm has three or more
    - none: arm and node are one, and there is no interval
    """

    value: float
    ci95: Interval | None
    unit: Unit
    paired: bool  # by seed or node
    shared: tuple[str, ...] = ()  # places
    left_out: int = 0  # runs on places without a run of the other arm


def place_of(run: RunRecord) -> str | None:
    """Return where *run* computed: its node, with the GPUs that were given to it where they are known."""
    node, gpus = run.facts.get("hostname"), run.facts.get("gpu_uuids")
    return None if node is None else f"{node} {gpus}" if gpus else str(node)


def ratio_of_times(arm: Sequence[Timed], reference: Sequence[Timed]) -> TimeRatio | None:
    """Return the time of *reference* over that of *arm* with its 95 % interval; None where a time is not positive."""
    if not arm or not reference or min(run.time for run in (*arm, *reference)) <= 0:
        return None
    places = {run.place for run in (*arm, *reference)}
    if None in places or len(places) == 1:
        return _by_seeds(arm, reference, shared=tuple(str(place) for place in places if place is not None))
    mine, theirs = _by_place(arm), _by_place(reference)
    shared = tuple(sorted(mine.keys() & theirs.keys()))
    if len(shared) >= ENOUGH_NODES:
        contrast = statistics.mean([fmean(theirs[place]) - fmean(mine[place]) for place in shared])
        out = sum(len(of) for own in (mine, theirs) for place, of in own.items() if place not in shared)
        return _ratio(contrast, unit="nodes", paired=True, shared=shared, left_out=out)
    if shared:
        out = sum(len(of) for own in (mine, theirs) for place, of in own.items() if place not in shared)
        return _ratio(_blocked(mine, theirs), unit="these nodes", paired=True, shared=shared, left_out=out)
    means = [fmean(of) for of in theirs.values()], [fmean(of) for of in mine.values()]
    contrast = statistics.welch(*means)
    if min(len(mine), len(theirs)) >= ENOUGH_NODES:
        return _ratio(contrast, unit="node means", paired=False)
    return _ratio(Contrast(value=contrast.value, standard_error=0.0, df=None), unit="none", paired=False)


def _by_seeds(arm: Sequence[Timed], reference: Sequence[Timed], shared: tuple[str, ...]) -> TimeRatio | None:
    mine, theirs = _of_seeds(arm), _of_seeds(reference)
    pairs = statistics.is_paired(mine, theirs)
    found = statistics.ratio([theirs[seed] for seed in sorted(theirs)], [mine[s] for s in sorted(mine)], pairs=pairs)
    if found is None:
        return None
    return TimeRatio(value=found[0], ci95=found[1], unit="seeds", paired=pairs, shared=shared)


def _of_seeds(runs: Sequence[Timed]) -> dict[int, float]:
    times: defaultdict[int, list[float]] = defaultdict(list)
    for run in runs:
        times[run.seed].append(run.time)
    return {seed: fmean(of) for seed, of in times.items()}


def _by_place(runs: Sequence[Timed]) -> dict[str, list[float]]:
    logs: defaultdict[str, list[float]] = defaultdict(list)
    for run in runs:
        logs[str(run.place)].append(math.log(run.time))
    return logs


def _blocked(mine: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]) -> Contrast:
    """Return the difference of *theirs* and *mine* by least squares with an effect of each node.

    Nodes with runs of one arm alone tell nothing of the difference, but of the spread.
    """
    weights, differences = [], []
    for place in mine.keys() & theirs.keys():
        a, b = mine[place], theirs[place]
        weights.append(len(a) * len(b) / (len(a) + len(b)))
        differences.append(fmean(b) - fmean(a))
    total = math.fsum(weights)
    value = math.fsum(w * d for w, d in zip(weights, differences, strict=True)) / total
    squares = [w * (d - value) ** 2 for w, d in zip(weights, differences, strict=True)]
    squares += [(log - fmean(of)) ** 2 for own in (mine, theirs) for of in own.values() for log in of]
    df = sum(len(of) for own in (mine, theirs) for of in own.values()) - len(mine.keys() | theirs.keys()) - 1
    if df < 1:
        return Contrast(value=value, standard_error=0.0, df=None)
    return Contrast(value=value, standard_error=math.sqrt(math.fsum(squares) / df / total), df=df)


def _ratio(
    contrast: Contrast, *, unit: Unit, paired: bool, shared: tuple[str, ...] = (), left_out: int = 0
) -> TimeRatio:
    interval = contrast.interval(0.95)
    if interval is not None:
        interval = Interval(low=math.exp(interval.low), high=math.exp(interval.high), confidence=0.95)
    return TimeRatio(
        value=math.exp(contrast.value), ci95=interval, unit=unit, paired=paired, shared=shared, left_out=left_out
    )
