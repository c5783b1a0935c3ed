"""One row of a comparison: an arm against the reference arm of its cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hpcml.analysis import equivalence
from hpcml.analysis.arms import Arm, Times, has_nonfinite_loss, median_of, times
from hpcml.analysis.steady import MIN_STEPS, SteadyState
from hpcml.comparison import MIXED, NOT_PROVEN, Difference, Interval, Row, Speed, Verdict
from hpcml.precision import Numerics


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a cell's rows have in common."""

    reference: Arm | None  # None: the cell has no run of that level
    margin: float | None
    higher_is_better: bool
    by_precision: bool
    steady: Mapping[str, SteadyState]  # by uid, one step window for all
    reporting: Collection[str]  # uids of the runs that reported step_time_s at all


def build_row(arm: Arm, terms: Terms) -> Row:
    """Return everything there is to say about *arm*."""
    values = arm.aligned(arm.seeds)
    mean = equivalence.mean(values) if values else None
    difference = _difference(arm, terms)
    speed = _speed(arm, terms) if arm.has_speed else None
    return Row(
        level=arm.level,
        numerics=arm.numerics,
        precision_requested=tuple(sorted({run.precision for run in arm.ok})),
        precision_effective=_effective(arm),
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
        flags=(*_doubts(arm, terms), *_precision_flags(arm, terms), *_method_flags(arm, terms, difference, speed)),
    )


def is_paired(arm_seeds: Mapping[int, float], reference_seeds: Mapping[int, float]) -> bool:
    """Whether two arms can be compared seed by seed: the same seeds, and at least two."""
    return len(arm_seeds) >= 2 and set(arm_seeds) == set(reference_seeds)


def _difference(arm: Arm, terms: Terms) -> Difference | None:
    reference = terms.reference
    if reference is None or reference is arm or not arm.values or not reference.values:
        return None
    pairs = is_paired(arm.values, reference.values)
    ones, others = arm.aligned(arm.seeds), reference.aligned(reference.seeds)
    contrast = equivalence.paired(ones, others) if pairs else equivalence.welch(ones, others)
    return Difference(
        value=contrast.value,
        ci90=contrast.interval(0.90),
        ci95=contrast.interval(0.95),
        p_tost=None if terms.margin is None else contrast.p_tost(terms.margin),
        paired=pairs,
        rho=equivalence.correlation(ones, others) if pairs else None,
    )


def _verdict(arm: Arm, difference: Difference | None, terms: Terms) -> Verdict:
    if arm is terms.reference:
        return "reference"
    if terms.by_precision and (_is_impostor(arm) or (terms.reference is not None and _is_impostor(terms.reference))):
        return "not as requested"
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


def _effective(arm: Arm) -> tuple[str, ...]:
    return tuple(sorted({run.precision_effective or NOT_PROVEN for run in arm.ok}))


def _doubts(arm: Arm, terms: Terms) -> list[str]:
    """Return the flags about how many runs there are, and which are missing."""
    if not arm.ok:
        return ["no run counts"]
    flags = []
    arms = [arm] if terms.reference is None or not terms.reference.ok else [arm, terms.reference]
    n = min(len(one.values) for one in arms)
    if n < equivalence.INDICATIVE_BELOW:
        flags.append(f"n={n}: indicative only")
    if extra := len(arm.ok) - len(arm.values):
        flags.append(f"{extra} replicates of seeds that were run before: averaged within the seed first")
    if lost := len(arm.nan) + len(arm.failed) + len(arm.without_metric):
        flags.append(f"{lost} of {len(arm.ok) + lost} ended runs do not count: the rest may be a lucky selection")
    return flags


def _precision_flags(arm: Arm, terms: Terms) -> list[str]:
    proofs = Counter((run.precision, run.precision_effective) for run in arm.ok)
    flags = []
    for (requested, measured), n in sorted(proofs.items(), key=str):
        runs = f"{n} of {len(arm.ok)} runs"
        if measured is None:
            flags.append(f"requested {requested}, not proven by a measurement ({runs})")
        elif measured != requested:
            flags.append(f"requested {requested}, measured {measured} ({runs})")
    effective = _effective(arm)
    if len(effective) > 1:
        flags.append(f"mixed effective precisions: {', '.join(effective)}")
    if arm.ok and not arm.has_speed:
        flags.append(f"{_numerics(arm)}: no speed")
    others = terms.reference
    is_judged = terms.by_precision and others is not None and others is not arm and bool(arm.ok)
    if is_judged and others is not None and effective == _effective(others) and effective != (NOT_PROVEN,):
        flags.append(f"measured {', '.join(effective)}, as the reference was: this row compares no precisions")
    return flags


def _numerics(arm: Arm) -> str:
    """Return in words why the times of *arm* say nothing."""
    if arm.numerics == MIXED:
        return f"{', '.join(arm.kinds[:-1])} and {arm.kinds[-1]} runs mixed"
    return arm.numerics if arm.numerics == Numerics.emulated.name else f"numerics {arm.numerics}"


def _method_flags(arm: Arm, terms: Terms, difference: Difference | None, speed: Speed | None) -> list[str]:
    """Return the flags about how the row's numbers came about."""
    flags = []
    if difference is not None and terms.reference is not None and arm.seeds != terms.reference.seeds:
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
