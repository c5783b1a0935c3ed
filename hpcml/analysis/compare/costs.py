"""The cost and the load of a row of a comparison: GPU hours, energy and CO2; power, utilization and share of the peak.

All numbers are medians over seeds of what was measured beside the runs. `cost` and `load` are meant for native arms
(`Arm.has_speed`) alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from statistics import median

from hpcml.analysis.compare.arms import Arm, BySeed, by_seed, median_of
from hpcml.analysis.compare.nodes import Placed, PlacedRatio, ratio_over_places
from hpcml.analysis.steady import SteadyState, share_of_time
from hpcml.analysis.utilization.limits import Signs, find_limits
from hpcml.analysis.utilization.rates import SKIPPED, TENSOR_FORMATS, Rate, attained, samples_per_step, skipped_share
from hpcml.model.comparison import Cost, Load
from hpcml.model.records import Point, RunRecord, Usage

_STEP_METRIC = "step_time_s"
_SCOPES = ("gpu", "board", "shared")  # from a GPU's own energy to one that others draw as well


def cost(arm: Arm, reference: Arm | None) -> Cost | None:
    """Return GPU hours, energy (kJ, and J per sample) and CO2 (g) of *arm*; None where nothing was measured of any run.

    The energy ratio to *reference* is per sample (`ratio_over_places`), None without a reference that has a speed.
    """
    known = [run.usage for run in arm.ok if run.usage is not None]
    if not known:
        return None
    energies = by_seed(arm.ok, energy_kj_of)
    ratio = energy_ratio(arm, reference)
    sources = {usage.co2_source for usage in known if usage.co2_g is not None}
    co2_g = by_seed(arm.ok, lambda run: run.usage.co2_g if run.usage else None)
    with_energy = [usage for usage in known if usage.energy_j is not None]
    scopes = [usage.energy_scope for usage in with_energy if usage.energy_scope is not None]
    return Cost(
        gpu_hours=median_of(by_seed(arm.ok, gpu_hours_of)),
        energy_kj=median_of(energies),
        energy_method=_joined(usage.energy_method for usage in with_energy),
        energy_scope=max(scopes, key=_severity, default=None),
        energy_per_sample_j=median_of(_per_sample_j(arm)),
        energy_ratio=None if ratio is None else ratio.value,
        energy_ratio_ci95=None if ratio is None else ratio.ci95,
        energy_ratio_unit=None if ratio is None else ratio.unit,
        co2_g=median(co2_g.values()) if co2_g and len(sources) == 1 else None,  # by several factors it is no median
        co2_source=next(iter(sources)) if len(sources) == 1 else None,
        n=len(energies),
    )


def cost_flags(arm: Arm) -> list[str]:
    """Return the reasons to doubt the energy of *arm*, one line each."""
    known = [run.usage for run in arm.ok if run.usage is not None]
    flags = []
    if disagreeing := sum(usage.energy_disagrees for usage in known):
        flags.append(
            f"energy: counter and integral of power disagree by more than 5 % ({disagreeing} of {len(arm.ok)} runs)"
        )
    if shared := sum(usage.energy_scope == "shared" for usage in known):
        flags.append(f"energy: on GPUs not known to be the run's alone ({shared} of {len(arm.ok)} runs)")
    unknown = len(arm.ok) - sum(usage.energy_j is not None for usage in known)
    if 0 < unknown < len(arm.ok):
        flags.append(f"energy: not known of {unknown} of {len(arm.ok)} runs")
    return flags


def trained_samples(run: RunRecord) -> float | None:
    """Return how many samples *run* was trained on; None where its steps or their samples are not known."""
    steps, samples = run.metrics.get(_STEP_METRIC), samples_per_step(run)
    if steps is None or samples is None or not steps.n:
        return None
    # The last step is the better count where only every tenth was reported, the points where steps begin at 0.
    return samples * max(steps.n, steps.last_step or 0)


def energy_ratio(arm: Arm, reference: Arm | None) -> PlacedRatio | None:
    """Return the energy per sample of *arm* over that of *reference*; None where one has none, or no speed."""
    if reference is None or reference is arm or not reference.has_speed:
        return None
    return ratio_over_places(_placed_j(arm), _placed_j(reference))


def _placed_j(arm: Arm) -> list[Placed]:
    found = [(run.seed, place, energy_per_sample_j_of(run)) for run, place in zip(arm.ok, arm.places, strict=True)]
    return [Placed(seed, place, joules) for seed, place, joules in found if joules is not None]


def _per_sample_j(arm: Arm) -> BySeed:
    return by_seed(arm.ok, energy_per_sample_j_of)


def energy_per_sample_j_of(run: RunRecord) -> float | None:
    """Return what the boards of *run*'s GPUs drew for each sample that it was trained on; None: not known."""
    if run.usage is None or run.usage.energy_j is None:
        return None
    samples = trained_samples(run)
    return run.usage.energy_j / samples if samples else None


def energy_kj_of(run: RunRecord) -> float | None:
    """Return what the boards of *run*'s GPUs drew in all; None: not known."""
    return None if run.usage is None or run.usage.energy_j is None else run.usage.energy_j / 1000


def gpu_hours_of(run: RunRecord) -> float | None:
    """Return the GPU hours of *run*; None without a GPU, or where it was not measured."""
    usage = run.usage
    return None if usage is None or usage.gpu_s is None or not usage.gpus else usage.gpu_s / 3600


def _severity(scope: str) -> int:
    return _SCOPES.index(scope) if scope in _SCOPES else len(_SCOPES)


def _joined(words: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({word for word in words if word is not None})) or None


