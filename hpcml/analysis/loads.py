"""How hard the runs of a row worked their devices: what was measured beside them, and their share of the peak."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hpcml.analysis.arms import Arm, by_seed, median_of
from hpcml.analysis.attained import Rate, attained
from hpcml.analysis.attainment_limits import Signs, find_limits
from hpcml.analysis.steady import SteadyState, Window
from hpcml.comparison import Load
from hpcml.precision import PrecisionName
from hpcml.records import Point, RunRecord, Usage

_SKIPPED = "skipped_steps"  # so far, hence the last value is the whole run's
_TENSOR_FORMATS = frozenset(PrecisionName.__members__) - {PrecisionName.fp32.name, PrecisionName.fp64.name}
_Curves = Mapping[str, Sequence[Point]]


def find_rates(arm: Arm, steady: Mapping[str, SteadyState]) -> dict[str, Rate]:
    """Return what each run of *arm* attained, by uid, where it has a steady state."""
    return {run.uid: attained(run, steady[run.uid]) for run in arm.ok if run.uid in steady}


def load(
    arm: Arm,
    steady: Mapping[str, SteadyState],
    rates: Mapping[str, Rate],
    *,
    steps: _Curves,
    data: _Curves,
    communication: _Curves,
) -> Load | None:
    """Return the load of a native *arm*, by medians over seeds; None where nothing of it is known.

    *steps*, *data* and *communication* are the curves ``step_time_s``, ``data_time_s`` and ``communication_time_s``.
    """
    peaks = {(rate.peak_tflops, rate.peak_basis) for rate in rates.values()}
    peak_tflops, peak_basis = peaks.pop() if len(peaks) == 1 else (None, None)

    def usage(read: Callable[[Usage], float | None]) -> float | None:
        return median_of(by_seed(arm.ok, lambda run: None if run.usage is None else read(run.usage)))

    def rate(read: Callable[[Rate], float | None]) -> float | None:
        return median_of(by_seed(arm.ok, lambda run: read(rates[run.uid]) if run.uid in rates else None))

    def share(of: _Curves, *, is_inside: bool) -> float | None:
        shares = by_seed(
            arm.ok,
            lambda run: _share(of.get(run.uid, ()), steps.get(run.uid, ()), steady.get(run.uid), is_inside=is_inside),
        )
        return median_of(shares)

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
    return None if found == _NOTHING else replace(found, limited_by=_limited_by(arm, steady, found))


def _limited_by(arm: Arm, steady: Mapping[str, SteadyState], known: Load) -> str | None:
    """Return the likeliest limit, by the rules of `hpcml peak`."""
    step_s = median_of(by_seed(arm.ok, lambda run: steady[run.uid].median_s if run.uid in steady else None))
    skipped = median_of(by_seed(arm.ok, _skipped_share))
    signs = Signs(
        step_s=step_s,
        data_share=known.data_share,
        communication_share=known.communication_share,
        util_percent=known.util_percent,
        tensor_percent=known.tensor_percent,
        throttled_power_share=known.throttled_power_share,
        throttled_thermal_share=known.throttled_thermal_share,
        skipped_share=skipped,
        mfu=known.mfu,
        uses_tensor_cores=all(run.precision_effective in _TENSOR_FORMATS for run in arm.ok),
    )
    return next(iter(find_limits(signs)), None)


def load_flags(arm: Arm, rates: Mapping[str, Rate]) -> list[str]:
    """Return what is doubtful of the load of *arm*."""
    flags = []
    reasons = [run.usage.incomplete for run in arm.ok if run.usage is not None and run.usage.incomplete]
    if reasons:
        flags.append(f"not all was measured beside {len(reasons)} of {len(arm.ok)} runs: {min(reasons)}")
    if any(rate.mfu is not None and rate.mfu > 1 for rate in rates.values()):
        flags.append("more than the peak: the operations are miscounted, or others than the measured precision's")
    doubts = sorted({run.work.flops_doubt for run in arm.ok if run.work is not None and run.work.flops_doubt})
    if doubts:
        flags.append(f"operations: {doubts[0]}")
    return flags


def _share(
    part: Sequence[Point], steps: Sequence[Point], steady: SteadyState | None, *, is_inside: bool
) -> float | None:
    """Return the share that *part* has in the time of the steady steps, which hold it or (waiting for data) do not."""
    if steady is None or not part:
        return None
    taken = _within(part, steady.window)
    whole = _within(steps, steady.window)
    common = taken.keys() & whole.keys()
    total_part, total = sum(taken[step] for step in common), sum(whole[step] for step in common)
    total += 0.0 if is_inside else total_part
    return total_part / total if total > 0 else None


def _within(curve: Sequence[Point], window: Window) -> dict[int, float]:
    return {p.step: p.value for p in curve if window.from_step <= p.step <= window.to_step and p.value >= 0}


def _peak_memory_mb(run: RunRecord) -> float | None:
    if run.work is not None and run.work.peak_allocated_mb is not None:
        return run.work.peak_allocated_mb
    return run.usage.max_memory_mb if run.usage is not None else None


def _skipped_share(run: RunRecord) -> float | None:
    summary = run.metrics.get(_SKIPPED)
    return summary.last / summary.last_step if summary and summary.last is not None and summary.last_step else None


def _skipped_steps(run: RunRecord) -> float | None:
    summary = run.metrics.get(_SKIPPED)
    return summary.last if summary is not None else None


_NOTHING = Load(
    mean_power_w=None,
    power_limit_w=None,
    throttled_power_share=None,
    throttled_thermal_share=None,
    sm_mhz=None,
    util_percent=None,
    tensor_percent=None,
    peak_memory_mb=None,
    achieved_tflops=None,
    peak_tflops=None,
    peak_basis=None,
    mfu=None,
    data_share=None,
    communication_share=None,
    skipped_steps=None,
    limited_by=None,
)
