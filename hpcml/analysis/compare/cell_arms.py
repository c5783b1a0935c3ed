"""The arms of one cell of a comparison with all that its rows are judged by, and an arm set against the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hpcml.analysis import stats
from hpcml.analysis.compare.objective import LogScale, Margin, Target, Yardstick
from hpcml.analysis.compare.to_target import Race, Reach
from hpcml.analysis.frame import Arm
from hpcml.analysis.nodes import MeasuredDifference, MeasuredRatio
from hpcml.analysis.stats import BySeed, Contrast
from hpcml.analysis.steady import SteadyState, StepCurves, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class CellArms:
    """The arms of one cell with all that its rows are judged by."""

    arms: Sequence[Arm]  # the reference first
    reference: Arm | None  # None: the cell has no run of that level
    yardstick: Yardstick
    margin: Margin
    target: Target
    by_precision: bool
    steady: Mapping[str, SteadyState]  # by uid
    window: Window | None  # one for all runs
    by_mean: bool  # speed-ups are of mean step times, not of medians
    curves: StepCurves
    scale: LogScale | None  # None: linear
    race: Race | None  # None: no target
    reaches: Mapping[str, Sequence[Reach]] = field(default_factory=dict)  # by level
    budget_s: float | None = None
    seed: int | None = None  # the one of all runs, where each of them is a unit

    @property
    def unit(self) -> Literal["seeds", "runs"]:
        """What is counted as one observation."""
        return "seeds" if self.seed is None else "runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """An arm against the reference, by seed, on the scale of the metric."""

    pairs: tuple[int, ...]  # seeds; () unpaired
    left_out: tuple[int, ...]  # seeds with a value in one of both, which a paired test does not use
    contrast: Contrast
    rho: float | None
    n: int  # seeds that the test rests on: pairs, else those of the smaller arm
    is_identical: bool  # every value is the reference's, bit for bit


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """What is measured of an arm against the reference beside the metric; None: there is none."""

    speed_up: MeasuredRatio | None
    energy: MeasuredRatio | None
    saved_time: MeasuredDifference | None


def match(arm: BySeed, reference: BySeed, scale: LogScale | None) -> Matched:
    """Return *arm* set against *reference*, both not empty."""
    pairs = stats.paired_seeds(arm, reference)
    ones, others = (
        {seed: value if scale is None else scale.value(value) for seed, value in values.items()}
        for values in (arm, reference)
    )
    return Matched(
        pairs=pairs,
        left_out=tuple(sorted(arm.keys() ^ reference.keys())) if pairs else (),
        contrast=stats.by_seeds(ones, others),
        rho=stats.correlation([ones[seed] for seed in pairs], [others[seed] for seed in pairs]),
        n=len(pairs) or min(len(arm), len(reference)),
        is_identical=all(arm[seed] == reference[seed] for seed in pairs)
        if pairs
        else len({*arm.values(), *reference.values()}) == 1,
    )
