"""`hpcml peak`: how much of their devices' peak runs used, cell by cell, and what may have kept them from more.

Arithmetic intensity and roof follow the roofline model (S. Williams, A. Waterman, D. Patterson, Commun. ACM 52, 2009).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from hpcml.analysis.attained import Attained, Attainment
from hpcml.analysis.compare.factor import natural
from hpcml.analysis.compare.result import NOT_PROVEN
from hpcml.analysis.flags import Flag, FlagCode, flag
from hpcml.analysis.frame import by_seed, device_of, median_of
from hpcml.analysis.limits import find_limits
from hpcml.analysis.published import published_for
from hpcml.analysis.rates import CpuPeaks, attained, cpu_peaks, find_signs, measured_tflops, operations_doubts
from hpcml.analysis.scaling.cells import Settings, differing, settings_of
from hpcml.analysis.scaling.points import why_no_speed
from hpcml.analysis.stats import ENOUGH_SEEDS
from hpcml.analysis.steady import SteadyState, StepCurves, steady_states
from hpcml.errors import ComparisonError
from hpcml.model import hardware
from hpcml.model.choices import Numerics
from hpcml.model.own_program import says_nothing
from hpcml.model.precision import PrecisionName, contradicts
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.model.told_apart import GROUPS
from hpcml.units import one_or_many

_CELL = tuple(group for group in GROUPS if group != "precision")


def attain(
    runs: Sequence[RunRecord], curves: StepCurves, cpu_peaks_tflops: Mapping[str, float] = MappingProxyType({})
) -> Attainment:
    """Return the rates of *runs* by cell and measured precision; the order of *runs* does not matter.

    *curves* are those of ``step_time_s``, ``communication_time_s`` and ``data_time_s``. Each run is timed in the last
    half of its own steps, or measured its rate itself (`measured_tflops`); the numbers of a cell are medians over
    seeds. Peaks of CPUs are those of *cpu_peaks_tflops*, by precision, else those that *runs* measured (`cpu_peaks`).
    Runs without a rate are counted in a flag, with the reason. Raises `ComparisonError` where no run has one.
    """
    runs = [run for _, run in sorted({run.uid: run for run in runs}.items())]
    if not runs:
        raise ComparisonError("no runs to look at: none matches the selection")
    able = [run for run in runs if run.state is State.COMPLETED and run.numerics == Numerics.native.name]
    steady = steady_states({run.uid: curves.step_s.get(run.uid, ()) for run in able})
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
        cells[*settings[run.uid].items(), run.precision_effective, device_of(run)].append(run)
    cpus = cpu_peaks(able, cpu_peaks_tflops)
    found = [_attained(members, settings[members[0].uid], telling, steady, curves, cpus) for members in cells.values()]
    architectures = {model.architecture for run in timed if (model := hardware.gpu_of(run.facts)) is not None}
    return Attainment(
        n_runs=len(runs),
        attained=tuple(sorted(found, key=_order)),
        published=published_for(architectures),
        flags=(flag(FlagCode.INCOMPLETE, what=counted),) if counted else (),
    )


def _attained(
    runs: Sequence[RunRecord],
    settings: Settings,
    telling: Sequence[str],
    steady: Mapping[str, SteadyState],
    curves: StepCurves,
    cpus: CpuPeaks,
) -> Attained:
    rates = {run.uid: attained(run, steady.get(run.uid), cpus) for run in runs}
    first = rates[runs[0].uid]  # one device and one precision: one peak
    signs = find_signs(runs, rates, steady, curves)
    achieved = median_of(by_seed(runs, lambda run: rates[run.uid].achieved_tflops))
    intensity = _intensity(achieved, signs.dram_percent, first.bandwidth_gbs)
    flops = median_of(by_seed(runs, lambda run: run.work.model_flops if run.work is not None else None))
    devices = {rate.devices for rate in rates.values()}
    named = {
        group: "not set" if says_nothing(runs[0].params, f"{group}.name") else settings.get(f"{group}.name", "not set")
        for group in _CELL
    }
    differing_settings = {key: settings.get(key, "not set") for key in telling if not key.startswith("precision.")}
    return Attained(
        where=named | differing_settings,
        precision=runs[0].precision_effective or NOT_PROVEN,
        device=device_of(runs[0]),
        devices=devices.pop() if len(devices) == 1 else None,
        n=len({run.seed for run in runs}),
        step_ms=None if signs.step_s is None else signs.step_s * 1000,
        samples_per_s=median_of(by_seed(runs, lambda run: rates[run.uid].samples_per_s)),
        tokens_per_s=median_of(by_seed(runs, lambda run: rates[run.uid].tokens_per_s)),
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
        flags=tuple(_flags(runs, mfu=signs.mfu)),
    )


def _flags(runs: Sequence[RunRecord], *, mfu: float | None) -> Iterator[Flag]:
    n = len({run.seed for run in runs})
    if n < ENOUGH_SEEDS:
        yield flag(FlagCode.FEW_SEEDS, n=n, unit=one_or_many(n, "seeds"), enough="indicative only")
    for doubt in operations_doubts(runs, mfu):
        yield flag(FlagCode.RECORDS, what=f"operations: {doubt}")
    if requested := sorted({run.precision for run in runs if contradicts(run.precision, run.precision_effective)}):
        measured = str(runs[0].precision_effective)
        asked = f"requested as {', '.join(requested)}"
        yield flag(FlagCode.OTHER_PRECISION, "doubt", asked=asked, measured=measured)
    incomplete = sorted({run.usage.incomplete for run in runs if run.usage is not None and run.usage.incomplete})
    for what in incomplete[:1]:
        yield flag(FlagCode.RECORDS, what=f"measured beside the runs, incomplete: {what}")


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


def _order(row: Attained) -> list[object]:
    precisions = list(PrecisionName.__members__)
    place = precisions.index(row.precision) if row.precision in precisions else len(precisions)
    return [[natural(word) for word in row.where.values()], row.device or "", place]
