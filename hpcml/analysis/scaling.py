"""How many devices are worth it: runs that differ in their number alone, and what may be concluded from them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from hpcml.analysis.fairness import Differences, find_allowed, find_differences
from hpcml.analysis.scaling_arms import ScalingArm, StepCurves, left_out, sort_arms
from hpcml.analysis.scaling_cells import Group, find_groups
from hpcml.analysis.scaling_conclusions import Evidence, Thresholds, no_help_beyond, sentences
from hpcml.analysis.scaling_counts import Over, choose_over, count
from hpcml.analysis.scaling_fit import fit_serial_share
from hpcml.analysis.scaling_points import Measured, build_point, find_costs
from hpcml.analysis.scaling_sizes import pays_from
from hpcml.errors import ComparisonError
from hpcml.precision import Numerics
from hpcml.records import RunRecord
from hpcml.scaling import Scaling, ScalingCell
from hpcml.states import State

_COUNTING = (
    *("resources.nodes", "resources.gpus_per_node", "resources.cpus_per_task", "strategy.processes_per_node"),
    *("strategy.devices", "training.batch_size", "threads", "n_gpus"),
)  # differ because the number of devices does: in the table already
_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a study looks at; None leaves it to the runs."""

    over: Over | None = None
    kind: Literal["strong", "weak", "auto"] = "auto"
    reference: int | None = None  # the number of devices that speed-ups are against; None: the smallest
    least_gain: float = 0.05
    least_efficiency: float = 0.5
    allow: Sequence[str] = ()  # settings and facts that may differ
    allow_mixed: bool = False


def study_scaling(runs: Sequence[RunRecord], curves: StepCurves, question: Question) -> Scaling:
    """Return what the number of devices did, cell by cell; the order of *runs* does not matter.

    Raises `ComparisonError` where nothing scales, where no run has a speed, and where runs of a cell that have one are
    not alike in what else matters.
    """
    runs = [run for _, run in sorted({run.uid: run for run in runs}.items())]
    if not runs:
        raise ComparisonError("no runs to look at: none matches the selection")
    over = choose_over(runs, question.over)
    allowed = find_allowed(question.allow, runs)
    groups = find_groups(runs, over, question.kind, allowed)
    if not groups:
        raise ComparisonError(_nothing_scales(runs, over, question.kind))
    _require_a_speed(groups)
    found = [_differences(group, allowed, is_lenient=question.allow_mixed) for group in groups]
    _require_fairness(groups, found, over)
    thresholds = Thresholds(least_gain=question.least_gain, least_efficiency=question.least_efficiency)
    cells = tuple(
        _build_cell(group, differences, curves, question.reference, thresholds)
        for group, (differences, _) in zip(groups, found, strict=True)
    )
    wanted = question.reference
    if wanted is not None and not any(cell.reference == wanted for cell in cells):
        known = sorted({point.devices for cell in cells for point in cell.points if point.n})
        raise ComparisonError(f"reference {wanted}: no cell has a speed on it; choose {', '.join(map(str, known))}")
    return Scaling(
        over=over.value,
        n_runs=len(runs),
        least_gain=question.least_gain,
        least_efficiency=question.least_efficiency,
        cells=cells,
        pays_from=tuple(pays_from(cells, question.least_efficiency)),
        remarks=tuple(_left_over(runs, groups, over)),
    )


def _build_cell(
    group: Group, differences: Differences, curves: StepCurves, wanted: int | None, thresholds: Thresholds
) -> ScalingCell:
    arms, window = sort_arms(group.by_count, curves)
    costs = find_costs(group.kind, arms)
    reference = wanted if wanted is not None else min(costs, default=None)
    reference = reference if reference in costs else None
    cell = Measured(kind=group.kind, over=group.factor.over, arms=arms, reference=reference, costs_s=costs)
    points = tuple(build_point(devices, cell) for devices in arms)
    fit = None if reference is None else fit_serial_share(group.kind, reference, costs)
    over = group.factor.over.value
    evidence = Evidence(kind=group.kind, over=over, reference=reference, points=points, costs_s=costs, fit=fit)
    return ScalingCell(
        kind=group.kind,
        over=over,
        where=group.where,
        device=_device(group),
        points=points,
        reference=reference,
        fit=fit,
        no_help_beyond=no_help_beyond(costs, thresholds.least_gain),
        sentences=tuple(sentences(evidence, thresholds)),
        flops_per_sample=_flops_per_sample(group),
        steady_from_step=window.from_step if window else None,
        steady_to_step=window.to_step if window else None,
        remarks=tuple(_remarks(arms, costs, wanted, reference, has_window=window is not None)),
        confounders=differences.forbidding,
        notes=tuple(note for note in differences.noted if note.key not in _COUNTING),
        excluded=tuple(run for arm in arms.values() for run in left_out(arm)),
    )


