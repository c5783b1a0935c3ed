"""`hpcml scaling`: how speed and cost change with the number of devices, and from which size on more devices pay.

Strong scaling keeps the batch of all devices together, weak scaling the batch of each. Runs that differ in nothing but
the number of devices (and, in weak scaling, the batch) make a cell. `study_scaling` judges each cell; `pays_from` then
looks over cells that differ in the size of the batch or of the model alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from hpcml.analysis.compare.fairness import Differences, find_allowed, find_differences
from hpcml.analysis.flags import Flag, FlagCode, flag
from hpcml.analysis.frame import one_device
from hpcml.analysis.nodes import seed_means
from hpcml.analysis.scaling.cells import (
    STRONG_SIZE,
    WEAK_SIZE,
    Over,
    ScalingRuns,
    choose_over,
    count,
    find_groups,
)
from hpcml.analysis.scaling.conclusions import Evidence, Thresholds, no_help_beyond, pays, percent, sentences
from hpcml.analysis.scaling.fit import fit_serial_share
from hpcml.analysis.scaling.points import (
    MeasuredCell,
    ScalingArm,
    build_point,
    find_costs,
    left_out,
    sort_arms,
)
from hpcml.analysis.scaling.result import Scaling, ScalingCell, ScalingPoint, SizeRow
from hpcml.analysis.stats import ENOUGH_SEEDS
from hpcml.analysis.steady import StepCurves
from hpcml.errors import ComparisonError
from hpcml.model.choices import Numerics
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.units import one_or_many

_COUNTING = (
    *("resources.nodes", "resources.gpus_per_node", "resources.cpus_per_task", "strategy.processes_per_node"),
    *("strategy.devices", "training.batch_size", "threads", "n_gpus"),
)  # differ because the number of devices does: in the table already
_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRequest:
    """What a study looks at; None leaves it to the runs. `least_gain` and `least_efficiency` are shares."""

    over: Over | None = None
    kind: Literal["strong", "weak", "auto"] = "auto"
    reference: int | None = None  # the number of devices that speed-ups are against; None: the smallest
    least_gain: float = 0.05
    least_efficiency: float = 0.5
    allow: Sequence[str] = ()  # settings and facts that may differ
    allow_mixed: bool = False


def study_scaling(runs: Sequence[RunRecord], curves: StepCurves, question: ScalingRequest) -> Scaling:
    """Return what the number of devices did, cell by cell; the order of *runs* does not matter.

    *curves* are what programs reported of each step, in seconds, by uid. Speed-up is the time of a sample on the
    reference over that on n devices, efficiency the speed-up over n / reference.

    Raises `ComparisonError` where no two runs differ in the number of devices alone, where no run has a speed, where
    runs of a cell differ in a fact that may change their speed, or where the reference has no speed in any cell.
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
        if not known:
            raise ComparisonError(f"reference {wanted}: no run has a speed; without a reference the reasons are listed")
        raise ComparisonError(f"reference {wanted}: no cell has a speed on it; choose {', '.join(map(str, known))}")
    sizes = find_sizes(cells)
    return Scaling(
        over=over.value,
        n_runs=len(runs),
        least_gain=question.least_gain,
        least_efficiency=question.least_efficiency,
        cells=cells,
        pays_from=tuple(pays_from(cells, sizes, question.least_efficiency)),
        flags=tuple(_left_over(runs, groups, over)),
        sizes=sizes,
    )


def _build_cell(
    group: ScalingRuns, differences: Differences, curves: StepCurves, wanted: int | None, thresholds: Thresholds
) -> ScalingCell:
    arms, window, by_mean = sort_arms(group.by_count, curves)
    costs = find_costs(group.kind, arms)
    reference = wanted if wanted is not None else min(costs, default=None)
    reference = reference if reference in costs else None
    cell = MeasuredCell(kind=group.kind, over=group.factor.over, arms=arms, reference=reference, costs_s=costs)
    points = tuple(build_point(devices, cell) for devices in arms)
    fit = (
        None
        if reference is None
        else fit_serial_share(group.kind, reference, {n: seed_means(of) for n, of in costs.items()})
    )
    over = group.factor.over.value
    evidence = Evidence(kind=group.kind, over=over, reference=reference, points=points, costs_s=costs, fit=fit)
    return ScalingCell(
        kind=group.kind,
        over=over,
        where=group.where,
        device=one_device(group.runs),
        points=points,
        reference=reference,
        fit=fit,
        no_help_beyond=no_help_beyond(costs, thresholds.least_gain),
        sentences=tuple(sentences(evidence, thresholds)),
        flops_per_sample=_flops_per_sample(group),
        steady_from_step=window.from_step if window else None,
        steady_to_step=window.to_step if window else None,
        flags=(
            *(flag(FlagCode.CONFOUNDED, what=f"{each.kind} {each}") for each in differences.forbidding),
            *_flags(arms, costs, wanted, reference, has_window=window is not None, by_mean=by_mean),
        ),
        confounders=differences.forbidding,
        notes=tuple(note for note in differences.noted if note.key not in _COUNTING),
        excluded=tuple(run for arm in arms.values() for run in left_out(arm)),
    )


