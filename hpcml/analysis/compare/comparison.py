"""`hpcml compare`: runs that differ in one setting, as a table of cells and rows.

A cell holds runs that are alike in all settings but the compared one; each value of that setting (a level, e.g. bf16)
is a row, judged against the reference level. `compare` sorts runs into cells, refuses where they differ in facts that
may change the result, and passes the cells to `judge`, which judges each row alone first and then adjusts the verdicts
for the number of rows in the table (`hpcml.analysis.statistics`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcml.analysis.compare.arms import Arm, at_common_step, excluded, never_trained, reading, sort_runs
from hpcml.analysis.compare.cells import (
    CellRuns,
    Curves,
    Terms,
    find_cells,
    maybe_seed,
    with_repeats_as_units,
    with_seeds_from,
)
from hpcml.analysis.compare.factor import Factor, find_factor, find_levels, find_reference, with_distinct_settings
from hpcml.analysis.compare.fairness import (
    Differences,
    clock_remarks,
    early_ends,
    find_allowed,
    find_differences,
    order_remarks,
)
from hpcml.analysis.compare.grid import find_resolution, find_scale
from hpcml.analysis.compare.objective import Margin, Target, Yardstick, find_margin, find_target, find_yardstick
from hpcml.analysis.compare.rows import adjusted, draft_row
from hpcml.analysis.compare.speed import OF_MEANS, uses_means
from hpcml.analysis.compare.to_target import Race, find_budget_s, find_reaches
from hpcml.analysis.steady import SteadyState, Window, common_window, steady_states
from hpcml.errors import ComparisonError
from hpcml.model.comparison import Cell, Comparison, ComparisonRequest, Excluded, Row
from hpcml.model.own_program import says_nothing
from hpcml.model.query_results import Timeline
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.model.told_apart import show

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
    found, question, left_out = _look_at_all(runs, curves, request, more_curves, timelines)
    factor, yardstick = question.factor, question.yardstick
    cells, n_tests = judge(found, question)
    if seed := maybe_seed([each.group for each in found]):
        alone = f"these {len(cells)} comparisons of one seed each differ in {seed} alone: if that is the program's seed"
        cells[0] = replace(cells[0], remarks=(f"{alone}, --seed {seed} makes them one", *cells[0].remarks))
    return Comparison(
        by=factor.name,
        metric=yardstick.metric,
        goal=yardstick.goal,
        goal_source=yardstick.goal_source,
        n_runs=len({run.uid for run in runs}) - len(left_out),
        n_comparisons=sum(row.difference is not None for cell in cells for row in cell.rows),
        cells=tuple(cells),
        n_tests=n_tests,
        seed=request.seed,
        excluded=left_out,
    )


def _look_at_all(
    runs: Sequence[RunRecord],
    curves: Curves,
    request: ComparisonRequest,
    more_curves: Mapping[str, Curves] | None,
    timelines: Mapping[str, Sequence[Timeline]] | None,
) -> tuple[list[JudgedCell], Question, tuple[Excluded, ...]]:
    """Return *runs* in cells, what is asked of them, and those left out; raise `ComparisonError` as `compare` does."""
    runs = [run for _, run in sorted({run.uid: run for run in runs}.items())]
    if not runs:
        raise ComparisonError("no runs to compare: none matches the selection")
    if request.seed is not None:
        runs = with_seeds_from(request.seed, runs)
    distinct = with_distinct_settings(runs)
    factor = find_factor(request.factor, distinct)
    levels = find_levels(factor, runs)
    is_early = not any(run.state is State.COMPLETED for run in runs)
    if is_early and not any(run.state is State.TIMEOUT for run in runs):
        states = ", ".join(f"{n} {state}" for state, n in sorted(Counter(run.state for run in runs).items()))
        raise ComparisonError(f"no run of {len(runs)} is COMPLETED ({states}): nothing to compare yet")
    yardstick = find_yardstick(runs, request.metric, request.goal)
    allowed = find_allowed(request.allow, distinct)
    cells = find_cells(factor, runs, None if request.allow_mixed else allowed)
    _require_two_levels_somewhere(factor, cells)
    if left_out := _beside_the_question(factor, cells, yardstick.metric):
        runs = [run for run in runs if run.uid not in {each.uid for each in left_out}]
        levels = find_levels(factor, runs)
        cells = find_cells(factor, runs, None if request.allow_mixed else allowed)
        _require_two_levels_somewhere(factor, cells)
    reference = find_reference(factor, levels, request.reference)
    mistaken = never_trained(factor.levels(runs), runs)
    early = (more_curves or {}).get(yardstick.metric, {}) if is_early else {}
    found = [
        _look_at(factor, group, yardstick, mistaken, early, has_target=request.target is not None) for group in cells
    ]
    found.sort(key=lambda each: not each.counted)  # stable: what failed before the command was right comes last
    if not request.allow_mixed:
        _require_fairness(factor, found, allowed)
    question = Question(
        factor=factor,
        reference=reference,
        yardstick=yardstick,
        margin=request.margin,
        target=request.target,
        curves={**(more_curves or {}), STEP: curves},
        timelines=timelines or {},
    )
    return found, question, left_out


def _beside_the_question(factor: Factor, cells: Sequence[CellRuns], metric: str) -> tuple[Excluded, ...]:
    """Return the runs of cells, often of another program, without the setting, or without the metric so far.

    Runs that failed before it are an outcome, and stay.
    """
    left_out: list[Excluded] = []
    for cell in cells:
        levels = factor.levels(cell.runs)
        is_unset = all(set(level.split(" x ")) == {show(None)} for level in levels)
        silent = [run for run in cell.runs if run.state is State.COMPLETED or not run.state.is_final]
        if is_unset or (len(silent) == len(cell.runs) and not any(metric in run.metrics for run in silent)):
            why = f"without {factor.name}" if is_unset else f"without {metric}"
            left_out += [Excluded(uid=run.uid, level=of, reason=why) for run, of in zip(cell.runs, levels, strict=True)]
    return tuple(left_out)


def _look_at(
    factor: Factor,
    group: CellRuns,
    yardstick: Yardstick,
    mistaken: frozenset[str],
    early: Curves,
    *,
    has_target: bool,
) -> JudgedCell:
    metric = yardstick.metric
    group = with_repeats_as_units(group, metric, yardstick.goal)
    ended, early_end = at_common_step(group.runs, metric, early)
    group = replace(group, runs=tuple(ended))
    by_level: dict[str, list[RunRecord]] = {}
    for run, level in zip(group.runs, factor.levels(group.runs), strict=True):
        by_level.setdefault(level, []).append(run)
    by_precision = factor.group == "precision"
    arms = {
        level: sort_runs(level, by_level[level], metric, by_precision=by_precision)
        for level in sorted(by_level, key=factor.sort_key)
    }
    if any(arm.without_metric for arm in arms.values()):
        read_by = frozenset(reading(run) for arm in arms.values() for run in (*arm.ok, *arm.nan))
        arms = {level: replace(arm, read_by=read_by) for level, arm in arms.items()}
    if mistaken:
        arms = {level: replace(arm, never_trained=mistaken) for level, arm in arms.items()}
    counted = [run for arm in arms.values() for run in arm.ok]
    distinct = with_distinct_settings(counted)
    may_stop_early = has_target or any(run.params.get("objective.target") is not None for run in distinct)
    differences = find_differences(factor, counted, group.mixed, metric=metric, may_stop_early=may_stop_early)
    return JudgedCell(
        group=group, arms=arms, counted=counted, distinct=distinct, differences=differences, early_end=early_end
    )


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


def _require_fairness(factor: Factor, found: Sequence[JudgedCell], allowed: Collection[str]) -> None:
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


STEP, DATA, COMMUNICATION = "step_time_s", "data_time_s", "communication_time_s"


@dataclass(frozen=True, kw_only=True)
class JudgedCell:
    """The runs of one cell, sorted by level, and the facts in which they differ."""

    group: CellRuns
    arms: Mapping[str, Arm]  # by level, in the factor's order
    counted: Sequence[RunRecord]  # that enter any statistics: completed, with a finite value of the metric
    distinct: Sequence[RunRecord]  # of those that count one for each content of the settings and each seed
    differences: Differences
    early_end: str  # what is said of runs that their walltime ended; "" where none of them counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is compared in all cells of one comparison: the request with everything it leaves open decided."""

    factor: Factor
    reference: str
    yardstick: Yardstick
    margin: float | None  # of the command line
    target: float | None  # of the command line
    curves: Mapping[str, Curves]  # by metric
    timelines: Mapping[str, Sequence[Timeline]]  # by uid


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A cell with its margin, its target and what else its rows are judged by."""

    found: JudgedCell
    arms: Sequence[Arm]  # the reference first
    terms: Terms
    margin: Margin
    target: Target
    window: Window | None


def judge(found: Sequence[JudgedCell], question: Question) -> tuple[list[Cell], int]:
    """Return the judged cells, and the number of tests that Holm's adjustment reckons with.

    A test is a row that has a margin, a reference and at least three seeds on both sides.
    """
    cases = [_case(each, question) for each in found]
    drafts = [draft_row(arm, case.terms) for case in cases for arm in case.arms]
    rows = iter(adjusted(drafts))
    cells = [_build_cell(case, [next(rows) for _ in case.arms], question) for case in cases]
    return cells, sum(draft.claims is not None for draft in drafts)


def _case(found: JudgedCell, question: Question) -> _Case:
    metric = question.yardstick.metric
    margin = find_margin(found.distinct, metric, question.margin)
    target = find_target(found.counted, metric, question.target)
    reference = found.arms.get(question.reference)
    window, steady = _find_steady(found, question.curves[STEP])
    race = None
    if target.value is not None:
        if question.yardstick.goal is None:
            raise ComparisonError(
                f"target={target.value:g}: nothing tells which way {metric} is better: --goal max|min"
            )
        race = Race(
            metric=metric,
            target=target.value,
            higher_is_better=question.yardstick.higher_is_better,
            curves=question.curves.get(metric, {}),
            timelines=question.timelines,
        )
    reaches = {} if race is None else {level: find_reaches(arm, race) for level, arm in found.arms.items()}
    higher_is_better = question.yardstick.higher_is_better
    terms = Terms(
        reference=reference,
        metric=metric,
        scale=find_scale(found.distinct, metric, higher_is_better=higher_is_better),
        resolution=find_resolution(found.counted, metric),
        margin=margin.value,
        higher_is_better=higher_is_better,
        knows_goal=question.yardstick.goal is not None,
        by_precision=question.factor.group == "precision",
        steady=steady,
        reporting={run.uid for run in found.counted if run.uid not in steady and question.curves[STEP].get(run.uid)},
        steps=question.curves[STEP],
        data=question.curves.get(DATA, {}),
        communication=question.curves.get(COMMUNICATION, {}),
        race=race,
        reaches=reaches,
        budget_s=find_budget_s([reach for of in reaches.values() for reach in of]),
        seed=found.group.seed,
        by_mean=uses_means(found.arms.values(), steady),
    )
    ordered = sorted(found.arms.values(), key=lambda arm: arm is not reference)  # stable: the reference goes first
    return _Case(found=found, arms=ordered, terms=terms, margin=margin, target=target, window=window)


def _build_cell(case: _Case, rows: Sequence[Row], question: Question) -> Cell:
    found = case.found
    return Cell(
        where=dict(found.group.where),
        device=_device(found.counted),
        batch_size=_batch_size(found.distinct),
        reference=question.reference,
        margin=case.margin.value,
        margin_source=case.margin.source,
        steady_from_step=case.window.from_step if case.window else None,
        steady_to_step=case.window.to_step if case.window else None,
        rows=tuple(rows),
        remarks=tuple(_remarks(case, question.reference, by=question.factor.name)),
        confounders=found.differences.forbidding,
        notes=found.differences.noted,
        excluded=tuple(run for arm in case.arms for run in excluded(arm, question.yardstick.metric)),
        scale=case.terms.scale.name,
        resolution=case.terms.resolution.value,
        resolution_source=case.terms.resolution.source,
        target_source=case.target.source,
    )


def _find_steady(found: JudgedCell, curves: Curves) -> tuple[Window | None, dict[str, SteadyState]]:
    """Return one step window for all native runs that count, and each run's steady state in it, by uid.

    Without such a window (None) each run is seen in its own last half: one short run takes no speed from the others.
    """
    timed = {
        run.uid: curves[run.uid] for arm in found.arms.values() if arm.has_speed for run in arm.ok if run.uid in curves
    }
    window = common_window(timed.values())
    return window, steady_states(timed, window)


def _remarks(case: _Case, reference: str, *, by: str) -> Iterator[str]:
    found = case.found
    if found.early_end:
        yield found.early_end
    arm = found.arms.get(reference)
    if arm is None:
        yield f"no {reference} in this cell: nothing to subtract"
    elif not arm.ok:
        yield f"no run of the reference {reference} counts: nothing to subtract"
    elif not arm.has_speed:
        yield f"the reference {reference} is {arm.why_no_speed}: no speed-ups"
    yield from early_ends(found.differences, by)
    if len(found.arms) > 1:
        yield from order_remarks(found.arms.values())
        yield from clock_remarks(case.arms)
    if case.terms.by_mean and sum(each.has_speed for each in case.arms) > 1:
        yield OF_MEANS
    if case.window is None and case.terms.steady:
        yield "the last halves of these runs have too few steps in common: the speed of each is of its own last half"
    if (n := max(len({run.submission for run in each.ok} - {None}) for each in case.arms)) > 1:
        yield f"{case.terms.unit} came in {n} submissions"


def _device(runs: Sequence[RunRecord]) -> str | None:
    devices = set()
    for run in {id(run.facts): run for run in runs}.values():
        kind = run.facts.get("device")
        model = run.facts.get("cpu_model" if kind == "cpu" else "gpu_model")
        devices.add(" ".join(str(part) for part in (kind, f"({model})" if model else None) if part))
    return devices.pop() or None if len(devices) == 1 else None


def _batch_size(runs: Sequence[RunRecord]) -> int | None:
    key = "training.batch_size"
    distinct = with_distinct_settings(runs)
    sizes = {None if says_nothing(run.params, key) else run.params.get(key) for run in distinct}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None
