"""The runs on one number of devices: which have a speed, which do not and why, and one number per seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hpcml.analysis.arms import BySeed, by_seed
from hpcml.analysis.attained import samples_per_step
from hpcml.analysis.costs import trained_samples
from hpcml.analysis.steady import MIN_STEPS, SteadyState, Window, common_window, steady_state
from hpcml.comparison import Excluded
from hpcml.precision import Numerics
from hpcml.records import Point, RunRecord
from hpcml.states import State

Curves = Mapping[str, Sequence[Point]]  # uid -> points


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCurves:
    """What the programs reported of each step, by uid."""

    step_s: Curves
    communication_s: Curves
    waiting_s: Curves  # for input


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingArm:
    """One number of devices."""

    devices: int
    timed: tuple[RunRecord, ...]  # completed, native, with a steady state: the only ones with a speed
    failed: tuple[RunRecord, ...]
    unfinished: tuple[RunRecord, ...]
    silent: tuple[tuple[RunRecord, str], ...]  # completed, and the reason why there is no speed
    steps_s: BySeed
    samples_s: BySeed  # a sample's time, over all devices; only where how many a step takes is known
    communication: BySeed  # share of a step's time
    waiting: BySeed  # for input, over a step's time
    gpu_hours: BySeed
    energy_kj: BySeed
    energy_per_sample_j: BySeed


def sort_arms(
    by_count: Mapping[int, Sequence[RunRecord]], curves: StepCurves
) -> tuple[dict[int, ScalingArm], Window | None]:
    """Return the arms of a cell by number of devices, and the steps that were looked at in all of them."""
    candidates = {
        run.uid: curves.step_s.get(run.uid, ())
        for runs in by_count.values()
        for run in runs
        if run.state is State.COMPLETED and run.numerics == Numerics.native.name
    }
    window = common_window(candidates.values())
    # Runs of so different lengths that no step is late in all: each is then seen in its own last half.
    found = {uid: steady_state(curve, window) for uid, curve in candidates.items()}
    steady = {uid: state for uid, state in found.items() if state is not None}
    return {devices: _arm(devices, runs, steady, curves) for devices, runs in by_count.items()}, window


def why_no_speed(run: RunRecord, curve: Sequence[Point]) -> str:
    """Return in words why a completed run without a steady state has no speed."""
    if run.numerics != Numerics.native.name:
        return f"numerics {run.numerics}: its times say nothing about the device"
    if not curve:
        return "step_time_s was not reported"
    return f"no steady step time: below {MIN_STEPS} steps in the window"


def share_of_a_step(curve: Sequence[Point], steady: SteadyState) -> float | None:
    """Return the median of *curve* in the steady steps over the step's time; None where it says nothing of them."""
    values = [p.value for p in curve if steady.window.from_step <= p.step <= steady.window.to_step and p.value >= 0]
    return median(values) / steady.median_s if values else None


def causes(runs: Sequence[RunRecord]) -> str:
    """Return why *runs* ended without success, counted."""
    words = Counter(run.cause or run.state.value for run in runs)
    return ", ".join(f"{word}{f' ({n})' if n > 1 else ''}" for word, n in sorted(words.items()))


def left_out(arm: ScalingArm) -> list[Excluded]:
    """Return the runs of *arm* without a speed, each with its reason."""
    ended = [(run, f"{run.state}{f': {run.reason}' if run.reason else ''}") for run in (*arm.failed, *arm.unfinished)]
    return [Excluded(uid=run.uid, level=str(arm.devices), reason=reason) for run, reason in (*ended, *arm.silent)]


def _arm(devices: int, runs: Sequence[RunRecord], steady: Mapping[str, SteadyState], curves: StepCurves) -> ScalingArm:
    timed = tuple(run for run in runs if run.uid in steady)
    completed = [run for run in runs if run.state is State.COMPLETED and run.uid not in steady]
    step_s = {uid: state.median_s for uid, state in steady.items()}

    def per_sample(run: RunRecord) -> float | None:
        samples = samples_per_step(run)
        return None if samples is None else step_s[run.uid] / samples

    def share(values: Curves) -> Callable[[RunRecord], float | None]:
        return lambda run: share_of_a_step(values.get(run.uid, ()), steady[run.uid])

    return ScalingArm(
        devices=devices,
        timed=timed,
        failed=tuple(run for run in runs if run.state is not State.COMPLETED and run.state.is_final),
        unfinished=tuple(run for run in runs if not run.state.is_final),
        silent=tuple((run, why_no_speed(run, curves.step_s.get(run.uid, ()))) for run in completed),
        steps_s=by_seed(timed, lambda run: step_s[run.uid]),
        samples_s=by_seed(timed, per_sample),
        communication=by_seed(timed, share(curves.communication_s)),
        waiting=by_seed(timed, share(curves.waiting_s)),
        gpu_hours=by_seed(timed, _gpu_hours),
        energy_kj=by_seed(timed, _energy_kj),
        energy_per_sample_j=by_seed(timed, _energy_per_sample_j),
    )


def _gpu_hours(run: RunRecord) -> float | None:
    seconds = run.usage.gpu_s if run.usage is not None else None
    return None if seconds is None else seconds / 3600


def _energy_kj(run: RunRecord) -> float | None:
    energy_j = _energy_j(run)
    return None if energy_j is None else energy_j / 1000


def _energy_j(run: RunRecord) -> float | None:
    return None if run.usage is None else run.usage.energy_j


def _energy_per_sample_j(run: RunRecord) -> float | None:
    energy_j, samples = _energy_j(run), trained_samples(run)
    return None if energy_j is None or not samples else energy_j / samples
