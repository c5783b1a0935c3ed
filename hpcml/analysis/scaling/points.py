"""The points of a scaling cell: speed-up, efficiency and cost of each number of devices.

`sort_arms` sorts the runs on each number of devices into those with a speed and those without (and says why), `faster`
compares two numbers by a t test on logarithms, `build_point` puts a row of `hpcml scaling` together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcml.analysis.compare.measures import energy_kj_of, energy_per_sample_j_of, gpu_hours_of
from hpcml.analysis.compare.result import Excluded, Interval
from hpcml.analysis.flags import Flag, FlagCode, flag
from hpcml.analysis.frame import by_seed, median_of
from hpcml.analysis.nodes import Measured, MeasuredRatio, measured, node_flags, ratio
from hpcml.analysis.rates import samples_per_step, share_by_seed
from hpcml.analysis.scaling.cells import BATCH, Over
from hpcml.analysis.scaling.result import Kind, ScalingPoint
from hpcml.analysis.stats import BySeed
from hpcml.analysis.steady import (
    MIN_STEPS,
    SteadyState,
    StepCurves,
    Window,
    common_window,
    means_differ,
    steady_states,
)
from hpcml.model.choices import Numerics
from hpcml.model.own_program import says_nothing
from hpcml.model.records import Point, RunRecord
from hpcml.model.state import State
from hpcml.units import spell_percent

_WAITING = 0.05  # of a step's time: input that is waited for longer than this is told


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCell:
    """What all points of a cell are computed from."""

    kind: Kind
    over: Over
    arms: Mapping[int, ScalingArm]
    reference: int | None
    costs_s: Costs


Costs = Mapping[int, Sequence[Measured]]  # times of a sample, else of a step, in seconds by number of devices


def find_costs(kind: Kind, arms: Mapping[int, ScalingArm]) -> dict[int, list[Measured]]:
    """Return the times in seconds of each run, by number of devices, whose ratios are speed-ups; may be empty.

    Times of a sample, where a step's samples are known of all runs; else times of a step, in strong scaling alone,
    where all runs have the same batch size.
    """
    timed = {devices: arm for devices, arm in arms.items() if arm.steps_s}
    if all(set(arm.samples_s) == set(arm.steps_s) for arm in timed.values()):
        return {devices: arm.placed_samples_s for devices, arm in timed.items()}
    return {devices: arm.placed_steps_s for devices, arm in timed.items()} if kind == "strong" else {}


def faster(costs_s: Costs, few: int, many: int) -> MeasuredRatio | None:
    """Return how many times as fast *many* devices are as *few*, over seeds or nodes (`hpcml.analysis.nodes.ratio`).

    None where one of the two has no time.
    """
    return ratio(costs_s.get(few, ()), costs_s.get(many, ()))


def build_point(devices: int, cell: MeasuredCell) -> ScalingPoint:
    """Return the row of *devices* devices: speed-up against the reference, gain against the next smaller number.

    What cannot be computed is None. `cost` is 1 / efficiency: the device time of a sample, relative to the reference's.
    """
    arm, costs = cell.arms[devices], cell.costs_s
    speedup = gain = None
    if cell.reference is not None and devices != cell.reference:
        speedup = faster(costs, cell.reference, devices)
    if smaller := [n for n in costs if n < devices]:
        gain = faster(costs, max(smaller), devices)
    times = None if cell.reference is None else devices / cell.reference
    efficiency = None if speedup is None or times is None else speedup.value / times
    all_samples = bool(arm.samples_s) and set(arm.samples_s) == set(arm.steps_s)
    sample_s, step_s = median_of(arm.samples_s), median_of(arm.steps_s)
    return ScalingPoint(
        devices=devices,
        n=len(arm.steps_s),
        n_failed=len(arm.failed),
        n_unfinished=len(arm.unfinished),
        batch_size=_batch_size(arm),
        step_ms=None if step_s is None else step_s * 1000,
        samples_per_s=1 / sample_s if sample_s and all_samples else None,
        speedup=None if speedup is None else speedup.value,
        speedup_ci95=None if speedup is None else speedup.ci95,
        speedup_unit=None if speedup is None else speedup.unit,
        paired=None if speedup is None else speedup.paired,
        efficiency=efficiency,
        efficiency_ci95=None if speedup is None or times is None else _scaled(speedup.ci95, 1 / times),
        gain=None if gain is None else gain.value,
        gain_ci95=None if gain is None else gain.ci95,
        cost=None if efficiency is None else 1 / efficiency,
        gpu_hours=median_of(arm.gpu_hours),
        energy_kj=median_of(arm.energy_kj),
        energy_per_sample_j=median_of(arm.energy_per_sample_j),
        communication_share=median_of(arm.communication),
        flags=tuple(_flags(arm, cell, speedup)),
    )


def _flags(arm: ScalingArm, cell: MeasuredCell, speedup: MeasuredRatio | None) -> list[Flag]:
    flags = []
    reference = None if cell.reference is None else cell.arms[cell.reference]
    n = min(len(arm.steps_s), len(reference.steps_s)) if reference is not None else len(arm.steps_s)
    ended = len(arm.timed) + len(arm.silent) + len(arm.failed)
    if arm.failed:
        flags.append(flag(FlagCode.FAILED, n=len(arm.failed), of=ended, causes=causes(arm.failed)))
    flags += node_flags({"speed-up": speedup})
    if speedup is not None and speedup.unit == "seeds" and not speedup.paired and n > 1:
        how = "seeds do not match the reference's one to one: unpaired (Welch)"
        flags.append(flag(FlagCode.UNPAIRED, how=how))
    if extra := len(arm.timed) - len(arm.steps_s):
        how = f"{extra} more runs of the same seeds: averaged within the seed first"
        flags.append(flag(FlagCode.UNPAIRED, how=how))
    flags += _disagreements(arm, cell.over)
    waiting = median_of(arm.waiting)
    if waiting is not None and waiting >= _WAITING:
        what = f"waits for input {spell_percent(waiting)} of the time, which is not part of a step"
        flags.append(flag(FlagCode.SPEED, "doubt", what=what))
    return flags


def _disagreements(arm: ScalingArm, over: Over) -> Iterator[Flag]:
    """Yield a flag for each way in which the program reported other devices or samples than were configured."""
    used = [run.work.devices for run in arm.timed if run.work is not None and run.work.devices is not None]
    if over is Over.threads:
        used = [run.facts["threads"] for run in arm.timed if isinstance(run.facts.get("threads"), int)]
    if over is not Over.nodes and any(number != arm.devices for number in used):
        numbers = ", ".join(map(str, sorted(set(used))))
        yield flag(FlagCode.RECORDS, what=f"the program says that it used {numbers}, not {arm.devices}")
    sizes = by_seed(arm.timed, lambda run: run.work.samples if run.work is not None else None)
    batch = _batch_size(arm)
    if batch is not None and any(size != batch for size in sizes.values()):
        what = f"a step took other samples than the {batch} that were configured: the program's number counts"
        yield flag(FlagCode.RECORDS, what=what)


def _batch_size(arm: ScalingArm) -> int | None:
    runs = (*arm.timed, *arm.failed, *arm.unfinished)
    sizes = {None if says_nothing(run.params, BATCH) else run.params.get(BATCH) for run in runs}
    size = sizes.pop() if len(sizes) == 1 else None
    return int(size) if isinstance(size, int | float) else None


def _scaled(interval: Interval | None, factor: float) -> Interval | None:
    if interval is None:
        return None
    return Interval(low=interval.low * factor, high=interval.high * factor, confidence=interval.confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingArm:
    """The runs on one number of devices; the numbers by seed are of `timed` alone."""

    devices: int
    timed: tuple[RunRecord, ...]  # completed, native, with a steady state: the only ones with a speed
    failed: tuple[RunRecord, ...]
    unfinished: tuple[RunRecord, ...]
    silent: tuple[tuple[RunRecord, str], ...]  # completed, and the reason why there is no speed
    steps_s: BySeed  # medians
    samples_s: BySeed  # a sample's time, over all devices; only where how many a step takes is known
    placed_steps_s: list[Measured]  # what speed-ups are of
    placed_samples_s: list[Measured]
    communication: BySeed  # share of a step's time
    waiting: BySeed  # for input, of the time from step to step
    gpu_hours: BySeed
    energy_kj: BySeed
    energy_per_sample_j: BySeed


def sort_arms(
    by_count: Mapping[int, Sequence[RunRecord]], curves: StepCurves
) -> tuple[dict[int, ScalingArm], Window | None, bool]:
    """Return the runs of a cell by number of devices, the window in which all were timed, and whether by means.

    *by_count* is the runs by number of devices. The window is None where the last halves of the runs have no step in
    common: each run is then timed in its own. Speeds are by means where those of `hpcml compare` would be.
    """
    candidates = {
        run.uid: curves.step_s.get(run.uid, ())
        for runs in by_count.values()
        for run in runs
        if run.state is State.COMPLETED and run.numerics == Numerics.native.name
    }
    window = common_window(candidates.values())
    # Runs of so different lengths that no step is late in all: each is then seen in its own last half.
    steady = steady_states(candidates, window)
    states = {n: [steady[run.uid] for run in runs if run.uid in steady] for n, runs in sorted(by_count.items())}
    by_mean = means_differ(states.values())
    arms = {n: _arm(n, runs, steady, curves, by_mean=by_mean) for n, runs in by_count.items()}
    return arms, window, by_mean


def why_no_speed(run: RunRecord, curve: Sequence[Point]) -> str:
    """Return in words why a completed *run* whose ``step_time_s`` curve is *curve* has no speed."""
    if run.numerics != Numerics.native.name:
        return f"numerics {run.numerics}: its times say nothing about the device"
    if not curve:
        return "step_time_s was not reported"
    return f"no steady step time: fewer than {MIN_STEPS} steps in the window have a time above 0"


def causes(runs: Sequence[RunRecord]) -> str:
    """Return the causes of failure of *runs* in words, with their number where it is more than one."""
    words = Counter(run.cause or run.state.value for run in runs)
    return ", ".join(f"{word}{f' ({n})' if n > 1 else ''}" for word, n in sorted(words.items()))


def left_out(arm: ScalingArm) -> list[Excluded]:
    """Return the runs of *arm* without a speed, each with its reason in words."""
    ended = [(run, f"{run.state}{f': {run.reason}' if run.reason else ''}") for run in (*arm.failed, *arm.unfinished)]
    return [Excluded(uid=run.uid, level=str(arm.devices), reason=reason) for run, reason in (*ended, *arm.silent)]


def _arm(
    devices: int,
    runs: Sequence[RunRecord],
    steady: Mapping[str, SteadyState],
    curves: StepCurves,
    *,
    by_mean: bool,
) -> ScalingArm:
    timed = tuple(run for run in runs if run.uid in steady)
    completed = [run for run in runs if run.state is State.COMPLETED and run.uid not in steady]
    step_s = {uid: state.mean_s if by_mean else state.median_s for uid, state in steady.items()}

    def per_sample(run: RunRecord) -> float | None:
        samples = samples_per_step(run)
        return None if samples is None else step_s[run.uid] / samples

    return ScalingArm(
        devices=devices,
        timed=timed,
        failed=tuple(run for run in runs if run.state is not State.COMPLETED and run.state.is_final),
        unfinished=tuple(run for run in runs if not run.state.is_final),
        silent=tuple((run, why_no_speed(run, curves.step_s.get(run.uid, ()))) for run in completed),
        steps_s=by_seed(timed, lambda run: steady[run.uid].median_s),
        samples_s=by_seed(timed, per_sample),
        placed_steps_s=measured(timed, lambda run: step_s[run.uid]),
        placed_samples_s=measured(timed, per_sample),
        communication=share_by_seed(curves.communication_s, timed, steady, curves.step_s, is_inside=True),
        waiting=share_by_seed(curves.waiting_s, timed, steady, curves.step_s, is_inside=False),
        gpu_hours=by_seed(timed, gpu_hours_of),
        energy_kj=by_seed(timed, energy_kj_of),
        energy_per_sample_j=by_seed(timed, energy_per_sample_j_of),
    )