_Curves = Mapping[str, Sequence[Point]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the steady runs of an arm attained."""

    counted: Mapping[str, Rate]  # by uid, of the runs whose program counted its operations
    peak: tuple[float | None, str | None]  # that of all of them in TFLOP/s and its basis; None where they have several


NO_RATES = Rates(counted={}, peak=(None, None))


def find_rates(arm: Arm, steady: Mapping[str, SteadyState]) -> Rates:
    """Return the rates of the runs of *arm* that have a steady state."""
    rates = {run.uid: attained(run, steady[run.uid]) for run in arm.ok if run.uid in steady}
    counted = {uid: rate for uid, rate in rates.items() if rate.achieved_tflops is not None}
    peaks = {(rate.peak_tflops, rate.peak_basis) for rate in rates.values()}
    return Rates(counted=counted, peak=peaks.pop() if len(peaks) == 1 else (None, None))


def load(
    arm: Arm,
    steady: Mapping[str, SteadyState],
    rates: Rates,
    *,
    steps: _Curves,
    data: _Curves,
    communication: _Curves,
) -> Load | None:
    """Return the load of *arm* as medians over seeds; None where nothing of it is known.

    *steps*, *data* and *communication* are the curves ``step_time_s``, ``data_time_s`` and ``communication_time_s`` by
    uid, *steady* the steady states by uid, and *rates* are those of *arm*.
    """
    peak_tflops, peak_basis = rates.peak
    measured = [run for run in arm.ok if run.usage is not None]
    counted = [run for run in arm.ok if run.uid in rates.counted] if rates.counted else []

    def usage(read: Callable[[Usage], float | None]) -> float | None:
        return median_of(by_seed(measured, lambda run: None if run.usage is None else read(run.usage)))

    def rate(read: Callable[[Rate], float | None]) -> float | None:
        return median_of(by_seed(counted, lambda run: read(rates.counted[run.uid])))

    def share(of: _Curves, *, is_inside: bool) -> float | None:
        known = [run for run in arm.ok if run.uid in of and run.uid in steady] if of else ()
        return median_of(
            by_seed(known, lambda r: share_of_time(of[r.uid], steps[r.uid], steady[r.uid], is_inside=is_inside))
        )

    found = Load(
        mean_power_w=usage(lambda u: u.mean_power_w),
        power_limit_w=usage(lambda u: u.power_limit_w),
        throttled_power_share=usage(lambda u: u.throttled_power_share),
        throttled_thermal_share=usage(lambda u: u.throttled_thermal_share),
        sm_mhz=usage(lambda u: u.sm_mhz),
        util_percent=usage(lambda u: u.util_percent),
        tensor_percent=usage(lambda u: u.tensor_percent),
        peak_memory_mb=median_of(by_seed(arm.ok, _peak_memory_mb)),
        achieved_tflops=rate(lambda r: r.achieved_tflops),
        peak_tflops=peak_tflops,
        peak_basis=peak_basis,
        mfu=rate(lambda r: r.mfu),
        data_share=share(data, is_inside=False),
        communication_share=share(communication, is_inside=True),
        skipped_steps=median_of(by_seed(arm.ok, _skipped_steps)),
        limited_by=None,
    )
    is_known = any(value is not None for value in astuple(found))
    return replace(found, limited_by=_limited_by(arm, steady, found, usage)) if is_known else None


def _limited_by(
    arm: Arm,
    steady: Mapping[str, SteadyState],
    known: Load,
    usage: Callable[[Callable[[Usage], float | None]], float | None],
) -> str | None:
    """Return the first limit that `hpcml peak` would name, None where it names none."""
    step_s = median_of(by_seed(arm.ok, lambda run: steady[run.uid].median_s if run.uid in steady else None))
    signs = Signs(
        step_s=step_s,
        data_share=known.data_share,
        communication_share=known.communication_share,
        util_percent=known.util_percent,
        sm_active_percent=usage(lambda u: u.sm_active_percent),
        tensor_percent=known.tensor_percent,
        dram_percent=usage(lambda u: u.dram_percent),
        throttled_power_share=known.throttled_power_share,
        throttled_thermal_share=known.throttled_thermal_share,
        skipped_share=median_of(by_seed(arm.ok, skipped_share)),
        mfu=known.mfu,
        uses_tensor_cores=all(run.precision_effective in TENSOR_FORMATS for run in arm.ok),
    )
    return next(iter(find_limits(signs)), None)


def load_flags(arm: Arm, rates: Rates) -> list[str]:
    """Return the reasons to doubt the load of *arm*, one line each."""
    flags = []
    reasons = [run.usage.incomplete for run in arm.ok if run.usage is not None and run.usage.incomplete]
    if reasons:
        flags.append(f"not all was measured beside {len(reasons)} of {len(arm.ok)} runs: {min(reasons)}")
    if any(rate.mfu is not None and rate.mfu > 1 for rate in rates.counted.values()):
        flags.append("more than the peak: the operations are miscounted, or others than the measured precision's")
    doubts = sorted({run.work.flops_doubt for run in arm.ok if run.work is not None and run.work.flops_doubt})
    if doubts:
        flags.append(f"operations: {doubts[0]}")
    return flags


def _peak_memory_mb(run: RunRecord) -> float | None:
    if run.work is not None and run.work.peak_allocated_mb is not None:
        return run.work.peak_allocated_mb
    return run.usage.max_memory_mb if run.usage is not None else None


def _skipped_steps(run: RunRecord) -> float | None:
    summary = run.metrics.get(SKIPPED)
    return summary.last if summary is not None else None
