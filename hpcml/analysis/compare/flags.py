"""The flags of a row and of a cell: what weakens their numbers (`hpcml.analysis.flags` has the sentences)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hpcml.analysis import stats
from hpcml.analysis.compare.cell_arms import CellArms, Matched, Ratios
from hpcml.analysis.compare.fairness import Differences, order_flags
from hpcml.analysis.compare.losses import count_lost
from hpcml.analysis.compare.measures import cost_flags, rate_of
from hpcml.analysis.compare.result import Verdict
from hpcml.analysis.flags import Flag, FlagCode, FlagLevel, flag
from hpcml.analysis.frame import Arm, is_own_doing
from hpcml.analysis.nodes import node_flags
from hpcml.model.divergence import diverged, with_nonfinite_loss
from hpcml.model.metric_sources import READ_AFTERWARDS
from hpcml.model.own_program import CHANGED_OUTSIDE
from hpcml.model.precision import (
    EVIDENCE,
    OBSERVED_TO,
    STEPS,
    PrecisionName,
    contradicts,
    is_proven,
)
from hpcml.model.records import RunRecord
from hpcml.spelling import nearest
from hpcml_client.observed import PROBED

_BOUNDS = {0.0, 1.0, 100.0}  # of accuracies and errors: what seeds that differ reach all the same
_SEEN_TO = 0.5  # of the steps: windows come at twice the distance, so that what was watched on was seen to here
_NEAREST = 3  # names of metrics, in a line that people read


def cell_flags(cell: CellArms, differences: Differences, reference: str) -> Iterator[Flag]:
    """Yield what weakens all rows of *cell*, the most important first."""
    for confounder in differences.forbidding:
        yield flag(FlagCode.CONFOUNDED, what=f"{confounder.kind} {confounder}")
    if cell.reference is None or not cell.reference.ok:
        yield flag(FlagCode.NO_REFERENCE, reference=reference)
    elif not cell.reference.has_speed:
        what = f"the reference {reference} is {cell.reference.why_no_speed}: no speed-ups"
        yield flag(FlagCode.SPEED, what=what)
    if cell.margin.source == "command line":
        yield flag(FlagCode.MARGIN_AFTERWARDS)
    if len(cell.arms) > 1:
        yield from order_flags(cell.arms)
    timed = [arm for arm in cell.arms if arm.has_speed]
    if cell.by_mean and len(timed) > 1:
        yield flag(FlagCode.SPEED, "doubt", what="speeds are of mean step times: their medians tell others")
    if cell.window is None and cell.steady:
        what = "these runs have too few late steps in common: the speed of each is of its own last half"
        yield flag(FlagCode.SPEED, what=what)
    submissions = max((len({run.submission for run in arm.ok} - {None}) for arm in cell.arms), default=0)
    if submissions > 1:
        yield flag(FlagCode.SUBMISSIONS, unit=cell.unit, n=submissions)


def row_flags(
    arm: Arm, reference: Arm | None, matched: Matched | None, verdict: Verdict, cell: CellArms, ratios: Ratios
) -> tuple[Flag, ...]:
    """Return all flags of the row of *arm*; *verdict* is that of the row alone."""
    others = None if reference is arm else reference
    flags = [*_loss_flags(arm, others, verdict, cell), *_seed_flags(arm, others, matched, cell)]
    flags += [*_value_flags(arm, others, matched, cell), *_precision_flags(arm, others, cell)]
    if arm.has_speed:
        flags += [*_time_flags(arm, cell), *cost_flags(arm)]
        found = {"speed-up": ratios.speed_up, "energy ratio": ratios.energy, "time to the target": ratios.saved_time}
        flags += node_flags(found)
    elif arm.ok and (cell.by_precision or cell.steady):
        flags.append(flag(FlagCode.SPEED, what=f"{arm.why_no_speed}: no speed"))
    return tuple(flags)


def _loss_flags(arm: Arm, reference: Arm | None, verdict: Verdict, cell: CellArms) -> Iterator[Flag]:
    """Yield the flags about runs that were lost, diverged, or do not count."""
    (lost, n), (other_lost, other_n) = count_lost(arm), (0, 0) if reference is None else count_lost(reference)
    if reference is not None and (lost or other_lost):
        yield flag(
            FlagCode.LOST,
            "blocks" if verdict in ("unstable", "unstable reference") else "doubt",
            lost=lost,
            n=n,
            other_lost=other_lost,
            other_n=other_n,
            unit=cell.unit,
            reference=reference.level,
        )
    ended, broken = diverged(arm.ok), with_nonfinite_loss(arm.ok)
    if ended:
        names = _listed(sorted({name for names in ended.values() for name in names}))
        yield flag(FlagCode.DIVERGED, n=len(ended), of=len(arm.ok), metrics=names, when="at the last")
    if broken > len(ended):
        yield flag(FlagCode.DIVERGED, "note", n=broken, of=len(arm.ok), metrics="a loss", when="at some step")
    if left_out := list(_not_counted(arm, cell.yardstick.metric)):
        yield flag(FlagCode.INCOMPLETE, what="; ".join(left_out))


def _not_counted(arm: Arm, metric: str) -> Iterator[str]:
    """Yield how many runs have no part in the statistics, and were not lost to their own doing, by the reason."""
    if elsewhere := sum(not is_own_doing(run) for run in arm.failed):
        yield f"{elsewhere} ended by a machine, a scheduler or a person"
    if arm.mistaken:
        yield f"{len(arm.mistaken)} of submissions that failed whole, in the same words, before any metric"
    if silent := sum(not run.metrics for run in arm.without_metric):
        yield f"{silent} of which no metric was read"
    if named := [run for run in arm.without_metric if run.metrics]:
        names = sorted({name for run in named for name in run.metrics})
        near = nearest(metric, names) or names[:_NEAREST]
        yield f"{len(named)} that recorded no {metric}, but {', '.join(near)}: is it called so there?"
    if arm.incomplete:
        yield f"{len(arm.incomplete)} of which records may be missing ({arm.incomplete[0].incomplete})"
    if arm.unfinished:
        yield f"{len(arm.unfinished)} that did not end yet"


def _seed_flags(arm: Arm, reference: Arm | None, matched: Matched | None, cell: CellArms) -> Iterator[Flag]:
    """Yield the flags about the number of seeds, their pairs and their spread."""
    if not arm.ok:
        return
    n = len(arm.values) if matched is None else matched.n
    if n < stats.LEAST_SEEDS:
        yield flag(FlagCode.FEW_SEEDS, "blocks", n=n, unit=cell.unit, enough="too few for a verdict")
    elif n < stats.ENOUGH_SEEDS:
        yield flag(FlagCode.FEW_SEEDS, n=n, unit=cell.unit, enough="indicative only")
    if extra := len(arm.ok) - len(arm.values):
        yield flag(FlagCode.UNPAIRED, how=f"{extra} more runs of the same seeds: averaged within the seed first")
    if matched is None or reference is None:
        return
    if matched.left_out:
        how = f"paired by {matched.n} shared seeds; without {_listed([str(seed) for seed in matched.left_out])}"
        yield flag(FlagCode.UNPAIRED, how=how)
    elif cell.seed is not None:
        how = f"runs of one seed are the units, since {cell.yardstick.metric} is a time or a rate: unpaired (Welch)"
        yield flag(FlagCode.UNPAIRED, how=how)
    elif not matched.pairs and arm.values.keys() != reference.values.keys():
        yield flag(FlagCode.UNPAIRED, how=f"seeds are not those of {reference.level}: unpaired (Welch)")
    if matched.contrast.has_no_spread and not matched.is_identical:
        advice = "does the program take its seed, and is the metric reported with all its digits?"
        yield flag(FlagCode.NO_SPREAD, advice=advice)


def _value_flags(arm: Arm, reference: Arm | None, matched: Matched | None, cell: CellArms) -> Iterator[Flag]:
    """Yield the flags about the values themselves: alike where they should differ, read late."""
    metric, facts = cell.yardstick.metric, [run.facts for run in arm.ok]
    if matched is not None and reference is not None and matched.is_identical:
        question = "did the two arms really compute different things?"
        yield flag(FlagCode.SAME_VALUES, which=f"all values are those of {reference.level}", question=question)
    values = set(arm.values.values())
    if len(arm.values) > 1 and len(values) == 1 and not values <= _BOUNDS:
        question = "does the program take its seed?" if cell.seed is None else "was it measured anew?"
        which = f"the same value in all {len(arm.values)} {cell.unit}"
        yield flag(FlagCode.SAME_VALUES, which=which, question=question)
    if changed := [fact[CHANGED_OUTSIDE] for fact in facts if fact.get(CHANGED_OUTSIDE)]:
        what = f"{changed[0]} changed while {len(changed)} of {len(facts)} runs went on, which share it"
        yield flag(FlagCode.RECORDS, what=what)
    if late := sum(f"{READ_AFTERWARDS}{metric}" in fact for fact in facts):
        what = f"{metric} of {late} of {len(facts)} runs was read afterwards (hpcml read): when it came is not known"
        yield flag(FlagCode.RECORDS, "note", what=what)


def _precision_flags(arm: Arm, reference: Arm | None, cell: CellArms) -> Iterator[Flag]:
    """Yield the flags about what the runs were seen to compute in; of a program's own choice only where it is asked."""
    of = len(arm.ok)
    level: FlagLevel = "blocks" if cell.by_precision else "note"
    asked = [run for run in arm.ok if run.precision != PrecisionName.own.name or cell.by_precision]
    kinds = Counter((run.precision, run.precision_effective) for run in asked)
    for (requested, measured), n in sorted(kinds.items(), key=str):
        if measured is None:
            yield flag(FlagCode.UNPROVEN, level, whose=_whose(n, of), what="was not measured")
        elif not is_proven(measured):
            yield flag(FlagCode.UNPROVEN, level, whose=_whose(n, of), what=f"is {measured}")
        elif contradicts(requested, measured):
            words = f"{requested} asked for in {n} of {of} runs"
            yield flag(FlagCode.OTHER_PRECISION, level, asked=words, measured=measured)
    if len(arm.effective) > 1:
        what = f"differs within the arm: {', '.join(arm.effective)}"
        yield flag(FlagCode.UNPROVEN, "doubt", whose="", what=what)
    if probed := sum(run.facts.get(EVIDENCE) == PROBED for run in asked):
        what = "is that of a probe: the program's own products were not observed"
        yield flag(FlagCode.UNPROVEN, "note", whose=_whose(probed, of), what=what)
    yield from _reach_flags(asked)
    is_same = reference is not None and bool(arm.ok) and arm.effective == reference.effective
    if cell.by_precision and is_same and all(is_proven(measured) for measured in arm.effective):
        words = "no precisions are compared here: both arms were"
        yield flag(FlagCode.OTHER_PRECISION, "doubt", asked=words, measured=", ".join(arm.effective))


