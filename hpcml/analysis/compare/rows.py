"""One row of a comparison: an arm against the reference arm of its cell.

`draft_row` judges each row alone, `adjusted` then all rows of the table together (Holm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcml.analysis import stats
from hpcml.analysis.compare.cell_arms import CellArms, Matched, Ratios, match
from hpcml.analysis.compare.flags import row_flags
from hpcml.analysis.compare.losses import find_losses
from hpcml.analysis.compare.measures import cost, energy_ratio, find_speed, find_speed_up, load
from hpcml.analysis.compare.result import Difference, Interval, Row
from hpcml.analysis.compare.to_target import saved_time, to_target
from hpcml.analysis.compare.verdicts import Claims, adjust, claims_of, find_verdict, p_of
from hpcml.analysis.flags import FlagCode, flag
from hpcml.analysis.frame import Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A row judged as if it were alone, and its p values for the adjustment over the table."""

    row: Row
    arm: Arm
    cell: CellArms
    matched: Matched | None  # None: the reference, or nothing to compare with
    claims: Claims | None  # None: nothing can be claimed, hence nothing is adjusted


def draft_row(arm: Arm, cell: CellArms) -> Draft:
    """Return the row of *arm*, judged as if it were the only one of the table."""
    reference = cell.reference
    is_compared = reference is not None and reference is not arm and bool(arm.values) and bool(reference.values)
    matched = match(arm.values, reference.values, cell.scale) if is_compared and reference is not None else None
    claims = None if matched is None else claims_of(matched, cell)
    verdict = find_verdict(arm, matched, claims, cell)
    mean = stats.mean(list(arm.values.values())) if arm.values else None
    others = None if reference is None or reference is arm else cell.reaches.get(reference.level)
    own_reaches = cell.reaches.get(arm.level, ())
    metric = cell.yardstick.metric
    ratios = Ratios(
        speed_up=find_speed_up(arm, reference, cell.steady, by_mean=cell.by_mean, metric=metric),
        energy=energy_ratio(arm, reference),
        saved_time=saved_time(own_reaches, others, cell.budget_s),
    )
    own_load, doubts = load(arm, cell.steady, cell.curves) if arm.has_speed else (None, [])
    flags = row_flags(arm, reference, matched, verdict, cell, ratios)
    race = cell.race
    row = Row(
        level=arm.level,
        numerics=arm.numerics,
        precision_requested=tuple(sorted({run.precision for run in arm.ok})),
        precision_effective=arm.effective,
        n_ok=len(arm.ok),
        n_failed=len(arm.failed),
        n_nan=len(arm.nan),
        n_without_metric=len(arm.without_metric),
        n_incomplete=len(arm.incomplete),
        n_unfinished=len(arm.unfinished),
        seeds=arm.seeds if cell.seed is None or not arm.values else (cell.seed,),
        unit=cell.unit,
        mean=None if mean is None else mean.value,
        sd=stats.sd(list(arm.values.values())),
        mean_ci95=None if mean is None else mean.interval(0.95),
        difference=None if matched is None else _difference(matched, cell),
        verdict=verdict,
        speed=find_speed(arm, cell.steady, ratios.speed_up, by_mean=cell.by_mean, metric=metric)
        if arm.has_speed
        else None,
        flags=(*flags, *doubts),
        losses=find_losses(arm),
        cost=cost(arm, ratios.energy) if arm.has_speed else None,
        load=own_load,
        to_target=None if race is None else to_target(own_reaches, others, race, cell.budget_s, ratios.saved_time),
        awaited=_awaited(arm, reference),
    )
    return Draft(row=row, arm=arm, cell=cell, matched=matched, claims=claims)


def adjusted(drafts: Sequence[Draft]) -> list[Row]:
    """Return the rows of *drafts* in their order, their verdicts adjusted by Holm for the number of tests."""
    family = [draft.claims for draft in drafts if draft.claims is not None]
    claims = iter(adjust(family))
    return [draft.row if draft.claims is None else _judged(draft, next(claims), len(family)) for draft in drafts]


def _judged(draft: Draft, claims: Claims, m: int) -> Row:
    alone = draft.row.verdict
    verdict = find_verdict(draft.arm, draft.matched, claims, draft.cell)
    row = replace(draft.row, verdict=verdict, p_adjusted=claims.equivalent, p_claim=p_of(claims, verdict))
    if verdict == alone:
        return row
    changed = flag(FlagCode.HOLM, alone=alone, verdict=verdict, m=m)
    return replace(row, verdict_alone=alone, flags=(*row.flags, changed))


def _difference(matched: Matched, cell: CellArms) -> Difference:
    """Return *matched* in the metric's unit, or in per cent; on the log scale as it is from `LogScale.at` on."""
    scale, margin, contrast = cell.scale, cell.margin.value, matched.contrast

    def back(interval: Interval | None) -> Interval | None:
        if interval is None or scale is None:
            return interval
        return replace(interval, low=scale.back(interval.low), high=scale.back(interval.high))

    has_no_spread = contrast.has_no_spread and not matched.is_identical
    distance = margin if margin is None or scale is None else scale.distance(margin)
    return Difference(
        value=contrast.value if scale is None else scale.back(contrast.value),
        ci90=back(contrast.interval(0.90)),
        ci95=back(contrast.interval(0.95)),
        p_tost=None if distance is None or has_no_spread else contrast.p_tost(distance),
        paired=bool(matched.pairs),
        rho=matched.rho,
        n_pairs=len(matched.pairs),
        left_out=matched.left_out,
        has_no_spread=has_no_spread,
    )


def _awaited(arm: Arm, reference: Arm | None) -> tuple[str, ...]:
    """Return the runs of *arm* and its reference that have not ended."""
    if reference is None:
        return ()
    return tuple(sorted({run.uid for each in (arm, reference) for run in each.unfinished}))
