"""The reasons to doubt a row of a comparison, one line each: lost runs, few seeds, an unproven precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hpcml.analysis import statistics
from hpcml.analysis.compare.arms import Arm, replicates_flag, unmoved
from hpcml.analysis.compare.cells import Terms
from hpcml.analysis.compare.contrasts import Matchup
from hpcml.analysis.compare.costs import cost_flags, energy_ratio
from hpcml.analysis.compare.losses import have_completed_since, lost_runs, lost_words, unread_runs
from hpcml.analysis.compare.nodes import PlacedContrast, PlacedRatio, node_flags
from hpcml.analysis.compare.speed import SpeedUps, speed_flags
from hpcml.analysis.compare.to_target import target_difference
from hpcml.analysis.steady import MIN_STEPS
from hpcml.model.comparison import NOT_PROVEN, OTHER_UNITS
from hpcml.model.divergence import diverged, with_nonfinite_loss
from hpcml.model.metric_goal import is_duration_or_rate, is_share
from hpcml.model.metric_sources import MIXED_TRAININGS, READ_AFTERWARDS
from hpcml.model.own_program import CHANGED_OUTSIDE
from hpcml.model.precision import (
    EVIDENCE,
    OBSERVED,
    OBSERVED_TO,
    PROBED,
    STEPS,
    PrecisionName,
    contradicts,
    is_proven,
)
from hpcml.spelling import nearest
from hpcml.units import one_or_many

_BOUNDS = {0.0, 1.0, 100.0}  # of accuracies and errors: what seeds that differ reach all the same
_SEEN_TO = 0.5  # of the steps: windows come at twice the distance, so that what was watched on was seen to here
_NEAREST = 3  # names of metrics, in a line that people read
_PERCENT, _MILLI, _ALIKE = 100, 1000, 1.15  # the mean of one arm is that of the other, but for 15 % and the unit
_UNEQUAL = 3.0  # times: from here on t's 5 % are 12 to 22 % (docs/statistics.md)


def row_flags(arm: Arm, terms: Terms, found: Matchup | None, ups: SpeedUps | None) -> tuple[str, ...]:
    """Return all flags of the row of *arm*, each one line for people; *ups* is None where it has no speed."""
    reference = terms.reference
    tests = [] if found is None or reference is None else _test_flags(found, arm, reference, terms)
    precision = _precision_flags(arm, terms)
    flags = [*_computing_flags(arm, found, terms), *_doubts(arm, terms)]
    flags += [*precision, *tests] if terms.by_precision else [*tests, *precision]
    flags += _time_flags(arm, terms) if ups is not None and (terms.by_precision or terms.is_timed) else []
    if ups is not None:
        flags += [
            *speed_flags(arm, terms, ups),
            *node_flags(_over_nodes(arm, terms, ups)),
            *cost_flags(arm),
            *_requeue_flags(arm, terms),
        ]
    return tuple(flags)


def effective(arm: Arm) -> tuple[str, ...]:
    """Return the precisions that runs of *arm* were measured to compute in, sorted; `NOT_PROVEN` where not measured."""
    return tuple(sorted({run.precision_effective or NOT_PROVEN for run in arm.ok}))


def _computing_flags(arm: Arm, found: Matchup | None, terms: Terms) -> Iterator[str]:
    """Yield the flags about runs that diverged, and values that are equal where other things were to be computed."""
    if ended := diverged(arm.ok):
        yield f"diverged: {len(ended)} of {len(arm.ok)} runs ended with {_names(ended)} nan or infinite"
    if still := unmoved(arm.ok):
        yield f"{_names(still)} did not move in {len(still)} of {len(arm.ok)} runs: was anything learnt?"
    if (broken := with_nonfinite_loss(arm.ok)) > len(ended):
        yield f"{broken} of {len(arm.ok)} runs had non-finite loss"
    if mixed := [(facts[MIXED_TRAININGS], n) for facts, n in arm.facts if facts.get(MIXED_TRAININGS)]:
        n_mixed = sum(n for _, n in mixed)
        yield f"{n_mixed} of {len(arm.ok)} runs: {mixed[0][0]} has values of several trainings, the last one's count"
    if changed := [(facts[CHANGED_OUTSIDE], n) for facts, n in arm.facts if facts.get(CHANGED_OUTSIDE)]:
        yield (
            f"{_listed(changed[0][0])} changed while {sum(n for _, n in changed)} of {len(arm.ok)} runs went on, which "
            "share it: one may have read what another wrote"
        )
    if terms.reference is not None and terms.reference is not arm:
        yield from _other_units(arm, terms.reference, terms)
    if found is not None and found.is_identical:
        yield f"all values are the reference's, bit for bit{_why_alike(arm, terms.reference)}"
    values = set(arm.values.values())
    if len(arm.values) > 1 and len(values) == 1 and not values <= _BOUNDS:
        alike = f"the same value in all {len(arm.values)}"
        if terms.seed is None:
            yield f"{alike} seeds, bit for bit: does the program take its seed?"
        else:
            yield f"{alike} runs, bit for bit: was it measured anew?"


def _why_alike(arm: Arm, reference: Arm | None) -> str:
    arms = [arm] if reference is None else [reference, arm]
    seen = [effective(each) for each in arms if all(facts.get(EVIDENCE) == OBSERVED for facts, _ in each.facts)]
    if len(seen) == 2 and seen[0] != seen[1]:
        words = " and in ".join(", ".join(each) for each in seen)
        return f", and the programs were seen to compute in {words}: does the metric tell so little apart?"
    return ": did the two arms really compute different things?"


def _other_units(arm: Arm, reference: Arm, terms: Terms) -> Iterator[str]:
    """Yield the flag about two arms that seem to tell of like values in other units."""
    if not (arm.values and reference.values):
        return
    smaller, larger = sorted(([*each.values.values()] for each in (arm, reference)), key=max)
    if min(smaller) <= 0:
        return
    fold = sum(larger) / len(larger) / (sum(smaller) / len(smaller))
    are_shares = is_share(terms.metric) and max(smaller) <= 1 < min(larger) and max(larger) <= _PERCENT
    if are_shares and _PERCENT / _ALIKE <= fold <= _PERCENT * _ALIKE:
        yield f"a hundred times {reference.level}, or a hundredth{OTHER_UNITS}per cent, and the other a share?"
    if is_duration_or_rate(terms.metric) and _MILLI / _ALIKE <= fold <= _MILLI * _ALIKE:
        yield f"a thousand times {reference.level}, or a thousandth{OTHER_UNITS}another unit, as ms for s?"


def _names(of_runs: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(sorted({name for names in of_runs.values() for name in names})[:_NEAREST])


def _listed(places: str) -> str:
    """Return the first of *places*, which stand behind commas, and how many there are besides."""
    first, *others = places.split(", ")
    return f"{first} and {len(others)} more" if others else first


def _doubts(arm: Arm, terms: Terms) -> list[str]:
    """Return the flags about how many runs there are, and which are missing."""
    flags = _other_names(arm, terms.metric)
    unread = len(unread_runs(arm))
    if unread:
        whole = len(arm.ok) + len(arm.without_value)
        flags.append(f"no metric of {unread} of {whole} runs was read: they had other workload.metrics or metrics_from")
    if mistaken := sum(run.uid in arm.never_trained for run in arm.failed):
        flags.append(
            f"left out: {mistaken} {one_or_many(mistaken, 'runs')} of submissions that failed whole, in the same words "
            "and before any metric"
        )
    if not arm.ok:
        return [*flags, "no run counts", *([_missing(arm)] if arm.incomplete else [])]
    reference = terms.reference
    if reference is not None and reference is not arm and (lost_runs(arm) or lost_runs(reference)):
        left = f"; the verdict rests on {len(arm.ok)} survivors" if lost_runs(arm) else ""
        mended = "; each completed when it ran again: if a mistake was mended, --where 'state!=FAILED' leaves them out"
        flags.append(f"{lost_words(arm, reference)}{left}{mended if have_completed_since(arm) else ''}")
    arms = [arm] if reference is None or not reference.ok else [arm, reference]
    n = min(len(one.values) for one in arms)
    if n < statistics.INDICATIVE_BELOW:
        flags.append(f"n={n}: indicative only")
    if extra := len(arm.ok) - len(arm.values):
        flags.append(replicates_flag(extra))
    if lost := len(arm.without_value) - unread - mistaken:
        flags.append(f"{lost} of {len(arm.ok) + lost} ended runs do not count: the rest may be a lucky selection")
    flags += _shape_flags(arm, terms)
    if late := sum(f"{READ_AFTERWARDS}{terms.metric}" in run.facts for run in arm.ok):
        flags.append(
            f"{terms.metric} of {late} of {len(arm.ok)} runs was read afterwards from what they printed or wrote "
            "(hpcml read): when each value came is not known"
        )
    if arm.incomplete:
        flags.append(_missing(arm))
    return flags


def _other_names(arm: Arm, metric: str) -> list[str]:
    """Return the flag about runs that recorded other metrics and not the compared one, with the nearest names."""
    names = sorted({name for run in arm.without_metric for name in run.metrics})
    near = nearest(metric, names) or names[:_NEAREST]
    n = len(arm.without_metric)
    return (
        [f"{n} run{'s'[: n != 1]} recorded no {metric}, but {', '.join(near)}: is it called so there?"] if near else []
    )


def _missing(arm: Arm) -> str:
    n, why = len(arm.incomplete), arm.incomplete[0].incomplete
    return (
        f"records may be missing of {n} run{'s' if n > 1 else ''}, which {'do' if n > 1 else 'does'} not count: {why}"
    )


def _precision_flags(arm: Arm, terms: Terms) -> list[str]:
    observed = {id(facts) for facts, _ in arm.facts if facts.get(EVIDENCE) == OBSERVED}
    proofs = Counter((run.precision, run.precision_effective, id(run.facts) in observed) for run in arm.ok)
    flags = []
    for (requested, measured, is_observed), n in sorted(proofs.items(), key=str):
        runs = f"{n} of {len(arm.ok)} runs"
        if measured is None and requested == PrecisionName.own.name:
            asked = terms.by_precision
            flags += [f"precision left to the program, and not measured ({runs})"] if asked else []
        elif measured is None:
            flags.append(f"requested {requested}, not proven by a measurement ({runs})")
        elif not is_proven(measured):
            flags.append(f"requested {requested}, but what the program computed in is {measured} ({runs})")
        elif contradicts(requested, measured):
            flags.append(f"requested {requested}, {'observed' if is_observed else 'measured'} {measured} ({runs})")
    if probed_only := sum(n for facts, n in arm.facts if facts.get(EVIDENCE) == PROBED):
        flags.append(f"probed, and the program's own products not observed ({probed_only} of {len(arm.ok)} runs)")
    flags += _reach_flags(arm)
    measured_ones = effective(arm)
    if len(measured_ones) > 1:
        flags.append(f"mixed effective precisions: {', '.join(measured_ones)}")
    if arm.ok and not arm.has_speed:
        flags.append(f"{arm.why_no_speed}: no speed")
    others = terms.reference
    is_judged = terms.by_precision and others is not None and others is not arm and bool(arm.ok)
    if is_judged and others is not None and measured_ones == effective(others) != (NOT_PROVEN,):
        flags.append(f"measured {', '.join(measured_ones)}, as the reference was: this row compares no precisions")
    return flags


def _reach_flags(arm: Arm) -> list[str]:
    """Return the flag where programs went on for longer than they were observed: what came later, nobody saw."""
    reaches = [(facts.get(OBSERVED_TO), facts.get(STEPS), n) for facts, n in arm.facts]
    short = [(to, of, n) for to, of, n in reaches if isinstance(to, int) and isinstance(of, int) and to < _SEEN_TO * of]
    if not short:
        return []
    to, of, _ = min(short, key=lambda one: one[0] / one[1])
    n_short = sum(n for _, _, n in short)
    return [f"observed to step {to} of {of}, and not after it ({n_short} of {len(arm.ok)} runs)"]


def _test_flags(found: Matchup, arm: Arm, reference: Arm, terms: Terms) -> list[str]:
    """Return the flags about the test of the difference: its pairs, its spread, its grid."""
    flags = []
    seeds = ", ".join(map(str, found.left_out))
    if found.pairing == "shared":
        flags.append(f"paired by the {found.n} shared seeds; left out, since the other arm lacks them: seed {seeds}")
    elif terms.seed is not None:
        flags.append(f"runs of one seed are the units, since {terms.metric} is a time or a rate: unpaired (Welch)")
    elif found.pairing == "none" and set(arm.values) != set(reference.values):
        flags.append("seeds do not match the reference's one to one: unpaired (Welch)")
    if found.n < statistics.LEAST_SEEDS:
        flags.append(f"n={found.n}: no verdict below {statistics.LEAST_SEEDS} {terms.unit}")
    if not found.is_identical and found.contrast.has_no_spread:
        flags.append("no spread in the difference: nothing says how certain it is, hence no verdict")
    if found.is_floored:
        flags.append(f"the seen spread is below one step, {terms.resolution.value:.3g}: one step was taken")
    return flags


def _shape_flags(arm: Arm, terms: Terms) -> list[str]:
    """Return the flag where the rates of a t test are not known to hold: a skewed metric, or arms of unequal spread."""
    reference = terms.reference
    if terms.scale.name != "linear" or reference is None or reference is arm or not terms.knows_goal:
        return []
    others = [*arm.values.values()], [*reference.values.values()]
    spreads = [statistics.sd(values) or 0.0 for values in others]
    n = min(map(len, others))
    if n >= statistics.INDICATIVE_BELOW and min(spreads) > 0 and max(spreads) > _UNEQUAL * min(spreads):
        return [f"indicative: one arm's sd is {max(spreads) / min(spreads):.1f} times the other's"]
    for values in others:
        rooms = [1 - value if terms.higher_is_better else value for value in values]
        inside = all(0 < value <= 1 for value in values) or not terms.higher_is_better
        if len(rooms) >= statistics.LEAST_SEEDS and inside and min(rooms) > 0 and max(rooms) > _UNEQUAL * min(rooms):
            scale = "logit" if terms.higher_is_better else "log"
            told = (
                f"indicative: values lie {max(rooms) / min(rooms):.1f} times as far from their bound as others, so t's "
                f"5 % may be more; next time set objective.scale={scale} beforehand"
            )
            return [told]
    return []


def _time_flags(arm: Arm, terms: Terms) -> list[str]:
    """Return the flags about seeds, or runs, without a steady step time, by the reason."""
    steady = {run.seed for run, of in zip(arm.ok, arm.states(terms.steady), strict=True) if of is not None}
    reported = steady | ({run.seed for run in arm.ok if run.uid in terms.reporting} if terms.reporting else set())
    n, n_silent, n_short = len(arm.values), len(set(arm.values) - reported), len(reported - steady)
    flags = []
    if n_silent:
        flags.append(f"step_time_s was not reported{f' for {n_silent} of {n} {terms.unit}' if n_silent < n else ''}")
    if n_short:
        why = f"fewer than {MIN_STEPS} steps in the window have a time above 0"
        flags.append(f"no steady step time for {n_short} of {n} {terms.unit}: {why}")
    return flags


def _over_nodes(arm: Arm, terms: Terms, ups: SpeedUps) -> dict[str, PlacedRatio | PlacedContrast | None]:
    """Return what is compared of *arm* that nodes have a part in, by its name."""
    mine, others = terms.reaches.get(arm.level, ()), None
    if terms.reference is not None and terms.reference is not arm:
        others = terms.reaches.get(terms.reference.level)
    return {
        "speed-up": ups.found,
        "energy ratio": energy_ratio(arm, terms.reference),
        "times to the target": target_difference(mine, others, terms.budget_s) if terms.race is not None else None,
    }


def _requeue_flags(arm: Arm, terms: Terms) -> list[str]:
    """Return the flag for runs that were started again: their times to the target include the queue."""
    waited = sum(reach.run.attempt > 0 and reach.at_s is not None for reach in terms.reaches.get(arm.level, ()))
    if waited == 1:
        return ["1 run was started more than once: its time to the target holds the waiting"]
    return [f"{waited} runs were started more than once: their times to the target hold the waiting"] if waited else []
