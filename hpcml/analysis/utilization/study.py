"""`hpcml peak`: how much of their devices' peak runs used, cell by cell, and what may have kept them from more.

Arithmetic intensity and roof follow the roofline model (S. Williams, A. Waterman, D. Patterson, Commun. ACM 52, 2009).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpcml.analysis.compare.factor import natural
from hpcml.analysis.frame import by_seed, median_of
from hpcml.analysis.limits import Signs, find_limits
from hpcml.analysis.rates import TENSOR_FORMATS, Rate, attained, measured_tflops, skipped_share
from hpcml.analysis.scaling.cells import Settings, differing, settings_of
from hpcml.analysis.scaling.points import why_no_speed
from hpcml.analysis.stats import ENOUGH_SEEDS
from hpcml.analysis.steady import Curves, SteadyState, StepCurves, share_of_time, steady_state
from hpcml.analysis.utilization.published import published_for
from hpcml.errors import ComparisonError
from hpcml.model import hardware
from hpcml.model.choices import Numerics
from hpcml.model.comparison import NOT_PROVEN
from hpcml.model.own_program import says_nothing
from hpcml.model.precision import PrecisionName, contradicts
from hpcml.model.records import RunRecord, Usage
from hpcml.model.state import State
from hpcml.model.told_apart import GROUPS
from hpcml.model.utilization import Attained, Attainment

_CELL = tuple(group for group in GROUPS if group != "precision")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """The runs of one cell, each with its steady state and its rate."""

    runs: Sequence[RunRecord]
    steady: Mapping[str, SteadyState]
    rates: Mapping[str, Rate]
    curves: StepCurves

    def rate(self, read: Callable[[Rate], float | None]) -> float | None:
        return median_of(by_seed(self.runs, lambda run: read(self.rates[run.uid])))

    def usage(self, read: Callable[[Usage], float | None]) -> float | None:
        return median_of(by_seed(self.runs, lambda run: None if run.usage is None else read(run.usage)))

    def share(self, curves: Curves, *, is_inside: bool) -> float | None:
        steps, steady = self.curves.step_s, self.steady
        known = [run for run in self.runs if run.uid in curves and run.uid in steady]
        return median_of(
            by_seed(known, lambda r: share_of_time(curves[r.uid], steps[r.uid], steady[r.uid], is_inside=is_inside))
        )


def attain(runs: Sequence[RunRecord], curves: StepCurves) -> Attainment:
    """Return the rates of *runs* by cell and measured precision; the order of *runs* does not matter.

    *curves* are those of ``step_time_s``, ``communication_time_s`` and ``data_time_s``. Each run is timed in the last
    half of its own steps, or measured its rate itself (`measured_tflops`); the numbers of a cell are medians over
    seeds. Runs without a rate are counted in a remark, with the reason. Raises `ComparisonError` where no run has one.
    """
    runs = [run for _, run in sorted({run.uid: run for run in runs}.items())]
    if not runs:
        raise ComparisonError("no runs to look at: none matches the selection")
    able = [run for run in runs if run.state is State.COMPLETED and run.numerics == Numerics.native.name]
    states = {run.uid: steady_state(curves.step_s.get(run.uid, ())) for run in able}
    steady = {uid: state for uid, state in states.items() if state is not None}
    rated = steady.keys() | {run.uid for run in able if measured_tflops(run) is not None}
    without = [run for run in runs if run.uid not in rated]
    reasons = Counter(_why_no_rate(run, curves) for run in without)
    counted = "; ".join(f"{reason} ({n} run{'s'[: n != 1]})" for reason, n in sorted(reasons.items()))
    if not rated:
        raise ComparisonError(f"no run of {len(runs)} has a rate: {counted}")
    timed = [run for run in runs if run.uid in rated]
    settings = settings_of(timed)
    telling = [key for key in differing(list(settings.values())) if not key.endswith(".name")]
    cells: dict[tuple[object, ...], list[RunRecord]] = defaultdict(list)
    for run in timed:
        cells[*settings[run.uid].items(), run.precision_effective, _device(run)].append(run)
    found = [_attained(members, settings[members[0].uid], telling, steady, curves) for members in cells.values()]
    architectures = {model.architecture for run in timed if (model := hardware.gpu_of(run.facts)) is not None}
    return Attainment(
        n_runs=len(runs),
        attained=tuple(sorted(found, key=_order)),
        published=published_for(architectures),
        remarks=(f"without a rate: {counted}",) if counted else (),
    )


def _attained(
    runs: Sequence[RunRecord],
    settings: Settings,
    telling: Sequence[str],
    steady: Mapping[str, SteadyState],
    curves: StepCurves,
) -> Attained:
    rates = {run.uid: attained(run, steady.get(run.uid)) for run in runs}
    cell = _Timed(runs=runs, steady=steady, rates=rates, curves=curves)
    first = rates[runs[0].uid]  # one device and one precision: one peak
    signs = _signs(cell)
    achieved = cell.rate(lambda rate: rate.achieved_tflops)
    intensity = _intensity(achieved, signs.dram_percent, first.bandwidth_gbs)
    flops = median_of(by_seed(runs, lambda run: run.work.model_flops if run.work is not None else None))
    n = len({run.seed for run in runs})
    devices = {rate.devices for rate in rates.values()}
    return Attained(
        where={
            group: "not set" if says_nothing(runs[0].params, key) else settings.get(key, "not set")
            for group, key in ((group, f"{group}.name") for group in _CELL)
        }
        | _told(settings, telling),
        precision=runs[0].precision_effective or NOT_PROVEN,
        device=_device(runs[0]),
        devices=devices.pop() if len(devices) == 1 else None,
        n=n,
        step_ms=None if signs.step_s is None else signs.step_s * 1000,
        samples_per_s=cell.rate(lambda rate: rate.samples_per_s),
        tokens_per_s=cell.rate(lambda rate: rate.tokens_per_s),
        model_gflops_per_step=None if flops is None else flops / 1e9,
        achieved_tflops=achieved,
        peak_tflops=first.peak_tflops,
        peak_basis=first.peak_basis,
        mfu=signs.mfu,
        why_no_mfu=first.why_no_mfu,
        bandwidth_gbs=first.bandwidth_gbs,
        ridge_flop_per_byte=_over(first.peak_tflops, first.bandwidth_gbs),
        util_percent=signs.util_percent,
        sm_active_percent=signs.sm_active_percent,
        tensor_percent=signs.tensor_percent,
        dram_percent=signs.dram_percent,
        intensity_flop_per_byte=intensity,
        roof_tflops=_roof(first.peak_tflops, first.bandwidth_gbs, intensity),
        data_share=signs.data_share,
        communication_share=signs.communication_share,
        limits=find_limits(signs),
        flags=tuple(_flags(runs, n=n, mfu=signs.mfu)),
    )


def _signs(cell: _Timed) -> Signs:
    return Signs(
        step_s=cell.rate(lambda rate: rate.step_s),
        data_share=cell.share(cell.curves.waiting_s, is_inside=False),
        communication_share=cell.share(cell.curves.communication_s, is_inside=True),
        util_percent=cell.usage(lambda usage: usage.util_percent),
        sm_active_percent=cell.usage(lambda usage: usage.sm_active_percent),
        tensor_percent=cell.usage(lambda usage: usage.tensor_percent),
        dram_percent=cell.usage(lambda usage: usage.dram_percent),
        throttled_power_share=cell.usage(lambda usage: usage.throttled_power_share),
        throttled_thermal_share=cell.usage(lambda usage: usage.throttled_thermal_share),
        skipped_share=median_of(by_seed(cell.runs, skipped_share)),
        mfu=cell.rate(lambda rate: rate.mfu),
        uses_tensor_cores=cell.runs[0].precision_effective in TENSOR_FORMATS,
    )


def _flags(runs: Sequence[RunRecord], *, n: int, mfu: float | None) -> list[str]:
    flags = [] if n >= ENOUGH_SEEDS else [f"n={n}: indicative only"]
    if mfu is not None and mfu > 1:
        flags.append("more than the peak: the count of operations, or what the device is called, is wrong")
    doubts = sorted({run.work.flops_doubt for run in runs if run.work is not None and run.work.flops_doubt})
    flags += [f"operations: {doubt}" for doubt in doubts]
    if requested := sorted({run.precision for run in runs if contradicts(run.precision, run.precision_effective)}):
        flags.append(f"requested as {', '.join(requested)}")
    incomplete = sorted({run.usage.incomplete for run in runs if run.usage is not None and run.usage.incomplete})
    return [*flags, *(f"measured beside the runs, incomplete: {what}" for what in incomplete[:1])]


def _why_no_rate(run: RunRecord, curves: StepCurves) -> str:
    return why_no_speed(run, curves.step_s.get(run.uid, ())) if run.state is State.COMPLETED else run.state.value


def _intensity(achieved_tflops: float | None, dram_percent: float | None, bandwidth_gbs: float | None) -> float | None:
    """Return FLOP per byte of memory traffic: the achieved rate over the used part of the bandwidth."""
    if not dram_percent or bandwidth_gbs is None:
        return None
    return _over(achieved_tflops, dram_percent / 100 * bandwidth_gbs)


def _roof(peak_tflops: float | None, bandwidth_gbs: float | None, intensity: float | None) -> float | None:
    if peak_tflops is None or bandwidth_gbs is None or intensity is None:
        return None
    return min(peak_tflops, intensity * bandwidth_gbs / 1000)


def _over(tflops: float | None, gbs: float | None) -> float | None:
    return None if tflops is None or not gbs else tflops * 1000 / gbs


def _told(settings: Settings, telling: Sequence[str]) -> dict[str, str]:
    return {key: settings.get(key, "not set") for key in telling if not key.startswith("precision.")}


def _device(run: RunRecord) -> str | None:
    kind = run.facts.get("device")
    model = run.facts.get("cpu_model" if kind == "cpu" else "gpu_model")
    return (f"{kind} ({model})" if model else str(kind)) if kind is not None else None


def _order(row: Attained) -> list[object]:
    precisions = list(PrecisionName.__members__)
    place = precisions.index(row.precision) if row.precision in precisions else len(precisions)
    return [[natural(word) for word in row.where.values()], row.device or "", place]
