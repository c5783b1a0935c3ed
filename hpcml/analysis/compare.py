"""Runs that differ in one setting, compared: refused where facts differ too, never more certain than they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from hpcml.analysis.arms import sort_runs
from hpcml.analysis.cells import Group, find_cells
from hpcml.analysis.factor import Factor, find_factor, find_levels, find_reference
from hpcml.analysis.fairness import find_allowed, find_differences
from hpcml.analysis.judging import STEP, Found, Question, judge
from hpcml.analysis.objective import find_yardstick
from hpcml.analysis.terms import Curves
from hpcml.answers import Timeline
from hpcml.comparison import Comparison
from hpcml.errors import ComparisonError
from hpcml.records import RunRecord
from hpcml.states import State

SCORES = ("mlperf",)
_LISTED = 10  # cells, in an error


def compare(  # noqa: PLR0913 - what a comparison can be asked
    runs: Sequence[RunRecord],
    curves: Curves,
    *,
    by: str = "precision",
    reference: str | None = None,
    metric: str | None = None,
    goal: str | None = None,
    margin: float | None = None,
    target: float | None = None,
    score: str | None = None,
    allow: Collection[str] = (),
    allow_mixed: bool = False,
    more_curves: Mapping[str, Curves] | None = None,
    timelines: Mapping[str, Sequence[Timeline]] | None = None,
) -> Comparison:
    """Return what the setting *by* did, cell by cell; the order of *runs* does not matter.

    *curves* holds the ``step_time_s`` curves by uid, *more_curves* those of other metrics: the compared one for the way
    to the target, ``data_time_s``, ``communication_time_s``. Runs that differ in another setting are in other cells,
    unless it is one that *allow* names; *allow_mixed* allows all. Raises `ComparisonError` where runs of a cell that
    count differ in a binding fact, where there is nothing to compare, or where no run can count.
    """
    runs = [run for _, run in sorted({run.uid: run for run in runs}.items())]
    if not runs:
        raise ComparisonError("no runs to compare: none matches the selection")
    if score is not None and score not in SCORES:
        raise ComparisonError(f"score={score}: choose {', '.join(SCORES)}")
    factor = find_factor(by, runs)
    levels = find_levels(factor, runs)
    reference = find_reference(factor, levels, reference)
    if not any(run.state is State.COMPLETED for run in runs):
        states = ", ".join(f"{n} {state}" for state, n in sorted(Counter(run.state for run in runs).items()))
        raise ComparisonError(f"none of the {len(runs)} runs is COMPLETED ({states}): nothing to compare yet")
    yardstick = find_yardstick(runs, metric, goal)
    allowed = find_allowed(allow, runs)
    found = [
        _look_at(factor, group, yardstick.metric)
        for group in find_cells(factor, runs, None if allow_mixed else allowed)
    ]
    _require_two_levels_somewhere(factor, found)
    if not allow_mixed:
        _require_fairness(factor, found, allowed)
    question = Question(
        factor=factor,
        reference=reference,
        yardstick=yardstick,
        margin=margin,
        target=target,
        is_scored=score is not None,
        curves={**(more_curves or {}), STEP: curves},
        timelines=timelines or {},
    )
    cells, n_tests = judge(found, question)
    return Comparison(
        by=factor.name,
        metric=yardstick.metric,
        goal=yardstick.goal,
        goal_source=yardstick.goal_source,
        n_runs=len(runs),
        n_comparisons=sum(row.difference is not None for cell in cells for row in cell.rows),
        cells=tuple(cells),
        n_tests=n_tests,
    )


def _look_at(factor: Factor, group: Group, metric: str) -> Found:
    by_level: dict[str, list[RunRecord]] = {}
    for run in group.runs:
        by_level.setdefault(factor.level(run), []).append(run)
    arms = {level: sort_runs(level, by_level[level], metric) for level in sorted(by_level, key=factor.sort_key)}
    counted = [run for arm in arms.values() for run in arm.ok]
    return Found(group=group, arms=arms, differences=find_differences(factor, counted, group.mixed))


def _require_two_levels_somewhere(factor: Factor, found: Sequence[Found]) -> None:
    if any(len(each.arms) > 1 for each in found):
        return
    lines = [f"no two runs differ in {factor.name} alone:"]
    lines += [f"  {', '.join(each.arms)}: {each.group.name}" for each in found[:_LISTED]]
    if more := len(found) - _LISTED:
        lines += [f"  and {more} more such cells"] if more > 0 else []
    settings = sorted({key for each in found for key, _ in each.group.where if "." in key})
    mixing = f", or compare anyway with --allow {','.join(settings)}" if settings else ""
    lines.append(f"launch the missing arms, or compare by what differs above instead of {factor.name}{mixing}")
    raise ComparisonError("\n".join(lines))


def _require_fairness(factor: Factor, found: Sequence[Found], allowed: Collection[str]) -> None:
    unfair = {
        each.group.name: [d for d in each.differences.forbidding if d.key not in allowed]
        for each in found
        if len(each.arms) > 1
    }
    unfair = {name: differences for name, differences in unfair.items() if differences}
    if not unfair:
        return
    lines = [f"these runs differ in more than {factor.name}:"]
    for name, differences in unfair.items():
        lines += [f"  {name}", *(f"    {each}" for each in differences)]
    keys = sorted({each.key for differences in unfair.values() for each in differences})
    lines.append(
        f"select fewer with --where KEY=VALUE; --allow {','.join(keys)} compares anyway and lists them as confounders "
        "(--allow-mixed: whatever differs)"
    )
    raise ComparisonError("\n".join(lines))
