"""Differences and ratios of what is measured of a machine (times, energies): over nodes, or over seeds.

Nodes of one kind differ by some per cent, runs on one of them by much less. So runs on one node are no independent
witnesses for another (S. Hurlbert, Ecol. Monogr. 54, 1984, on pseudoreplication). Three rules, by counting nodes and
never by what was measured:

1. The node is the unit where three or more ran both arms: the difference on each is one observation, in a paired t
   test. So it is where none ran both, and each arm had three or more: means of nodes, in Welch's t test.
2. Else arms that share no node are one with their nodes, and there is no interval.
3. Else the seed is the unit, of the runs on the nodes that both arms ran on: a note says which nodes these were.

GPUs of one node are one place: what they differ by is in the spread of the seeds that they were given to.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcml.analysis import stats
from hpcml.analysis.compare.result import ENOUGH_NODES, Interval, Unit
from hpcml.analysis.flags import Flag, FlagCode, flag
from hpcml.analysis.frame import node_of
from hpcml.analysis.stats import BySeed, Contrast, average
from hpcml.model.records import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One number of one run, in any unit, with the seed and the node (None: not recorded) that it was measured on."""

    seed: int
    node: str | None
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDifference:
    """The difference of two arms; `unit` is what its degrees of freedom count."""

    contrast: Contrast
    unit: Unit
    paired: bool
    nodes: tuple[str, ...] = ()  # that it is of alone, where the seed is the unit and the arms ran on others, too

    def interval(self, confidence: float) -> Interval | None:
        """Return the interval of the difference; None where there is none."""
        return None if self.contrast.has_no_spread else self.contrast.interval(confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRatio:
    """The ratio of two arms by geometric means; `unit` is what its interval counts."""

    value: float
    ci95: Interval | None
    unit: Unit
    paired: bool
    nodes: tuple[str, ...] = ()


def measured(runs: Iterable[RunRecord], read: Callable[[RunRecord], float | None]) -> list[Measured]:
    """Return what *read* finds in each of *runs*; those without it are left out."""
    found = [(run, read(run)) for run in runs]
    return [Measured(seed=run.seed, node=node_of(run), value=value) for run, value in found if value is not None]


def seed_means(values: Iterable[Measured]) -> BySeed:
    """Return the mean of each seed."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for each in values:
        found[each.seed].append(each.value)
    return {seed: average(of_seed) for seed, of_seed in found.items()}


def difference(arm: Sequence[Measured], reference: Sequence[Measured]) -> MeasuredDifference:
    """Return the mean of *arm* minus that of *reference*, neither of them empty."""
    nodes = {each.node for each in (*arm, *reference)}
    shared: Sequence[str] = ()
    if None not in nodes and len(nodes) > 1:
        ones, others = _node_means(arm), _node_means(reference)
        shared = sorted(ones.keys() & others.keys())
        if len(shared) >= ENOUGH_NODES:
            contrast = stats.paired([ones[node] for node in shared], [others[node] for node in shared])
            return MeasuredDifference(contrast=contrast, unit="nodes", paired=True)
        if not shared and min(len(ones), len(others)) >= ENOUGH_NODES:
            contrast = stats.welch(list(ones.values()), list(others.values()))
            return MeasuredDifference(contrast=contrast, unit="nodes", paired=False)
        if not shared:
            value = average(list(ones.values())) - average(list(others.values()))
            contrast = Contrast(value=value, standard_error=0.0, df=None)
            return MeasuredDifference(contrast=contrast, unit="none", paired=False)
        arm, reference = ([each for each in values if each.node in shared] for values in (arm, reference))
    ones_by_seed, others_by_seed = seed_means(arm), seed_means(reference)
    return MeasuredDifference(
        contrast=stats.by_seeds(ones_by_seed, others_by_seed),
        unit="seeds",
        paired=bool(stats.paired_seeds(ones_by_seed, others_by_seed)),
        nodes=tuple(shared),
    )


def ratio(numerator: Sequence[Measured], denominator: Sequence[Measured]) -> MeasuredRatio | None:
    """Return the ratio of the geometric means with its 95 % interval; None where one is empty or not positive.

    The tests are on logarithms of the means of seeds or of nodes. The interval is None where nothing varies: a clock
    that tells ten milliseconds says so of all runs.
    """
    if not numerator or not denominator or min(each.value for each in (*numerator, *denominator)) <= 0:
        return None
    found = difference(_logs(numerator), _logs(denominator))
    value, interval = stats.exp_of(found.contrast)
    return MeasuredRatio(value=value, ci95=interval, unit=found.unit, paired=found.paired, nodes=found.nodes)


def node_flags(found: Mapping[str, MeasuredDifference | MeasuredRatio | None]) -> list[Flag]:
    """Return what nodes take from what was *found*, by its name ("speed-up")."""
    known = {what: each for what, each in found.items() if each is not None}
    own = [what for what, each in known.items() if each.unit == "none"]
    mixed = {what: each.nodes for what, each in known.items() if each.nodes}
    flags = []
    if own:
        why = "no node ran both arms, so it may be the difference of the nodes, and has no interval"
        flags.append(flag(FlagCode.NODES, what=", ".join(own), why=why))
    if mixed:
        why = f"on {', '.join(next(iter(mixed.values())))}: other nodes may differ, and the interval does not say so"
        flags.append(flag(FlagCode.NODES, "note", what=", ".join(mixed), why=why))
    return flags


def _logs(values: Sequence[Measured]) -> list[Measured]:
    return [Measured(seed=each.seed, node=each.node, value=math.log(each.value)) for each in values]


def _node_means(values: Iterable[Measured]) -> dict[str, float]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for each in values:
        found[str(each.node)].append(each.value)
    return {node: average(of_node) for node, of_node in found.items()}
