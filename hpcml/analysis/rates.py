"""Throughput and MFU of one run in steady state: samples, tokens and FLOP/s, and their share of the device's peak.

MFU (model FLOPs utilization) is the operations that the model needs, nothing computed twice, over time and peak
(A. Chowdhery et al., PaLM, arXiv:2204.02311, appendix B).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcml.analysis.frame import by_seed, median_of
from hpcml.analysis.limits import Signs
from hpcml.analysis.steady import Curves, SteadyState, StepCurves, share_of_time
from hpcml.model import hardware
from hpcml.model.choices import Numerics
from hpcml.model.precision import PrecisionName
from hpcml.model.records import RunRecord, Usage

SKIPPED = "skipped_steps"  # by loss scaling so far, hence the last value is the whole run's
TENSOR_FORMATS = frozenset(PrecisionName.__members__) - {PrecisionName.fp32.name, PrecisionName.fp64.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One run in steady state; None: not known. `why_no_mfu` says in words what is missing where `mfu` is None."""

    step_s: float | None  # None: a benchmark, which says its own rate
    devices: int | None
    samples_per_s: float | None  # over all devices
    tokens_per_s: float | None
    achieved_tflops: float | None  # of one device; the model's operations, nothing computed twice
    peak_tflops: float | None  # of one device in the effective precision, dense
    peak_basis: str | None  # data sheet | uncertain | derived; of a CPU: given | measured by model=gemm
    bandwidth_gbs: float | None  # of the device's memory, at most
    mfu: float | None  # achieved over peak
    why_no_mfu: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPeaks:
    """The peaks that CPUs are measured against: those *given* by precision, else the fastest products of matrices."""

    given: Mapping[str, float] = field(default_factory=dict)  # TFLOP/s
    measured: Mapping[tuple[object, ...], float] = field(default_factory=dict)  # by `_cpu_of`

    def of(self, run: RunRecord) -> hardware.Peak | None:
        """Return the peak of the CPU of *run* in its measured precision; None: not known."""
        precision = _measured_precision(run)
        if precision is not None and precision.name in self.given:
            return hardware.Peak(tflops=self.given[precision.name], basis=hardware.Basis.given)
        found = self.measured.get(_cpu_of(run))
        return None if found is None else hardware.Peak(tflops=found, basis=hardware.Basis.measured)


NO_PEAKS = CpuPeaks()


def cpu_peaks(runs: Iterable[RunRecord], given: Mapping[str, float]) -> CpuPeaks:
    """Return the peaks *given*, and the fastest rate of matrix products (`model=gemm`) of each CPU among *runs*.

    A CPU is one of a model with as many threads, in one measured precision.
    """
    measured: dict[tuple[object, ...], float] = {}
    for run in runs:
        rate = run.metrics.get("gflops")
        if run.params.get("model.recipe") == "gemm" and rate is not None and rate.max is not None:
            measured[_cpu_of(run)] = max(measured.get(_cpu_of(run), 0.0), rate.max / 1000)
    return CpuPeaks(given=given, measured=measured)


def _cpu_of(run: RunRecord) -> tuple[object, ...]:
    return *(run.facts.get(fact) for fact in ("device", "cpu_model", "threads")), run.precision_effective


def attained(run: RunRecord, steady: SteadyState | None, cpus: CpuPeaks = NO_PEAKS) -> Rate:
    """Return the rate of *run* in its *steady* state, or where that is None, the one that a benchmark measured itself.

    The peak is that of the precision that was measured, never of the one that was asked for; an emulated run has none,
    since its arithmetic is not done by the units of that precision.
    """
    work, step_s = run.work, None if steady is None else steady.median_s
    devices = work.devices if work is not None and work.devices else None
    samples, tokens = samples_per_step(run), work.tokens if work is not None else None
    achieved = None if step_s is not None else measured_tflops(run)
    if step_s is not None and work is not None and work.model_flops is not None and devices is not None:
        achieved = work.model_flops / devices / step_s / 1e12
    is_cpu = run.facts.get("device") == "cpu"
    model = None if is_cpu else hardware.gpu_of(run.facts)
    precision = _measured_precision(run)
    peak = cpus.of(run) if is_cpu else model.peak(precision) if model is not None and precision is not None else None
    return Rate(
        step_s=step_s,
        devices=devices,
        samples_per_s=None if samples is None or step_s is None else samples / step_s,
        tokens_per_s=None if tokens is None or step_s is None else tokens / step_s,
        achieved_tflops=achieved,
        peak_tflops=None if peak is None else peak.tflops,
        peak_basis=None if peak is None else peak.basis.value,
        bandwidth_gbs=None if model is None else model.bandwidth_gbs,
        mfu=None if achieved is None or peak is None else achieved / peak.tflops,
        why_no_mfu=_what_is_missing(run, achieved=achieved, model=model, precision=precision, peak=peak),
    )