def _remarks(
    arms: dict[int, ScalingArm], costs: object, wanted: int | None, reference: int | None, *, has_window: bool
) -> list[str]:
    remarks = []
    timed = [arm for arm in arms.values() if arm.steps_s]
    if not costs and timed:
        remarks.append("how many samples a step takes is not known of all runs: no speed-ups with a batch that grows")
    elif wanted is not None and reference is None:
        remarks.append(f"no run on {wanted} has a speed in this cell: no speed-ups")
    if timed and not has_window:
        remarks.append("the last halves of these runs have no step in common: each was looked at in its own")
    return remarks


def _require_a_speed(groups: Sequence[Group]) -> None:
    """Refuse where no run may have a speed; the reasons of the first cell are told."""
    runs = {run.uid: run for group in groups for run in group.runs}.values()
    completed = [run for run in runs if run.state is State.COMPLETED]
    if any(run.numerics == Numerics.native.name for run in completed):
        return
    if not completed:
        raise ComparisonError(f"none of the {len(runs)} runs is COMPLETED: nothing has a speed yet")
    kinds = ", ".join(sorted({run.numerics for run in completed}))
    raise ComparisonError(
        f"no run has a speed: numerics {kinds} of all {len(completed)} completed runs; times of arithmetic that is "
        "emulated, or that nobody measured, say nothing about a device"
    )


def _differences(group: Group, allowed: Collection[str], *, is_lenient: bool) -> tuple[Differences, bool]:
    """Return what else differs among the runs of a cell that have a speed, and whether that is allowed."""
    timed = [run for run in group.runs if run.state is State.COMPLETED and run.numerics == Numerics.native.name]
    found = find_differences(group.factor, timed)
    return found, is_lenient or all(discrepancy.key in allowed for discrepancy in found.forbidding)


def _require_fairness(groups: Sequence[Group], found: Sequence[tuple[Differences, bool]], over: Over) -> None:
    if all(is_allowed for _, is_allowed in found):
        return
    lines = [f"these runs differ in more than the number of {over.value}:"]
    for group, (differences, is_allowed) in zip(groups, found, strict=True):
        if not is_allowed:
            lines.append(f"  {group.kind}: {', '.join(f'{key}={value}' for key, value in group.where.items())}")
            lines += [f"    {discrepancy}" for discrepancy in differences.forbidding]
    lines.append(
        "select fewer with --where KEY=VALUE; or look anyway, with these as confounders: --allow WORD[,WORD...] "
        "for those named, --allow-mixed for all"
    )
    raise ComparisonError("\n".join(lines))


def _nothing_scales(runs: Sequence[RunRecord], over: Over, kind: str) -> str:
    counts = sorted({number for run in runs if (number := count(run, over)) is not None})
    what = {
        "strong": "in it alone (one batch size for all)",
        "weak": "in it and in a batch size that grows with it",
        "auto": "in it alone, nor in it and a batch size that grows with it",
    }[kind]
    numbers = ", ".join(map(str, counts))
    return f"the number of {over.value} is {numbers}, but no two runs differ {what}: hpcml diff shows in what two do"


def _left_over(runs: Sequence[RunRecord], groups: Sequence[Group], over: Over) -> list[str]:
    """Return what became of runs that stand beside all cells."""
    used = {run.uid for group in groups for run in group.runs}
    left = [run for run in runs if run.uid not in used]
    if not left:
        return []
    shown = ", ".join(run.uid for run in left[:_LISTED]) + (", ..." if len(left) > _LISTED else "")
    words = "1 run is" if len(left) == 1 else f"{len(left)} runs are"
    why = f"no other differs in the number of {over.value} alone, or that number is not known"
    return [f"{words} in no cell: {why}: {shown}"]


def _device(group: Group) -> str | None:
    devices = set()
    for run in group.runs:
        if (kind := run.facts.get("device")) is not None:
            model = run.facts.get("cpu_model" if kind == "cpu" else "gpu_model")
            devices.add(f"{kind} ({model})" if model else str(kind))
    return devices.pop() if len(devices) == 1 else None


def _flops_per_sample(group: Group) -> float | None:
    found = [
        run.work.model_flops / run.work.samples
        for run in group.runs
        if run.work is not None and run.work.model_flops is not None and run.work.samples
    ]
    return median(found) if found else None
