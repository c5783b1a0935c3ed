"""`hpcml compare`: runs that differ in one setting, as a table of cells and rows.

A cell holds runs that are alike in all settings but the compared one; each value of that setting (a level, e.g. bf16)
is a row, judged against the reference level. `compare` sorts runs into cells, refuses where they differ in facts that
may change the result, judges each row alone, and then adjusts the verdicts for the number of rows (Holm).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hpcml.analysis.compare.cell_arms import CellArms
from hpcml.analysis.compare.cells import CellRuns, find_cells, with_repeats_as_units, with_seeds_from
from hpcml.analysis.compare.factor import Factor, find_factor, find_levels, find_reference
from hpcml.analysis.compare.fairness import Differences, find_allowed, find_differences
from hpcml.analysis.compare.flags import cell_flags
from hpcml.analysis.compare.objective import Yardstick, find_margin, find_scale, find_target, find_yardstick
from hpcml.analysis.compare.result import Cell, Comparison, ComparisonRequest, Excluded, Percent, Row
from hpcml.analysis.compare.rows import adjusted, draft_row
from hpcml.analysis.compare.to_target import Race, find_budget_s, find_reaches
from hpcml.analysis.flags import Flag
from hpcml.analysis.frame import Arm, at_common_step, excluded, mistaken_runs, one_device, sort_runs
from hpcml.analysis.steady import Curves, StepCurves, common_window, means_differ, steady_states
from hpcml.errors import ComparisonError
from hpcml.model.own_program import says_nothing
from hpcml.model.query_results import Timeline
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.model.told_apart import show

STEP, DATA, COMMUNICATION = "step_time_s", "data_time_s", "communication_time_s"
_LISTED = 10  # cells, in an error
_PLAIN = ComparisonRequest()


def compare(
    runs: Sequence[RunRecord],
    curves: Curves,
    request: ComparisonRequest = _PLAIN,
    *,
    more_curves: Mapping[str, Curves] | None = None,
    timelines: Mapping[str, Sequence[Timeline]] | None = None,
) -> Comparison:
    """Return what the setting that *request* names did, cell by cell; the order of *runs* does not matter.

    *curves* holds the ``step_time_s`` curves by uid; *more_curves* those of other metrics, by metric and uid: the
    compared one for the time to the target and for runs that their walltime ended, ``data_time_s``,
    ``communication_time_s``. *timelines* are the sampled energies of GPUs by uid, for the energy to the target. Without
    the latter two, what depends on them is None in the result. Where no run is COMPLETED, those that their walltime
    ended are compared at the last step that all of a cell reached.

    Runs that differ in another setting are in other cells, unless the request allows that setting to differ. Raises
    `ComparisonError` where runs that count differ, within a cell, in a fact that may change the result (a driver, a GPU
    model), where there is nothing to compare, or where no run can count.
    """
    runs = [run for _, run in sorted({run.uid: run for run in runs}.items())]
    n_runs = len(runs)
    runs, factor, yardstick, left_out = _asked_about(runs, request)
    allowed = find_allowed(request.allow, runs)
    reference = find_reference(factor, find_levels(factor, runs), request.reference)
    by_metric = {**(more_curves or {}), STEP: curves}
    question = Question(
        factor=factor,
        reference=reference,
        yardstick=yardstick,
        request=request,
        mistaken=mistaken_runs(factor.levels(runs), runs),
        is_early=not any(run.state is State.COMPLETED for run in runs),
        steps=StepCurves(
            step_s=curves, waiting_s=by_metric.get(DATA, {}), communication_s=by_metric.get(COMMUNICATION, {})
        ),
        metric=by_metric.get(yardstick.metric, {}),
        timelines=timelines or {},
    )
    groups = find_cells(factor, runs, None if request.allow_mixed else allowed)
    _require_two_levels_somewhere(factor, groups)
    sorted_cells = [_sort_cell(group, question) for group in groups]
    sorted_cells.sort(key=lambda each: not each.counted)  # stable: what failed before the command was right comes last
    if not request.allow_mixed:
        _require_fairness(factor, sorted_cells, allowed)
    cells, n_tests = _judge(sorted_cells, question)
    return Comparison(
        by=factor.name,
        metric=yardstick.metric,
        goal=yardstick.goal,
        goal_source=yardstick.goal_source,
        n_runs=n_runs - len(left_out),
        n_comparisons=sum(row.difference is not None for cell in cells for row in cell.rows),
        cells=tuple(cells),
        n_tests=n_tests,
        seed=request.seed,
        excluded=left_out,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is compared in all cells of one comparison: the request with everything it leaves open decided."""

    factor: Factor
    reference: str
    yardstick: Yardstick
    request: ComparisonRequest
    mistaken: frozenset[str]  # uids of submissions that failed whole
    is_early: bool  # no run is complete: those that their walltime ended count
    steps: StepCurves
    metric: Curves  # of the compared metric
    timelines: Mapping[str, Sequence[Timeline]]  # by uid


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedCell:
    """The runs of one cell, sorted by level, and in what else they differ."""

    group: CellRuns
    arms: Mapping[str, Arm]  # by level, in the factor's order
    counted: Sequence[RunRecord]  # that enter any statistics: completed, with a finite value of the metric
    differences: Differences
    flags: Sequence[Flag]


