"""What was measured of a row of a comparison beside the metric: its speed, its cost, and its load.

Numbers are medians over seeds, and meant for native arms (`Arm.has_speed`) alone. The step time is a median, and so are
speed-ups, unless the mean of an arm's steps is another: then the throughput counts, which is by means
(`hpcml.analysis.steady.means_differ`). Where steps were not timed speed-ups are ratios of rates (`rate_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, replace
from functools import partial
from statistics import median

from hpcml.analysis.compare.result import Cost, Load, Speed
from hpcml.analysis.flags import Flag, FlagCode, flag
from hpcml.analysis.frame import Arm, by_seed, median_of, metric_value
from hpcml.analysis.limits import find_limits
from hpcml.analysis.nodes import MeasuredRatio, measured, ratio
from hpcml.analysis.rates import (
    SKIPPED,
    attained,
    find_signs,
    measured_tflops,
    median_usage,
    operations_doubts,
    samples_per_step,
)
from hpcml.analysis.steady import SteadyState, StepCurves
from hpcml.model.metric_goal import is_speed
from hpcml.model.records import RunRecord

_STEP_METRIC = "step_time_s"
_OPERATIONS = "total_gflop"  # so far, hence the last value is the whole run's
_SCOPES = ("gpu", "board", "shared")  # from a GPU's own energy to one that others draw as well

Steady = Mapping[str, SteadyState]  # by uid
_Read = Callable[[RunRecord], float | None]


def find_speed_up(
    arm: Arm, reference: Arm | None, steady: Steady, *, by_mean: bool, metric: str
) -> MeasuredRatio | None:
    """Return the ratio of times of a sample, the reference's over those of *arm*; None where there is none.

    Where samples are not known, times of a step are used if all runs have the same batch size; else None. Where no run
    of both timed its steps it is the ratio of their rates (`rate_of`), those of *arm* over the reference's.
    """
    if reference is None or reference is arm or not reference.has_speed or not arm.has_speed:
        return None
    timed = [run for run in (*arm.ok, *reference.ok) if run.uid in steady]
    if not timed:
        rate = partial(rate_of, metric=metric)
        return ratio(measured(arm.ok, rate), measured(reference.ok, rate))
    read = _per_sample(steady, by_mean=by_mean)
    if any(read(run) is None for run in timed):
        if len({run.params.get("training.batch_size") for run in (*arm.ok, *reference.ok)}) != 1:
            return None
        read = _of_step(steady, by_mean=by_mean)
    return ratio(measured(reference.ok, read), measured(arm.ok, read))


def rate_of(run: RunRecord, metric: str) -> float | None:
    """Return how fast *run* was in *metric*, where that is a speed, else as a benchmark measured it."""
    return metric_value(run, metric) if is_speed(metric) else measured_tflops(run)


def find_speed(arm: Arm, steady: Steady, speed_up: MeasuredRatio | None, *, by_mean: bool, metric: str) -> Speed:
    """Return the speed of *arm*, whose runs must all be native (`Arm.has_speed`)."""

    def milliseconds(read: Callable[[SteadyState], float]) -> float | None:
        by_seeds = by_seed(arm.ok, lambda run: read(steady[run.uid]) if run.uid in steady else None)
        return median_of(by_seeds, scale=1000)

    steps = by_seed(arm.ok, _of_step(steady, by_mean=by_mean))
    samples = by_seed(arm.ok, _per_sample(steady, by_mean=by_mean))
    rates = {} if steps else by_seed(arm.ok, partial(rate_of, metric=metric))
    all_known = bool(samples) and samples.keys() == steps.keys()
    return Speed(
        step_ms=milliseconds(lambda state: state.median_s),
        step_ms_p5=milliseconds(lambda state: state.p5_s),
        step_ms_p95=milliseconds(lambda state: state.p95_s),
        samples_per_s=median_of({seed: 1 / s for seed, s in samples.items()}) if all_known else None,
        speedup=None if speed_up is None else speed_up.value,
        speedup_ci95=None if speed_up is None else speed_up.ci95,
        speedup_paired=None if speed_up is None else speed_up.paired,
        n=len(steps or rates),
        wall_s=median_of(by_seed(arm.ok, lambda run: run.wall_s)),
        step_ms_mean=milliseconds(lambda state: state.mean_s),
        speedup_of="rates" if rates else "means" if by_mean else "medians",
        speedup_unit=None if speed_up is None else speed_up.unit,
    )


def _of_step(steady: Steady, *, by_mean: bool) -> _Read:
    def read(run: RunRecord) -> float | None:
        state = steady.get(run.uid)
        return None if state is None else state.mean_s if by_mean else state.median_s

    return read


def _per_sample(steady: Steady, *, by_mean: bool) -> _Read:
    step_s = _of_step(steady, by_mean=by_mean)

    def read(run: RunRecord) -> float | None:
        seconds, samples = step_s(run), samples_per_step(run)
        return None if seconds is None or samples is None else seconds / samples

    return read


def cost(arm: Arm, ratio_of_energies: MeasuredRatio | None) -> Cost | None:
    """Return GPU hours, energy (kJ, and J per sample) and CO2 (g) of *arm*; None where nothing was measured of any run.

    *ratio_of_energies* is that of `energy_ratio`.
    """
    known = [run.usage for run in arm.ok if run.usage is not None]
    if not known:
        return None
    energies = by_seed(arm.ok, energy_kj_of)
    sources = {usage.co2_source for usage in known if usage.co2_g is not None}
    co2_g = by_seed(arm.ok, lambda run: run.usage.co2_g if run.usage else None)
    with_energy = [usage for usage in known if usage.energy_j is not None]
    scopes = [usage.energy_scope for usage in with_energy if usage.energy_scope is not None]
    return Cost(
        gpu_hours=median_of(by_seed(arm.ok, gpu_hours_of)),
        energy_kj=median_of(energies),
        energy_method=_joined(usage.energy_method for usage in with_energy),
        energy_scope=max(scopes, key=_severity, default=None),
        energy_per_sample_j=median_of(by_seed(arm.ok, energy_per_sample_j_of)),
        energy_ratio=None if ratio_of_energies is None else ratio_of_energies.value,
        energy_ratio_ci95=None if ratio_of_energies is None else ratio_of_energies.ci95,
        energy_ratio_unit=None if ratio_of_energies is None else ratio_of_energies.unit,
        co2_g=median(co2_g.values()) if co2_g and len(sources) == 1 else None,  # by several factors it is no median
        co2_source=next(iter(sources)) if len(sources) == 1 else None,
        n=len(energies),
        energy_per_gflop_j=median_of(by_seed(arm.ok, energy_per_gflop_j_of)),
    )


def energy_ratio(arm: Arm, reference: Arm | None) -> MeasuredRatio | None:
    """Return the energy per sample of *arm* over that of *reference*; None where one has none, or no speed.

    That of benchmarks is per operation.
    """
    if reference is None or reference is arm or not reference.has_speed or not arm.has_speed:
        return None
    each = (ratio(measured(arm.ok, of), measured(reference.ok, of)) for of in _ENERGIES)
    return next((found for found in each if found is not None), None)


def cost_flags(arm: Arm) -> Iterator[Flag]:
    """Yield the reasons to doubt the energy of *arm*, and what was measured beside it."""
    known = [run.usage for run in arm.ok if run.usage is not None]
    of_all = f"of {len(arm.ok)} runs"
    if disagreeing := sum(usage.energy_disagrees for usage in known):
        what = f"counter and integral of power disagree by more than 5 % ({disagreeing} {of_all})"
        yield flag(FlagCode.ENERGY, what=what)
    if shared := sum(usage.energy_scope == "shared" for usage in known):
        yield flag(FlagCode.ENERGY, what=f"on GPUs not known to be the run's alone ({shared} {of_all})")
    unknown = len(arm.ok) - sum(usage.energy_j is not None for usage in known)
    if 0 < unknown < len(arm.ok):
        yield flag(FlagCode.ENERGY, what=f"not known of {unknown} {of_all}")
    if reasons := [usage.incomplete for usage in known if usage.incomplete]:
        what = f"not all was measured beside {len(reasons)} {of_all}: {min(reasons)}"
        yield flag(FlagCode.RECORDS, what=what)


def trained_samples(run: RunRecord) -> float | None:
    """Return how many samples *run* was trained on; None where its steps or their samples are not known."""
    steps, samples = run.metrics.get(_STEP_METRIC), samples_per_step(run)
    if steps is None or samples is None or not steps.n:
        return None
    # The last step is the better count where only every tenth was reported, the points where steps begin at 0.
    return samples * max(steps.n, steps.last_step or 0)


def energy_per_sample_j_of(run: RunRecord) -> float | None:
    """Return what the boards of *run*'s GPUs drew for each sample that it was trained on; None: not known."""
    if run.usage is None or run.usage.energy_j is None:
        return None
    samples = trained_samples(run)
    return run.usage.energy_j / samples if samples else None