def _reach_flags(runs: Sequence[RunRecord]) -> Iterator[Flag]:
    """Yield the flag where programs went on for longer than they were observed: what came later, nobody saw."""
    reaches = [(run.facts.get(OBSERVED_TO), run.facts.get(STEPS)) for run in runs]
    short = [(to, of) for to, of in reaches if isinstance(to, int) and isinstance(of, int) and to < _SEEN_TO * of]
    if short:
        to, of = min(short, key=lambda reach: reach[0] / reach[1])
        what = f"was observed to step {to} of {of}, and not after it"
        yield flag(FlagCode.UNPROVEN, "note", whose=_whose(len(short), len(runs)), what=what)


def _time_flags(arm: Arm, cell: CellArms) -> Iterator[Flag]:
    """Yield the flags about seeds, or runs, without a steady step time, and about times that hold a queue's."""
    metric = cell.yardstick.metric
    timed = [run for run in arm.ok if run.uid in cell.steady or rate_of(run, metric) is not None]
    without = set(arm.values) - {run.seed for run in timed}
    if without and (cell.by_precision or cell.curves.step_s):
        reported = {run.seed for run in arm.ok if cell.curves.step_s.get(run.uid)}
        why = "step_time_s was not reported" if without - reported else "too few steps of it are late enough"
        what = f"no steady step time of {len(without)} of {len(arm.values)} {cell.unit}: {why}"
        yield flag(FlagCode.SPEED, what=what)
    if waited := sum(reach.run.attempt > 0 and reach.at_s is not None for reach in cell.reaches.get(arm.level, ())):
        what = f"times to the target of {waited} runs that were started again hold the waiting"
        yield flag(FlagCode.RECORDS, what=what)


def _whose(n: int, of: int) -> str:
    return "" if n == of else f"of {n} of {of} runs "


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NEAREST
    return ", ".join(names[:_NEAREST]) + (f" and {more} more" if more > 0 else "")