def _flags(
    arms: dict[int, ScalingArm],
    costs: object,
    wanted: int | None,
    reference: int | None,
    *,
    has_window: bool,
    by_mean: bool,
) -> Iterator[Flag]:
    timed = [arm for arm in arms.values() if arm.steps_s]
    if not costs and timed:
        what = "how many samples a step takes is not known of all runs: no speed-ups with a batch that grows"
        yield flag(FlagCode.SPEED, "blocks", what=what)
    elif wanted is not None and reference is None:
        yield flag(FlagCode.SPEED, "blocks", what=f"no run on {wanted} has a speed in this cell: no speed-ups")
    if timed and not has_window:
        what = "these runs have too few late steps in common: the speed of each is of its own last half"
        yield flag(FlagCode.SPEED, what=what)
    if timed and by_mean:
        yield flag(FlagCode.SPEED, "doubt", what="speeds are of mean step times: their medians tell others")


def _require_a_speed(groups: Sequence[ScalingRuns]) -> None:
    """Raise `ComparisonError` with the reasons where no run can have a speed."""
    runs = {run.uid: run for group in groups for run in group.runs}.values()
    completed = [run for run in runs if run.state is State.COMPLETED]
    if any(run.numerics == Numerics.native.name for run in completed):
        return
    if not completed:
        raise ComparisonError(f"no run of {len(runs)} is COMPLETED: nothing has a speed yet")
    kinds = ", ".join(sorted({run.numerics for run in completed}))
    raise ComparisonError(
        f"no run has a speed: numerics {kinds} of all {len(completed)} completed runs; times of arithmetic that is "
        "emulated, or that nobody measured, say nothing about a device"
    )


def _differences(group: ScalingRuns, allowed: Collection[str], *, is_lenient: bool) -> tuple[Differences, bool]:
    """Return what else differs among the runs of a cell that have a speed, and whether that is allowed."""
    timed = [run for run in group.runs if run.state is State.COMPLETED and run.numerics == Numerics.native.name]
    found = find_differences(group.factor, timed)
    return found, is_lenient or all(discrepancy.key in allowed for discrepancy in found.forbidding)


def _require_fairness(groups: Sequence[ScalingRuns], found: Sequence[tuple[Differences, bool]], over: Over) -> None:
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
    raise ComparisonError(*lines)


def _nothing_scales(runs: Sequence[RunRecord], over: Over, kind: str) -> str:
    counts = sorted({number for run in runs if (number := count(run, over)) is not None})
    what = {
        "strong": "in it alone (one batch size for all)",
        "weak": "in it and in a batch size that grows with it",
        "auto": "in it alone, nor in it and a batch size that grows with it",
    }[kind]
    numbers = ", ".join(map(str, counts))
    return f"the number of {over.value} is {numbers}, but no two runs differ {what}: hpcml diff shows in what two do"


def _left_over(runs: Sequence[RunRecord], groups: Sequence[ScalingRuns], over: Over) -> Iterator[Flag]:
    """Yield a flag about the runs that are in no cell, if there are any."""
    used = {run.uid for group in groups for run in group.runs}
    left = [run for run in runs if run.uid not in used]
    if not left:
        return
    shown = ", ".join(run.uid for run in left[:_LISTED]) + (", ..." if len(left) > _LISTED else "")
    words = "1 run is" if len(left) == 1 else f"{len(left)} runs are"
    why = f"no other differs in the number of {over.value} alone, or that number is not known"
    yield flag(FlagCode.INCOMPLETE, what=f"{words} in no cell: {why}: {shown}")


def _flops_per_sample(group: ScalingRuns) -> float | None:
    found = [
        run.work.model_flops / run.work.samples
        for run in group.runs
        if run.work is not None and run.work.model_flops is not None and run.work.samples
    ]
    return median(found) if found else None


_MODEL = "model"
_Rest = tuple[tuple[str, str], ...]