def energy_per_gflop_j_of(run: RunRecord) -> float | None:
    """Return what the boards of *run*'s GPUs drew for each 10^9 operations that a benchmark did; None: not known."""
    done = run.metrics.get(_OPERATIONS)
    if measured_tflops(run) is None or done is None or not done.last or run.usage is None:
        return None
    return None if run.usage.energy_j is None else run.usage.energy_j / done.last


_ENERGIES = (energy_per_sample_j_of, energy_per_gflop_j_of)


def energy_kj_of(run: RunRecord) -> float | None:
    """Return what the boards of *run*'s GPUs drew in all; None: not known."""
    return None if run.usage is None or run.usage.energy_j is None else run.usage.energy_j / 1000


def gpu_hours_of(run: RunRecord) -> float | None:
    """Return the GPU hours of *run*; None without a GPU, or where it was not measured."""
    usage = run.usage
    return None if usage is None or usage.gpu_s is None or not usage.gpus else usage.gpu_s / 3600


def load(arm: Arm, steady: Steady, curves: StepCurves) -> tuple[Load | None, list[Flag]]:
    """Return the load of *arm* as medians over seeds, None where nothing of it is known, and its doubts.

    *steady* are the steady states by uid.
    """
    timed = [run for run in arm.ok if run.uid in steady or measured_tflops(run) is not None]
    rates = {run.uid: attained(run, steady.get(run.uid)) for run in timed}
    signs = find_signs(arm.ok, rates, steady, curves)
    peaks = {(rate.peak_tflops, rate.peak_basis) for rate in rates.values()}
    peak_tflops, peak_basis = peaks.pop() if len(peaks) == 1 else (None, None)
    rated = [run for run in arm.ok if run.uid in rates]
    found = Load(
        mean_power_w=median_usage(arm.ok, lambda usage: usage.mean_power_w),
        power_limit_w=median_usage(arm.ok, lambda usage: usage.power_limit_w),
        throttled_power_share=signs.throttled_power_share,
        throttled_thermal_share=signs.throttled_thermal_share,
        sm_mhz=median_usage(arm.ok, lambda usage: usage.sm_mhz),
        util_percent=signs.util_percent,
        tensor_percent=signs.tensor_percent,
        peak_memory_mb=median_of(by_seed(arm.ok, _peak_memory_mb)),
        achieved_tflops=median_of(by_seed(rated, lambda run: rates[run.uid].achieved_tflops)),
        peak_tflops=peak_tflops,
        peak_basis=peak_basis,
        mfu=signs.mfu,
        data_share=signs.data_share,
        communication_share=signs.communication_share,
        skipped_steps=median_of(by_seed(arm.ok, _skipped_steps)),
        limited_by=None,
    )
    flags = [flag(FlagCode.RECORDS, what=f"operations: {doubt}") for doubt in operations_doubts(arm.ok, signs.mfu)]
    if all(value is None for value in astuple(found)):
        return None, flags
    return replace(found, limited_by=next(iter(find_limits(signs)), None)), flags


def _severity(scope: str) -> int:
    return _SCOPES.index(scope) if scope in _SCOPES else len(_SCOPES)


def _joined(words: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({word for word in words if word is not None})) or None


def _peak_memory_mb(run: RunRecord) -> float | None:
    if run.work is not None and run.work.peak_allocated_mb is not None:
        return run.work.peak_allocated_mb
    return run.usage.max_memory_mb if run.usage is not None else None


def _skipped_steps(run: RunRecord) -> float | None:
    summary = run.metrics.get(SKIPPED)
    return summary.last if summary is not None else None
