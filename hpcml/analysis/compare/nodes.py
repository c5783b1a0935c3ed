"""Ratios over nodes: which unit, seed or node, the interval of a speed-up or of a ratio of energies may rest on.

Nodes of one kind differ by some per cent, runs on one of them by much less. So runs on one node are no independent
witnesses for another (S. Hurlbert, Ecol. Monogr. 54, 1984, on pseudoreplication), and where each arm has a node of its
own, arm and node are one. The unit is chosen by counting nodes, never by what was measured; docs/statistics.md has the
rates. GPUs of one node are one place: what they differ by is in the spread of the seeds that they were given to.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpcml.analysis import statistics
from hpcml.analysis.statistics import Contrast, average
from hpcml.model.comparison import ENOUGH_NODES, Interval, Unit
from hpcml.model.records import RunRecord

_NAMED = 3


@dataclass(slots=True)  # neither frozen nor by keyword alone: that takes most of the time, and there is one a run
class Placed:
    """What was measured of one run in any unit, with its seed and its place, which is its node (None: not recorded)."""

    seed: int
    place: str | None
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedContrast:
    """The difference of two arms; `unit` is what its degrees of freedom count.

    - seeds: nothing is known of nodes, or all ran on one; the difference is by seed, and not computed here
    - nodes: the difference on each of three shared nodes or more is one observation
    - these nodes: one or two are shared; the interval is that of the arms on them, and of no other node
    - node means: no node is shared, and each arm has three or more
    - none: arm and node are one, and there is no interval
    """

    contrast: Contrast | None  # None: by seeds
    unit: Unit
    paired: bool = False
    shared: tuple[str, ...] = ()  # nodes
    left_out: int = 0  # runs on nodes without a run of the other arm


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRatio:
    """The ratio of two arms' values, by geometric means; `unit` is what its interval counts (`PlacedContrast`)."""

    value: float
    ci95: Interval | None
    unit: Unit
    paired: bool  # by seed or node
    shared: tuple[str, ...] = ()
    left_out: int = 0


def node_of(run: RunRecord) -> str | None:
    """Return the (first) node of *run*; None where it is not known."""
    node = run.facts.get("hostname")
    return None if node is None else str(node)


def ratio_over_places(over: Sequence[Placed], under: Sequence[Placed]) -> PlacedRatio | None:
    """Return the values *over* divided by those *under* with the 95 % interval; None where one is not positive."""
    if not over or not under or min(run.value for run in (*over, *under)) <= 0:
        return None
    found = difference_over_places(over, under, scale=math.log)
    if found.contrast is None:
        return _by_seeds(over, under, shared=found.shared)
    interval = None if found.contrast.has_no_spread else found.contrast.interval(0.95)
    if interval is not None:
        interval = Interval(low=math.exp(interval.low), high=math.exp(interval.high), confidence=0.95)
    return PlacedRatio(
        value=math.exp(found.contrast.value),
        ci95=interval,
        unit=found.unit,
        paired=found.paired,
        shared=found.shared,
        left_out=found.left_out,
    )


def difference_over_places(
    over: Sequence[Placed], under: Sequence[Placed], *, scale: Callable[[float], float] = float
) -> PlacedContrast:
    """Return the mean of the values *over* minus that of those *under*, neither of them empty, and what it counts.

    All values are taken on *scale*.
    """
    places = {run.place for run in (*over, *under)}
    if None in places or len(places) == 1:
        known = tuple(str(place) for place in places if place is not None)
        return PlacedContrast(contrast=None, unit="seeds", shared=known)
    above, below = _by_place(over, scale), _by_place(under, scale)
    shared = tuple(sorted(above.keys() & below.keys()))
    out = sum(len(of) for own in (above, below) for place, of in own.items() if place not in shared)
    if len(shared) >= ENOUGH_NODES:
        contrast = statistics.mean([average(above[place]) - average(below[place]) for place in shared])
        return PlacedContrast(contrast=contrast, unit="nodes", paired=True, shared=shared, left_out=out)
    if shared:
        contrast = _blocked(above, below)
        return PlacedContrast(contrast=contrast, unit="these nodes", paired=True, shared=shared, left_out=out)
    contrast = statistics.welch([average(of) for of in above.values()], [average(of) for of in below.values()])
    if min(len(above), len(below)) >= ENOUGH_NODES:
        return PlacedContrast(contrast=contrast, unit="node means")
    return PlacedContrast(contrast=Contrast(value=contrast.value, standard_error=0.0, df=None), unit="none")