def _asked_about(
    runs: Sequence[RunRecord], request: ComparisonRequest
) -> tuple[Sequence[RunRecord], Factor, Yardstick, tuple[Excluded, ...]]:
    """Return the runs that the question is about, the factor, the metric, and the runs that are beside it."""
    if not runs:
        raise ComparisonError("no runs to compare: none matches the selection")
    if request.seed is not None:
        runs = with_seeds_from(request.seed, runs)
    factor = find_factor(request.factor, runs)
    find_levels(factor, runs)
    if not any(run.state in (State.COMPLETED, State.TIMEOUT) for run in runs):
        states = ", ".join(f"{n} {state}" for state, n in sorted(Counter(run.state for run in runs).items()))
        raise ComparisonError(f"no run of {len(runs)} is COMPLETED ({states}): nothing to compare yet")
    yardstick = find_yardstick(runs, request.metric, request.goal)
    groups = find_cells(factor, runs, None if request.allow_mixed else find_allowed(request.allow, runs))
    _require_two_levels_somewhere(factor, groups)
    left_out = _beside_the_question(factor, groups, yardstick.metric)
    uids = {each.uid for each in left_out}
    return [run for run in runs if run.uid not in uids], factor, yardstick, left_out


def _beside_the_question(factor: Factor, cells: Sequence[CellRuns], metric: str) -> tuple[Excluded, ...]:
    """Return the runs of cells, often of another program, without the setting, or without the metric so far.

    Runs that failed before it are an outcome, and stay, unless their whole experiment has another objective.
    """
    experiments = {run.experiment for cell in cells for run in cell.runs if metric in run.metrics}
    left_out: list[Excluded] = []
    for cell in cells:
        levels = factor.levels(cell.runs)
        is_unset = all(set(level.split(" x ")) == {show(None)} for level in levels)
        silent = [run for run in cell.runs if run.state is State.COMPLETED or not run.state.is_final]
        is_mute = len(silent) == len(cell.runs) and not any(metric in run.metrics for run in silent)
        for run, level in zip(cell.runs, levels, strict=True):
            is_other = run.experiment not in experiments and run.params.get("objective.metric") not in (None, metric)
            if is_unset or is_mute or is_other:
                why = f"without {factor.name if is_unset else metric}"
                left_out.append(Excluded(uid=run.uid, level=level, reason=why))
    return tuple(left_out)


def _sort_cell(group: CellRuns, question: Question) -> SortedCell:
    factor, yardstick = question.factor, question.yardstick
    group = with_repeats_as_units(group, yardstick.metric, yardstick.goal)
    runs, flags = at_common_step(group.runs, yardstick.metric, question.metric if question.is_early else {})
    by_level: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_level.setdefault(factor.level(run), []).append(run)
    by_precision = factor.group == "precision"
    arms = {
        level: sort_runs(
            level, by_level[level], yardstick.metric, by_precision=by_precision, mistaken=question.mistaken
        )
        for level in sorted(by_level, key=factor.sort_key)
    }
    counted = [run for arm in arms.values() for run in arm.ok]
    has_target = question.request.target is not None
    may_stop_early = has_target or any(run.params.get("objective.target") is not None for run in counted)
    differences = find_differences(factor, counted, group.mixed, metric=yardstick.metric, may_stop_early=may_stop_early)
    return SortedCell(group=group, arms=arms, counted=counted, differences=differences, flags=flags)