def median_usage(runs: Sequence[RunRecord], read: Callable[[Usage], float | None]) -> float | None:
    """Return the median over seeds of what was measured beside *runs*; None where it was not."""
    return median_of(by_seed(runs, lambda run: None if run.usage is None else read(run.usage)))


def share_by_seed(
    curves: Curves, runs: Sequence[RunRecord], steady: Mapping[str, SteadyState], steps: Curves, *, is_inside: bool
) -> Mapping[int, float]:
    """Return the `share_of_time` of *curves* by seed, of those of *runs* that have them."""
    known = [run for run in runs if run.uid in curves and run.uid in steady]
    return by_seed(
        known,
        lambda run: share_of_time(curves[run.uid], steps[run.uid], steady[run.uid], is_inside=is_inside),
    )


def find_signs(
    runs: Sequence[RunRecord], rates: Mapping[str, Rate], steady: Mapping[str, SteadyState], curves: StepCurves
) -> Signs:
    """Return what was measured of *runs*, medians over seeds, whose *rates* and *steady* states are by uid."""
    known = [run for run in runs if run.uid in rates]
    steps = curves.step_s
    return Signs(
        step_s=median_of(by_seed(known, lambda run: rates[run.uid].step_s)),
        data_share=median_of(share_by_seed(curves.waiting_s, runs, steady, steps, is_inside=False)),
        communication_share=median_of(share_by_seed(curves.communication_s, runs, steady, steps, is_inside=True)),
        util_percent=median_usage(runs, lambda usage: usage.util_percent),
        sm_active_percent=median_usage(runs, lambda usage: usage.sm_active_percent),
        tensor_percent=median_usage(runs, lambda usage: usage.tensor_percent),
        dram_percent=median_usage(runs, lambda usage: usage.dram_percent),
        throttled_power_share=median_usage(runs, lambda usage: usage.throttled_power_share),
        throttled_thermal_share=median_usage(runs, lambda usage: usage.throttled_thermal_share),
        skipped_share=median_of(by_seed(runs, skipped_share)),
        mfu=median_of(by_seed(known, lambda run: rates[run.uid].mfu)),
        uses_tensor_cores=all(run.precision_effective in TENSOR_FORMATS for run in runs),
    )


def operations_doubts(runs: Sequence[RunRecord], mfu: float | None) -> list[str]:
    """Return why the count of operations of *runs* may be wrong, a line each."""
    doubts = (
        ["more than the peak: they are miscounted, or others than the measured precision's"] if (mfu or 0) > 1 else []
    )
    return doubts + sorted({run.work.flops_doubt for run in runs if run.work is not None and run.work.flops_doubt})


def measured_tflops(run: RunRecord) -> float | None:
    """Return the TFLOP/s of the last and largest size that a recipe of matrix products or factorisations measured."""
    rate = run.metrics.get("gflops") if run.params.get("model.recipe") in ("gemm", "lu") else None
    return None if rate is None or rate.last is None else rate.last / 1000


def skipped_share(run: RunRecord) -> float | None:
    """Return the share of the steps of *run* that loss scaling skipped; None: not known."""
    skipped = run.metrics.get(SKIPPED)
    return skipped.last / skipped.last_step if skipped and skipped.last is not None and skipped.last_step else None


def samples_per_step(run: RunRecord) -> float | None:
    """Return the samples of a step over all devices: as the program counted them, else the configured batch size.

    None for a user's own program that did not report them: it is free to ignore training.batch_size.
    """
    if run.work is not None and run.work.samples is not None and run.work.samples > 0:
        return run.work.samples
    batch_size = run.params.get("training.batch_size")
    is_own_program = "model.recipe" in run.params and run.params["model.recipe"] is None
    if is_own_program or not isinstance(batch_size, int | float) or batch_size <= 0:
        return None
    return float(batch_size)


def _measured_precision(run: RunRecord) -> PrecisionName | None:
    if run.numerics != Numerics.native.name or run.precision_effective is None:
        return None
    return PrecisionName.__members__.get(run.precision_effective)


def _what_is_missing(
    run: RunRecord,
    *,
    achieved: float | None,
    model: hardware.GpuModel | None,
    precision: PrecisionName | None,
    peak: hardware.Peak | None,
) -> str | None:
    """Return the first reason, in words, why there is no MFU; None where there is one."""
    if achieved is None:
        return "the program did not count its operations"
    if run.facts.get("device") == "cpu":
        return None if peak is not None else "no peak is known of a CPU: measure it by model=gemm, or give --cpu-peak"
    if model is None:
        return f"no peak is known of {run.facts.get('gpu_model') or 'a GPU that was not recorded'}"
    if precision is None:
        measured = run.precision_effective or "not proven"
        return f"{run.numerics} in precision {measured}: there is no one peak to measure it against"
    return None if peak is not None else f"{model.name} has no peak in {precision.name}"
