"""One row of a comparison: an arm against the reference arm of its cell, with the doubts about its numbers as flags.

`draft_row` judges each row alone, `adjusted` then all rows of the table together (Holm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcml.analysis import statistics
from hpcml.analysis.compare.arms import Arm
from hpcml.analysis.compare.cells import Terms
from hpcml.analysis.compare.contrasts import Matchup, claims_of, describe, match
from hpcml.analysis.compare.costs import NO_RATES, cost, find_rates, load, load_flags
from hpcml.analysis.compare.flags import effective, row_flags
from hpcml.analysis.compare.losses import find_losses, judged_by_losses
from hpcml.analysis.compare.speed import find_speed, find_speed_ups
from hpcml.analysis.compare.to_target import to_target
from hpcml.analysis.statistics import Claims, adjust, p_of, verdict_of
from hpcml.model.comparison import NOT_AS_REQUESTED, Row, Verdict
from hpcml.model.precision import is_proven


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A row judged as if it were alone, and its p values for the adjustment over the table."""

    row: Row
    arm: Arm
    terms: Terms
    found: Matchup | None  # None: the reference, or nothing to compare with
    claims: Claims | None  # None: nothing can be claimed, hence nothing is adjusted


def draft_row(arm: Arm, terms: Terms) -> Draft:
    """Return the row of *arm*, judged as if it were the only one of the table."""
    values = arm.aligned(arm.seeds)
    mean = statistics.mean(values) if values else None
    found = _match(arm, terms)
    difference = None if found is None else describe(found, terms.margin, terms.scale)
    claims = None if found is None else claims_of(found, terms.margin, terms.scale)
    ups = find_speed_ups(arm, terms) if arm.has_speed else None
    rates = find_rates(arm, terms.steady) if arm.has_speed else NO_RATES
    reaches = terms.reaches.get(arm.level, ())
    others = None if terms.reference is None or terms.reference is arm else terms.reaches.get(terms.reference.level)
    row = Row(
        level=arm.level,
        numerics=arm.numerics,
        precision_requested=tuple(sorted({run.precision for run in arm.ok})),
        precision_effective=effective(arm),
        n_ok=len(arm.ok),
        n_failed=len(arm.failed),
        n_nan=len(arm.nan),
        n_without_metric=len(arm.without_metric),
        n_incomplete=len(arm.incomplete),
        n_unfinished=len(arm.unfinished),
        seeds=arm.seeds if terms.seed is None or not arm.values else (terms.seed,),
        unit=terms.unit,
        mean=None if mean is None else mean.value,
        sd=statistics.sd(values),
        mean_ci95=None if mean is None else mean.interval(0.95),
        difference=difference,
        verdict=_verdict(arm, found, claims, terms),
        speed=None if ups is None else find_speed(arm, terms, ups),
        flags=(
            *row_flags(arm, terms, found, ups),
            *(load_flags(arm, rates) if arm.has_speed else ()),
        ),
        losses=find_losses(arm, terms.reference),
        cost=cost(arm, terms.reference) if arm.has_speed else None,
        load=(
            load(arm, terms.steady, rates, steps=terms.steps, data=terms.data, communication=terms.communication)
            if arm.has_speed
            else None
        ),
        to_target=None if terms.race is None else to_target(reaches, others, terms.race, terms.budget_s),
        awaited=_awaited(arm, terms),
    )
    return Draft(row=row, arm=arm, terms=terms, found=found, claims=claims)


def adjusted(drafts: Sequence[Draft]) -> list[Row]:
    """Return the rows of *drafts* in their order, their verdicts adjusted by Holm for the number of tests."""
    family = [at for at, draft in enumerate(drafts) if draft.claims is not None]
    rows = [draft.row for draft in drafts]
    for at, claims in zip(family, adjust([draft.claims for draft in drafts if draft.claims is not None]), strict=True):
        rows[at] = _judged(drafts[at], claims, len(family))
    return rows


def _judged(draft: Draft, claims: Claims, m: int) -> Row:
    row = draft.row
    verdict = _verdict(draft.arm, draft.found, claims, draft.terms)
    row = replace(row, p_adjusted=claims.equivalent, p_claim=p_of(claims, verdict))
    if verdict == row.verdict:
        return row
    flag = f"{row.verdict} if it were the only row, {verdict} after Holm over {m}"
    return replace(row, verdict=verdict, verdict_alone=row.verdict, flags=(*row.flags, flag))


def _awaited(arm: Arm, terms: Terms) -> tuple[str, ...]:
    """Return the runs of *arm* and its reference that have not ended."""
    if terms.reference is None:
        return ()
    both = (arm,) if terms.reference is arm else (arm, terms.reference)
    return tuple(sorted(run.uid for each in both for run in each.unfinished))


def _match(arm: Arm, terms: Terms) -> Matchup | None:
    reference = terms.reference
    if reference is None or reference is arm or not arm.values or not reference.values:
        return None
    return match(arm.values, reference.values, terms.scale, terms.resolution.value)


def _verdict(arm: Arm, found: Matchup | None, claims: Claims | None, terms: Terms) -> Verdict:
    """Return what may be said of *arm*, where *claims* are its p values; doubts come before claims."""
    reference = terms.reference
    if arm is reference:
        return "reference"
    if terms.by_precision and any(each.is_impostor for each in (arm, reference) if each is not None):
        return NOT_AS_REQUESTED
    said = _said(found, claims, terms)
    if reference is not None:
        said = judged_by_losses(said, arm, reference)
    if said in ("unstable", "unstable reference") or not terms.by_precision:
        return said
    return "not proven" if any(_is_unproven(each) for each in (arm, reference) if each is not None) else said


def _said(found: Matchup | None, claims: Claims | None, terms: Terms) -> Verdict:
    if found is not None and found.is_identical and found.n >= statistics.LEAST_SEEDS:
        return "identical"
    if terms.margin is None:
        return "no margin"
    if claims is None:
        return "inconclusive"
    said = verdict_of(claims)
    return said if terms.knows_goal or said == "equivalent" else "no goal"


def _is_unproven(arm: Arm) -> bool:
    """Whether it is not known of a run in which precision it computed."""
    return any(not is_proven(run.precision_effective) for run in arm.ok)