def node_flags(found: Mapping[str, PlacedRatio | PlacedContrast | None]) -> list[str]:
    """Return what nodes take from what was *found*, by its name ("speed-up"): a line for each remark."""
    remarks: defaultdict[str, list[str]] = defaultdict(list)
    for what, each in found.items():
        if each is not None and (remark := _remark(each)) is not None:
            remarks[remark].append(what)
    return [f"{', '.join(what)}: {remark}" for remark, what in remarks.items()]


def _remark(found: PlacedRatio | PlacedContrast) -> str | None:
    named = ", ".join(found.shared[:_NAMED])
    left = f"; {found.left_out} runs on other nodes say nothing of it" if found.left_out else ""
    if found.unit == "none":
        return "arm and node are one, hence no interval: it may be the difference of the nodes"
    if found.unit == "these nodes":
        return f"on {named} alone: other nodes may differ, and its interval does not say how much{left}"
    if found.unit == "nodes":
        return f"over {len(found.shared)} nodes that ran both arms: the node is its unit{left}" if left else None
    if found.unit == "node means":
        return "unpaired over means of nodes: none ran both arms, and what they differ by widens it"
    return None


def _by_seeds(over: Sequence[Placed], under: Sequence[Placed], shared: tuple[str, ...]) -> PlacedRatio | None:
    above, below = by_seed_of(over), by_seed_of(under)
    pairs = statistics.paired_seeds(above, below)
    tops, bottoms = ([each[seed] for seed in pairs or sorted(each)] for each in (above, below))
    found = statistics.ratio(tops, bottoms, pairs=bool(pairs))
    if found is None:
        return None
    return PlacedRatio(value=found[0], ci95=found[1], unit="seeds", paired=bool(pairs), shared=shared)


def by_seed_of(runs: Sequence[Placed]) -> dict[int, float]:
    """Return the mean value of each seed of *runs*."""
    values: defaultdict[int, list[float]] = defaultdict(list)
    for run in runs:
        values[run.seed].append(run.value)
    return {seed: average(of) for seed, of in values.items()}


def by_place_of(runs: Sequence[Placed]) -> dict[str, float]:
    """Return the mean value of each place of *runs*, all of which are known."""
    return {place: average(of) for place, of in _by_place(runs, float).items()}


def _by_place(runs: Sequence[Placed], scale: Callable[[float], float]) -> dict[str, list[float]]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for run in runs:
        values[str(run.place)].append(scale(run.value))
    return values


def _blocked(above: Mapping[str, Sequence[float]], below: Mapping[str, Sequence[float]]) -> Contrast:
    """Return the difference of *above* and *below* by least squares with an effect of each node.

    Nodes with runs of one arm alone tell nothing of the difference, but of the spread.
    """
    weights, differences = [], []
    for place in below.keys() & above.keys():
        a, b = below[place], above[place]
        weights.append(len(a) * len(b) / (len(a) + len(b)))
        differences.append(average(b) - average(a))
    total = math.fsum(weights)
    value = math.fsum(w * d for w, d in zip(weights, differences, strict=True)) / total
    moved = [math.sqrt(w) * (d - value) for w, d in zip(weights, differences, strict=True)]
    moved += [x - average(of) for own in (below, above) for of in own.values() for x in of]
    df = sum(len(of) for own in (below, above) for of in own.values()) - len(below.keys() | above.keys()) - 1
    if df < 1:
        return Contrast(value=value, standard_error=0.0, df=None)
    return Contrast(value=value, standard_error=math.hypot(*moved) / math.sqrt(df * total), df=df)
