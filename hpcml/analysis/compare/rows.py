"""One row of a comparison: an arm against the reference arm of its cell, with the doubts about its numbers as flags.

`draft_row` judges each row alone, `adjusted` then all rows of the table together (Holm), `row_flags` names each reason
for doubt in one line: few seeds, lost runs, an unproven precision, unpaired seeds, times that are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcml.analysis import statistics
from hpcml.analysis.compare.arms import Arm, has_nonfinite_loss
from hpcml.analysis.compare.cells import Terms
from hpcml.analysis.compare.costs import cost, cost_flags, find_rates, load, load_flags
from hpcml.analysis.compare.speed import find_speed, speed_flags
from hpcml.analysis.compare.to_target import mlperf_score, to_target
from hpcml.analysis.statistics import Claims, Contrast, adjust, find_claims, is_paired, verdict_of
from hpcml.analysis.steady import MIN_STEPS
from hpcml.model.comparison import MIXED, NOT_PROVEN, Difference, Row, Speed, Verdict
from hpcml.model.precision import Numerics, PrecisionName, contradicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A row judged as if it were alone, and its p values for the adjustment over the table."""

    row: Row
    claims: Claims | None  # None: nothing can be claimed, hence nothing is adjusted


def draft_row(arm: Arm, terms: Terms) -> Draft:
    """Return the row of *arm*, judged as if it were the only one of the table."""
    values = arm.aligned(arm.seeds)
    mean = statistics.mean(values) if values else None
    contrast = _contrast(arm, terms)
    difference = None if contrast is None else _difference(contrast, arm, terms)
    speed = find_speed(arm, terms) if arm.has_speed else None
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
        n_incomplete=len(arm.incomplete),
        n_unfinished=len(arm.unfinished),
        seeds=arm.seeds,
        mean=None if mean is None else mean.value,
        sd=statistics.sd(values),
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
    """Return the rows of *drafts* in their order, their verdicts adjusted by Holm for the number of tests."""
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
    compared = statistics.paired if is_paired(arm.values, reference.values) else statistics.welch
    return compared(arm.aligned(arm.seeds), reference.aligned(reference.seeds))


def _difference(contrast: Contrast, arm: Arm, terms: Terms) -> Difference:
    reference = terms.reference
    assert reference is not None, f"{arm.level}: a contrast has a reference"
    pairs = is_paired(arm.values, reference.values)
    rho = statistics.correlation(arm.aligned(arm.seeds), reference.aligned(reference.seeds)) if pairs else None
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
    return statistics.p_not_worse(values, others, terms.margin, higher_is_better=terms.higher_is_better)


def _verdict(arm: Arm, difference: Difference | None, terms: Terms) -> Verdict:
    if arm is terms.reference:
        return "reference"
    if terms.by_precision and (_is_impostor(arm) or (terms.reference is not None and _is_impostor(terms.reference))):
        return "not as requested"
    if not arm.values:
        return "inconclusive"
    interval = None if difference is None else difference.ci90
    return statistics.verdict(interval, terms.margin, higher_is_better=terms.higher_is_better)


def _is_impostor(arm: Arm) -> bool:
    """Whether any run was measured to compute in another precision than it was configured for."""
    return any(contradicts(run.precision, run.precision_effective) for run in arm.ok)


def row_flags(arm: Arm, terms: Terms, difference: Difference | None, speed: Speed | None) -> tuple[str, ...]:
    """Return all flags of the row of *arm*, each one line for people."""
    found = [*_doubts(arm, terms), *_precision_flags(arm, terms), *_method_flags(arm, terms, difference, speed)]
    if speed is not None:
        found += [*speed_flags(arm, terms), *cost_flags(arm), *_requeue_flags(arm, terms)]
    return tuple(found)


def effective(arm: Arm) -> tuple[str, ...]:
    """Return the precisions that runs of *arm* were measured to compute in, sorted; `NOT_PROVEN` where not measured."""
    return tuple(sorted({run.precision_effective or NOT_PROVEN for run in arm.ok}))


