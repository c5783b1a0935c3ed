"""What must be known of a row before its numbers are believed: each doubt in one line."""

from __future__ import annotations

from collections import Counter

from hpcml.analysis import equivalence
from hpcml.analysis.arms import Arm, has_nonfinite_loss
from hpcml.analysis.costs import cost_flags
from hpcml.analysis.steady import MIN_STEPS
from hpcml.analysis.terms import Terms
from hpcml.comparison import MIXED, NOT_PROVEN, Difference, Speed
from hpcml.precision import Numerics


def row_flags(arm: Arm, terms: Terms, difference: Difference | None, speed: Speed | None) -> tuple[str, ...]:
    """Return all flags of the row of *arm*."""
    found = [*_doubts(arm, terms), *_precision_flags(arm, terms), *_method_flags(arm, terms, difference, speed)]
    if speed is not None:
        found += [*cost_flags(arm), *_requeue_flags(arm, terms)]
    return tuple(found)


def effective(arm: Arm) -> tuple[str, ...]:
    """Return each precision that runs of *arm* were measured to compute in."""
    return tuple(sorted({run.precision_effective or NOT_PROVEN for run in arm.ok}))


def _doubts(arm: Arm, terms: Terms) -> list[str]:
    """Return the flags about how many runs there are, and which are missing."""
    if not arm.ok:
        return ["no run counts"]
    flags = []
    reference = terms.reference
    arms = [arm] if reference is None or not reference.ok else [arm, reference]
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
    """Return in words why the times of *arm* say nothing."""
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
    """Return the flag about times to the target in which a run also waited in the queue."""
    waited = sum(reach.run.attempt > 1 and reach.at_s is not None for reach in terms.reaches.get(arm.level, ()))
    return [f"{waited} runs were started more than once: their times to the target hold the waiting"] if waited else []
