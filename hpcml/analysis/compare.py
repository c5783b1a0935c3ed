"""Runs that differ in one setting, compared: refused where they differ in more, never more certain than they are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcml.analysis.arms import Arm, excluded, sort_runs
from hpcml.analysis.factor import CELL_GROUPS, Factor, find_factor, find_levels, find_reference, natural, show
from hpcml.analysis.fairness import Differences, find_differences
from hpcml.analysis.objective import Yardstick, find_margin, find_yardstick
from hpcml.analysis.rows import Terms, build_row
from hpcml.analysis.steady import SteadyState, Window, common_window, steady_state
from hpcml.comparison import Cell, Comparison
from hpcml.errors import ComparisonError
from hpcml.records import Point, RunRecord
from hpcml.states import State

Curves = Mapping[str, Sequence[Point]]  # uid -> step_time_s
_Where = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The runs of one cell, with what was found about them."""

    where: _Where
    arms: Mapping[str, Arm]
    differences: Differences

    @property
    def counted(self) -> list[RunRecord]:
        return [run for arm in self.arms.values() for run in arm.ok]


def compare(
    runs: Sequence[RunRecord],
    curves: Curves,
    *,
    by: str = "precision",
    reference: str | None = None,
    metric: str | None = None,
    goal: str | None = None,
    margin: float | None = None,
    allow_mixed: bool = False,
) -> Comparison:
    """Return what the setting *by* did, cell by cell; the order of *runs* does not matter.

    *curves* holds the ``step_time_s`` curves by uid. Raises `ComparisonError` where runs that count differ in more
    than *by* (unless *allow_mixed*), where there is nothing to compare, or where no run can count.
    """
    runs = [run for _, run in sorted({run.uid: run for run in runs}.items())]
    if not runs:
        raise ComparisonError("no runs to compare: none matches the selection")
    factor = find_factor(by, runs)
    levels = find_levels(factor, runs)
    reference = find_reference(factor, levels, reference)
    if not any(run.state is State.COMPLETED for run in runs):
        states = ", ".join(f"{n} {state}" for state, n in sorted(Counter(run.state for run in runs).items()))
        raise ComparisonError(f"none of the {len(runs)} runs is COMPLETED ({states}): nothing to compare yet")
    yardstick = find_yardstick(runs, metric, goal)
    groups = _group(factor, runs, yardstick.metric)
    _require_two_levels_somewhere(factor, groups)
    if not allow_mixed:
        _require_fairness(factor, groups)
    cells = tuple(_build_cell(factor, group, curves, reference, yardstick, margin) for group in groups)
    return Comparison(
        by=factor.name,
        metric=yardstick.metric,
        goal=yardstick.goal,
        goal_source=yardstick.goal_source,
        n_runs=len(runs),
        n_comparisons=sum(row.difference is not None for cell in cells for row in cell.rows),
        cells=cells,
    )


def _group(factor: Factor, runs: Sequence[RunRecord], metric: str) -> list[_Group]:
    names = [name for name in CELL_GROUPS if name != factor.group]
    by_where: dict[_Where, list[RunRecord]] = defaultdict(list)
    for run in runs:
        by_where[tuple((name, show(run.params.get(f"{name}.name"))) for name in names)].append(run)
    groups = []
    for where, members in sorted(by_where.items(), key=lambda item: [(natural(v), v) for _, v in item[0]]):
        levels = sorted({factor.level(run) for run in members}, key=factor.sort_key)
        arms = {
            level: sort_runs(level, [run for run in members if factor.level(run) == level], metric) for level in levels
        }
        counted = [run for arm in arms.values() for run in arm.ok]
        groups.append(_Group(where=where, arms=arms, differences=find_differences(factor, counted)))
    return groups


def _require_two_levels_somewhere(factor: Factor, groups: Sequence[_Group]) -> None:
    if any(len(group.arms) > 1 for group in groups):
        return
    lines = [f"no two runs differ in {factor.name} alone:"]
    lines += [f"  {', '.join(group.arms)}: {_name(group.where)}" for group in groups]
    lines.append(f"launch the missing arms, or compare by what differs above instead of {factor.name}")
    raise ComparisonError("\n".join(lines))


def _require_fairness(factor: Factor, groups: Sequence[_Group]) -> None:
    unfair = [group for group in groups if group.differences.forbidding]
    if not unfair:
        return
    lines = [f"these runs differ in more than {factor.name}:"]
    for group in unfair:
        lines.append(f"  {_name(group.where)}")
        lines += [f"    {discrepancy}" for discrepancy in group.differences.forbidding]
    lines.append("select fewer with --where KEY=VALUE, or --allow-mixed compares anyway and lists these as confounders")
    raise ComparisonError("\n".join(lines))


def _build_cell(
    factor: Factor, group: _Group, curves: Curves, reference: str, yardstick: Yardstick, wanted_margin: float | None
) -> Cell:
    margin = find_margin(group.counted, yardstick.metric, wanted_margin)
    window, steady = _find_steady(group, curves)
    reference_arm = group.arms.get(reference)
    terms = Terms(
        reference=reference_arm,
        margin=margin.value,
        higher_is_better=yardstick.higher_is_better,
        by_precision=factor.group == "precision",
        steady=steady,
        reporting={run.uid for run in group.counted if curves.get(run.uid)},
    )
    ordered = sorted(group.arms.values(), key=lambda arm: arm is not reference_arm)  # stable: the reference goes first
    return Cell(
        where=dict(group.where),
        device=_device(group.counted),
        batch_size=_batch_size(group.counted),
        reference=reference,
        margin=margin.value,
        margin_source=margin.source,
        steady_from_step=window.from_step if window else None,
        steady_to_step=window.to_step if window else None,
        rows=tuple(build_row(arm, terms) for arm in ordered),
        remarks=tuple(_remarks(group, reference)),
        confounders=group.differences.forbidding,
        notes=group.differences.noted,
        excluded=tuple(run for arm in ordered for run in excluded(arm, yardstick.metric)),
    )


def _find_steady(group: _Group, curves: Curves) -> tuple[Window | None, dict[str, SteadyState]]:
    """Return one step window for all native runs that count, and each run's steady state in it."""
    timed = {
        run.uid: curves[run.uid] for arm in group.arms.values() if arm.has_speed for run in arm.ok if run.uid in curves
    }
    window = common_window(timed.values())
    if window is None:
        return None, {}
    found = {uid: steady_state(curve, window) for uid, curve in timed.items()}
    return window, {uid: state for uid, state in found.items() if state is not None}


def _remarks(group: _Group, reference: str) -> list[str]:
    remarks = []
    arm = group.arms.get(reference)
    if arm is None:
        remarks.append(f"no {reference} in this cell: nothing to subtract")
    elif not arm.ok:
        remarks.append(f"no run of the reference {reference} counts: nothing to subtract")
    elif not arm.has_speed:
        remarks.append(f"the reference {reference} is {arm.numerics}: no speed-ups")
    return remarks


def _device(runs: Sequence[RunRecord]) -> str | None:
    devices = set()
    for run in runs:
        kind = run.facts.get("device")
        model = run.facts.get("cpu_model" if kind == "cpu" else "gpu_model")
        devices.add(" ".join(str(part) for part in (kind, f"({model})" if model else None) if part))
    return devices.pop() or None if len(devices) == 1 else None


def _batch_size(runs: Sequence[RunRecord]) -> int | None:
    sizes = {run.params.get("training.batch_size") for run in runs}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def _name(where: _Where) -> str:
    return ", ".join(f"{group}={name}" for group, name in where)