def _doubts(arm: Arm, terms: Terms) -> list[str]:
    """Return the flags about how many runs there are, and which are missing."""
    if not arm.ok:
        return ["no run counts", *([_missing(arm)] if arm.incomplete else [])]
    flags = []
    reference = terms.reference
    arms = [arm] if reference is None or not reference.ok else [arm, reference]
    n = min(len(one.values) for one in arms)
    if n < statistics.INDICATIVE_BELOW:
        flags.append(f"n={n}: indicative only")
    if extra := len(arm.ok) - len(arm.values):
        flags.append(f"{extra} replicates of seeds that were run before: averaged within the seed first")
    if lost := len(arm.without_value):
        flags.append(f"{lost} of {len(arm.ok) + lost} ended runs do not count: the rest may be a lucky selection")
    if arm.incomplete:
        flags.append(_missing(arm))
    return flags


def _missing(arm: Arm) -> str:
    n, why = len(arm.incomplete), arm.incomplete[0].incomplete
    return (
        f"records may be missing of {n} run{'s' if n > 1 else ''}, which {'do' if n > 1 else 'does'} not count: {why}"
    )


def _precision_flags(arm: Arm, terms: Terms) -> list[str]:
    proofs = Counter((run.precision, run.precision_effective) for run in arm.ok)
    flags = []
    for (requested, measured), n in sorted(proofs.items(), key=str):
        runs = f"{n} of {len(arm.ok)} runs"
        if measured is None and requested == PrecisionName.own.name:
            flags.append(f"precision left to the program, and not measured ({runs})")
        elif measured is None:
            flags.append(f"requested {requested}, not proven by a measurement ({runs})")
        elif contradicts(requested, measured):
            flags.append(f"requested {requested}, measured {measured} ({runs})")
    measured_ones = effective(arm)
    if len(measured_ones) > 1:
        flags.append(f"mixed effective precisions: {', '.join(measured_ones)}")
    if arm.ok and not arm.has_speed:
        flags.append(f"{_numerics(arm)}: no speed")
    others = terms.reference
    is_judged = terms.by_precision and others is not None and others is not arm and bool(arm.ok)
    if is_judged and others is not None and measured_ones == effective(others) != (NOT_PROVEN,):
        flags.append(f"measured {', '.join(measured_ones)}, as the reference was: this row compares no precisions")
    return flags


def _numerics(arm: Arm) -> str:
    """Return in words why the times of *arm* cannot be used."""
    if arm.numerics == MIXED:
        return f"{', '.join(arm.kinds[:-1])} and {arm.kinds[-1]} runs mixed"
    return arm.numerics if arm.numerics == Numerics.emulated.name else f"numerics {arm.numerics}"


def _method_flags(arm: Arm, terms: Terms, difference: Difference | None, speed: Speed | None) -> list[str]:
    """Return the flags about how the row's numbers came about."""
    flags, reference = [], terms.reference
    if difference is not None and reference is not None and arm.seeds != reference.seeds:
        flags.append("seeds do not match the reference's one to one: unpaired (Welch)")
    interval = None if difference is None else difference.ci90
    if difference is not None and interval is not None and interval.low == interval.high:
        question = ": did the two arms really compute different things?" if difference.value == 0 else ""
        flags.append(f"no spread in the difference, an interval without width{question}")
    if speed is not None:
        flags += _time_flags(arm, terms)
    if broken := sum(has_nonfinite_loss(run) for run in arm.ok):
        flags.append(f"{broken} of {len(arm.ok)} runs had non-finite loss")
    return flags


def _time_flags(arm: Arm, terms: Terms) -> list[str]:
    """Return the flags about seeds without a steady step time, by the reason."""
    steady = {run.seed for run in arm.ok if run.uid in terms.steady}
    reported = {run.seed for run in arm.ok if run.uid in terms.reporting}
    n, n_silent, n_short = len(arm.values), len(set(arm.values) - reported), len(reported - steady)
    flags = []
    if n_silent:
        flags.append(f"step_time_s was not reported{f' for {n_silent} of {n} seeds' if n_silent < n else ''}")
    if n_short:
        flags.append(f"no steady step time for {n_short} of {n} seeds: below {MIN_STEPS} steps in the window")
    return flags


def _requeue_flags(arm: Arm, terms: Terms) -> list[str]:
    """Return the flag for runs that were started again: their times to the target include the queue."""
    waited = sum(reach.run.attempt > 1 and reach.at_s is not None for reach in terms.reaches.get(arm.level, ()))
    return [f"{waited} runs were started more than once: their times to the target hold the waiting"] if waited else []
