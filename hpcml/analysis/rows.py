"""One row of a comparison: an arm against the reference arm of its cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcml.analysis import equivalence
from hpcml.analysis.arms import Arm, Times, median_of, times
from hpcml.analysis.costs import cost
from hpcml.analysis.equivalence import Contrast, is_paired
from hpcml.analysis.holm import Claims, adjust, find_claims, verdict_of
from hpcml.analysis.loads import find_rates, load, load_flags
from hpcml.analysis.row_flags import effective, row_flags
from hpcml.analysis.terms import Terms
from hpcml.analysis.to_target import mlperf_score, to_target
from hpcml.comparison import Difference, Interval, Row, Speed, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A row as it would be alone, and what would be claimed of it."""

    row: Row
    claims: Claims | None  # None: nothing can be claimed, hence nothing is adjusted


def draft_row(arm: Arm, terms: Terms) -> Draft:
    """Return everything there is to say about *arm*, but for how many other rows there are."""
    values = arm.aligned(arm.seeds)
    mean = equivalence.mean(values) if values else None
    contrast = _contrast(arm, terms)
    difference = None if contrast is None else _difference(contrast, arm, terms)
    speed = _speed(arm, terms) if arm.has_speed else None
    rates = find_rates(arm, terms.steady) if arm.has_speed else {}
    reaches = terms.reaches.get(arm.level, ())
    score, why_not = mlperf_score(reaches) if terms.is_scored else (None, None)
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
        n_unfinished=len(arm.unfinished),
        seeds=arm.seeds,
        mean=None if mean is None else mean.value,
        sd=equivalence.sd(values),
        mean_ci95=None if mean is None else mean.interval(0.95),
        difference=difference,
        verdict=_verdict(arm, difference, terms),
        speed=speed,
        flags=(
            *row_flags(arm, terms, difference, speed),
            *(load_flags(arm, rates) if arm.has_speed else ()),
            *([why_not] if why_not else ()),
        ),
        p_not_worse=_p_not_worse(arm, terms),
        score=score,
        cost=cost(arm, terms.reference) if arm.has_speed else None,
        load=(
            load(arm, terms.steady, rates, steps=terms.steps, data=terms.data, communication=terms.communication)
            if arm.has_speed
            else None
        ),
        to_target=None if terms.race is None else to_target(reaches, others, terms.race, terms.budget_s),
    )
    claims = None
    if contrast is not None:
        claims = find_claims(contrast, terms.margin, higher_is_better=terms.higher_is_better)
    return Draft(row=row, claims=claims)


def adjusted(drafts: Sequence[Draft]) -> list[Row]:
    """Return the rows of *drafts* in their order, judged as many: what is claimed holds for the table as a whole."""
    family = [at for at, draft in enumerate(drafts) if draft.claims is not None]
    rows = [draft.row for draft in drafts]
    for at, claims in zip(family, adjust([draft.claims for draft in drafts if draft.claims is not None]), strict=True):
        rows[at] = _judged(rows[at], claims, len(family))
    return rows


def _judged(row: Row, claims: Claims, m: int) -> Row:
    if m == 1 or row.verdict == "not as requested":  # alone, the interval has decided
        return replace(row, p_adjusted=claims.equivalent)
    verdict, flags = verdict_of(claims), row.flags
    if verdict != row.verdict:
        flags = (*flags, f"{row.verdict} if it were the only row, {verdict} after Holm over {m}")
    return replace(row, p_adjusted=claims.equivalent, verdict=verdict, flags=flags)


def _contrast(arm: Arm, terms: Terms) -> Contrast | None:
    reference = terms.reference
    if reference is None or reference is arm or not arm.values or not reference.values:
        return None
    compared = equivalence.paired if is_paired(arm.values, reference.values) else equivalence.welch
    return compared(arm.aligned(arm.seeds), reference.aligned(reference.seeds))


def _difference(contrast: Contrast, arm: Arm, terms: Terms) -> Difference:
    reference = terms.reference
    assert reference is not None, f"{arm.level}: a contrast has a reference"
    pairs = is_paired(arm.values, reference.values)
    rho = equivalence.correlation(arm.aligned(arm.seeds), reference.aligned(reference.seeds)) if pairs else None
    return Difference(
        value=contrast.value,
        ci90=contrast.interval(0.90),
        ci95=contrast.interval(0.95),
        p_tost=None if terms.margin is None else contrast.p_tost(terms.margin),
        paired=pairs,
        rho=rho,
    )


def _p_not_worse(arm: Arm, terms: Terms) -> float | None:
    reference = terms.reference
    if reference is None or reference is arm or terms.margin is None:
        return None
    values, others = arm.aligned(arm.seeds), reference.aligned(reference.seeds)
    return equivalence.p_not_worse(values, others, terms.margin, higher_is_better=terms.higher_is_better)


def _verdict(arm: Arm, difference: Difference | None, terms: Terms) -> Verdict:
    if arm is terms.reference:
        return "reference"
    if terms.by_precision and (_is_impostor(arm) or (terms.reference is not None and _is_impostor(terms.reference))):
        return "not as requested"
    if not arm.values:
        return "inconclusive"
    interval = None if difference is None else difference.ci90
    return equivalence.verdict(interval, terms.margin, higher_is_better=terms.higher_is_better)


def _is_impostor(arm: Arm) -> bool:
    """Whether any run was measured to compute in another precision than its name says."""
    return any(run.precision_effective not in (None, run.precision) for run in arm.ok)


def _speed(arm: Arm, terms: Terms) -> Speed:
    own = times(arm, terms.steady)
    speedup, interval, pairs = None, None, None
    if terms.reference is not None and terms.reference is not arm and terms.reference.has_speed:
        speedup, interval, pairs = _speedup(own, times(terms.reference, terms.steady))
    all_known = set(own.samples_s) == set(own.steps_s) and bool(own.samples_s)
    return Speed(
        step_ms=median_of(own.steps_s, scale=1000),
        step_ms_p5=median_of(own.p5_s, scale=1000),
        step_ms_p95=median_of(own.p95_s, scale=1000),
        samples_per_s=median_of({seed: 1 / s for seed, s in own.samples_s.items()}) if all_known else None,
        speedup=speedup,
        speedup_ci95=interval,
        speedup_paired=pairs,
        n=len(own.steps_s),
        wall_s=median_of(own.walls_s),
    )


def _speedup(own: Times, reference: Times) -> tuple[float | None, Interval | None, bool | None]:
    """Compare the time of a sample; that of a step where batch sizes are unknown to matter but alike."""
    costs = own.samples_s, reference.samples_s
    if any(set(t.samples_s) != set(t.steps_s) for t in (own, reference)):
        if own.batch_sizes != reference.batch_sizes or len(own.batch_sizes) != 1:
            return None, None, None
        costs = own.steps_s, reference.steps_s
    mine, theirs = costs
    pairs = is_paired(mine, theirs)
    ratio = equivalence.ratio([theirs[s] for s in sorted(theirs)], [mine[s] for s in sorted(mine)], pairs=pairs)
    return (None, None, None) if ratio is None else (*ratio, pairs)