def _require_two_levels_somewhere(factor: Factor, cells: Sequence[CellRuns]) -> None:
    levels = [sorted(set(factor.levels(cell.runs)), key=factor.sort_key) for cell in cells]
    if any(len(of) > 1 for of in levels):
        return
    lines = [f"no two runs differ in {factor.name} alone:"]
    lines += [f"  {', '.join(of)}: {cell.name}" for of, cell in list(zip(levels, cells, strict=True))[:_LISTED]]
    if (more := len(cells) - _LISTED) > 0:
        lines.append(f"  and {more} more such cells")
    settings = sorted({key for cell in cells for key, _ in cell.where if "." in key})
    mixing = f", or compare anyway with --allow {','.join(settings)}" if settings else ""
    lines.append(f"launch the missing arms, or compare by what differs above instead of {factor.name}{mixing}")
    raise ComparisonError(*lines)


def _require_fairness(factor: Factor, found: Sequence[SortedCell], allowed: Collection[str]) -> None:
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
    raise ComparisonError(*lines)


def _judge(cells: Sequence[SortedCell], question: Question) -> tuple[list[Cell], int]:
    """Return the judged cells, and the number of tests that Holm's adjustment reckons with.

    A test is a row that has a margin, a reference and at least three seeds on both sides.
    """
    armed = [_arms_of(cell, question) for cell in cells]
    drafts = [draft_row(arm, cell) for cell in armed for arm in cell.arms]
    rows = iter(adjusted(drafts))
    judged = [
        _build_cell(cell, arms, [next(rows) for _ in arms.arms], question)
        for cell, arms in zip(cells, armed, strict=True)
    ]
    return judged, sum(draft.claims is not None for draft in drafts)


def _arms_of(cell: SortedCell, question: Question) -> CellArms:
    yardstick, metric = question.yardstick, question.yardstick.metric
    target = find_target(cell.counted, metric, question.request.target)
    race = None
    if target.value is not None:
        if yardstick.goal is None:
            why = f"nothing tells which way {metric} is better: --goal max|min"
            raise ComparisonError(f"target={target.value:g}: {why}")
        race = Race(
            metric=metric,
            target=target.value,
            higher_is_better=yardstick.higher_is_better,
            curves=question.metric,
            timelines=question.timelines,
        )
    reaches = {} if race is None else {level: find_reaches(arm, race) for level, arm in cell.arms.items()}
    step_s, timed = question.steps.step_s, [arm for arm in cell.arms.values() if arm.has_speed]
    own = {run.uid: step_s[run.uid] for arm in timed for run in arm.ok if run.uid in step_s}
    window = common_window(own.values())  # None: one short run takes no speed from the others, each has its last half
    steady = steady_states(own, window)
    reference = cell.arms.get(question.reference)
    return CellArms(
        arms=sorted(cell.arms.values(), key=lambda arm: arm is not reference),  # stable: the reference goes first
        reference=reference,
        yardstick=yardstick,
        margin=find_margin(cell.counted, metric, question.request.margin),
        target=target,
        by_precision=question.factor.group == "precision",
        steady=steady,
        window=window,
        by_mean=means_differ([steady[run.uid] for run in arm.ok if run.uid in steady] for arm in timed),
        curves=question.steps,
        scale=find_scale(cell.counted, yardstick, question.request.margin),
        race=race,
        reaches=reaches,
        budget_s=find_budget_s([reach for of_level in reaches.values() for reach in of_level]),
        seed=cell.group.seed,
    )


def _build_cell(cell: SortedCell, arms: CellArms, rows: Sequence[Row], question: Question) -> Cell:
    return Cell(
        where=dict(cell.group.where),
        device=one_device(cell.counted),
        batch_size=_batch_size(cell.counted),
        reference=question.reference,
        margin=arms.margin.value,
        margin_source=arms.margin.source,
        steady_from_step=arms.window.from_step if arms.window else None,
        steady_to_step=arms.window.to_step if arms.window else None,
        rows=tuple(rows),
        flags=(*cell.flags, *cell_flags(arms, cell.differences, question.reference)),
        confounders=cell.differences.forbidding,
        notes=cell.differences.noted,
        excluded=tuple(run for arm in arms.arms for run in excluded(arm, question.yardstick.metric)),
        scale="linear" if arms.scale is None else "percent" if isinstance(question.request.margin, Percent) else "log",
        target_source=arms.target.source,
    )


def _batch_size(runs: Sequence[RunRecord]) -> int | None:
    key = "training.batch_size"
    sizes = {None if says_nothing(run.params, key) else run.params.get(key) for run in runs}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None
