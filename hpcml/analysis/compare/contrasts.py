"""An arm's values set against the reference's: which seeds are pairs, which test that makes, and its least spread.

The choice looks at which seeds there are and never at their values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpcml.analysis import statistics
from hpcml.analysis.compare.arms import BySeed
from hpcml.analysis.compare.grid import MetricScale
from hpcml.analysis.statistics import LEAST_SEEDS, Claims, Contrast, find_claims
from hpcml.model.comparison import Difference, Interval

_SQRT2 = 2**0.5
_Pairing = Literal["all", "shared", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matchup:
    """An arm against the reference, on the scale of the metric."""

    pairing: _Pairing
    shared: tuple[int, ...]  # seeds
    left_out: tuple[int, ...]  # seeds with a value in one of both, which the test does not use
    contrast: Contrast
    rho: float | None
    n: int  # seeds that the test rests on: pairs, else those of the smaller arm
    is_identical: bool  # every value is the reference's, bit for bit
    is_floored: bool  # the spread is that of one step of the metric, not the seen one


def pairing_of(arm: BySeed, reference: BySeed) -> _Pairing:
    """Return how seeds are paired: all, the shared ones, or not at all.

    >>> pairing_of({0: .9, 1: .9, 2: .9, 3: .9}, {0: .9, 1: .9, 2: .9, 3: .9, 4: .9})
    'shared'
    """
    paired = statistics.paired_seeds(arm, reference)
    if not paired:
        return "none"
    return "all" if len(paired) == max(len(arm), len(reference)) else "shared"


def match(arm: BySeed, reference: BySeed, scale: MetricScale, step: float | None) -> Matchup:
    """Return *arm* set against *reference*, both not empty; *step* is that of the metric's grid, None for no grid."""
    shared = tuple(sorted(set(arm) & set(reference)))
    alone = tuple(sorted(set(arm) ^ set(reference)))
    kind = pairing_of(arm, reference)
    ours, theirs = _on_scale(arm, scale, step), _on_scale(reference, scale, step)
    floor = scale.step(step)
    pairs = [(ours[seed], theirs[seed]) for seed in shared]
    is_paired = kind != "none"
    if is_paired:
        tops, bottoms = [a for a, _ in pairs], [r for _, r in pairs]
        seen, contrast = statistics.paired(tops, bottoms), statistics.paired(tops, bottoms, floor=floor)
    else:
        values = list(ours.values()), list(theirs.values())
        seen, contrast = (statistics.welch(*values, floor=each) for each in (0.0, floor / _SQRT2))
    known = [*arm.values(), *reference.values()]
    return Matchup(
        pairing=kind,
        shared=shared,
        left_out=alone if kind == "shared" else (),
        contrast=contrast,
        rho=statistics.correlation([a for a, _ in pairs], [r for _, r in pairs]) if is_paired else None,
        n=len(shared) if is_paired else min(len(arm), len(reference)),
        is_identical=all(arm[s] == reference[s] for s in shared) if is_paired else len(set(known)) == 1,
        is_floored=contrast.standard_error > seen.standard_error * (1 + 1e-9),
    )


def claims_of(found: Matchup, margin: float | None, scale: MetricScale) -> Claims | None:
    """Return the p values of what *found* may show; None where it can show nothing.

    That is: without a margin, below 3 seeds, with identical values, and where differences without any spread are no
    matter of a grid that is known: nothing then says how certain they are.
    """
    if margin is None or found.n < LEAST_SEEDS or found.is_identical or not found.contrast.standard_error:
        return None
    return find_claims(found.contrast, scale.distance(margin), higher_is_better=scale.higher_is_better)


def describe(found: Matchup, margin: float | None, scale: MetricScale) -> Difference:
    """Return *found* in the metric's unit; on another scale than linear as it is from `MetricScale.at` on."""

    def back(interval: Interval | None) -> Interval | None:
        if interval is None:
            return None
        return Interval(low=scale.back(interval.low), high=scale.back(interval.high), confidence=interval.confidence)

    contrast = found.contrast
    has_no_spread = contrast.has_no_spread and not found.is_identical
    return Difference(
        value=scale.back(contrast.value),
        ci90=back(contrast.interval(0.90)),
        ci95=back(contrast.interval(0.95)),
        p_tost=None if margin is None or has_no_spread else contrast.p_tost(scale.distance(margin)),
        paired=found.pairing != "none",
        rho=found.rho,
        n_pairs=0 if found.pairing == "none" else len(found.shared),
        left_out=found.left_out,
        is_floored=found.is_floored,
        has_no_spread=has_no_spread,
    )


def _on_scale(values: BySeed, scale: MetricScale, step: float | None) -> dict[int, float]:
    return {seed: scale.value(value, step) for seed, value in values.items()}