def find_sizes(cells: Sequence[ScalingCell]) -> tuple[SizeRow, ...]:
    """Return the rows of two cells or more that differ in batch size or model alone, each sorted by that.

    Models, and settings of one such as its width, are ordered by the floating-point operations of a sample, as programs
    counted them; those without a count are left out.
    """
    found = []
    for kind in ("strong", "weak"):
        for size in (STRONG_SIZE if kind == "strong" else WEAK_SIZE, _MODEL):
            rows = _rows([cell for cell in cells if cell.kind == kind], size)
            for rest, row in rows.items():
                telling = [key for key in _model_keys(row[0]) if len({cell.where[key] for cell in row}) > 1]
                found.append(
                    SizeRow(
                        kind=row[0].kind,
                        size=size,
                        apart=_told_apart(rest, list(rows)),
                        names=tuple(_name(cell, size, telling) for cell in row),
                        cells=tuple(map(cells.index, row)),
                    )
                )
    return tuple(found)


def pays_from(cells: Sequence[ScalingCell], sizes: Sequence[SizeRow], least_efficiency: float) -> list[str]:
    """Return a sentence for each number of devices and each row of *sizes*: from which on these devices pay."""
    return [
        f"{f'{row.apart}: ' if row.apart else ''}{sentence}"
        for row in sizes
        for sentence in _over_sizes(row, [cells[place] for place in row.cells], least_efficiency)
    ]


def _model_keys(cell: ScalingCell) -> list[str]:
    return [key for key in cell.where if key == _MODEL or key.startswith(f"{_MODEL}.")]


def _rows(cells: Sequence[ScalingCell], size: str) -> Mapping[_Rest, list[ScalingCell]]:
    """Return groups of two or more cells that differ in *size* alone, sorted by it, by what they share."""

    def size_of(cell: ScalingCell) -> float:
        return cell.flops_per_sample or 0.0 if size == _MODEL else float(cell.where[size])

    rows: dict[_Rest, list[ScalingCell]] = defaultdict(list)
    for cell in cells:
        if size in cell.where and (size != _MODEL or cell.flops_per_sample is not None):
            own = (size, f"{_MODEL}.") if size == _MODEL else (size,)
            rows[tuple(item for item in cell.where.items() if not item[0].startswith(own))].append(cell)
    return {
        rest: sorted(row, key=size_of)
        for rest, row in rows.items()
        if 1 < len(row) == len({size_of(cell) for cell in row})  # an option such as dropout is no size
    }


def _over_sizes(row: SizeRow, cells: Sequence[ScalingCell], least_efficiency: float) -> list[str]:
    lines = []
    for devices in sorted({point.devices for cell in cells for point in cell.points}):
        found = [
            (name, pays(point, least_efficiency), point)
            for name, cell in zip(row.names, cells, strict=True)
            for point in cell.points
            if point.devices == devices and cell.reference is not None and devices > cell.reference
        ]
        if len(found) > 1:
            words = one_or_many(devices, cells[0].over)
            lines.append(f"{devices} {words} {_verdict(row.size, found, is_one=devices == 1)}")
    return lines


def _verdict(size: str, verdicts: Sequence[tuple[str, bool, ScalingPoint]], *, is_one: bool) -> str:
    pay = "pays" if is_one else "pay"
    paying = [name for name, does, _ in verdicts if does]
    others = [name for name, does, _ in verdicts if not does]
    if not paying:
        return f"{'is' if is_one else 'are'} shown to pay at no {size} tried ({', '.join(others)})"
    rest = f"; not shown at {', '.join(others)}" if others else ", the smallest tried"
    first = next(at for at, (_, does, _) in enumerate(verdicts) if does)
    if not all(does for _, does, _ in verdicts[first:]):
        return f"{pay} at {size} {', '.join(paying)}{rest}"
    name, _, point = verdicts[first]
    few = f", n={point.n}: indicative only" if point.n < ENOUGH_SEEDS else ""
    return f"{pay} from {size} {name} on (efficiency {percent(point.efficiency, point.efficiency_ci95)}{few}){rest}"


def _name(cell: ScalingCell, size: str, telling: Sequence[str]) -> str:
    flops = cell.flops_per_sample
    if size != _MODEL or not flops:
        return cell.where[size]
    words = [f"{key.rpartition('.')[2]} {cell.where[key]}" if key != _MODEL else cell.where[key] for key in telling]
    return f"{' '.join(words)} ({flops / 1e6:.3g} MFLOP a sample)"


def _told_apart(rest: _Rest, all_rests: Sequence[_Rest]) -> str:
    """Return the settings that distinguish one row of cells from the others, as "key value"; "" for a single row."""
    rows = [dict(each) for each in all_rests]
    telling = [key for key, _ in rest if len({row.get(key) for row in rows}) > 1]
    return ", ".join(f"{key} {value}" for key, value in rest if key in telling)
