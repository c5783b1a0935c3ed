"""The points of one cell: each number of devices against the reference and against the next smaller number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcml.analysis import equivalence
from hpcml.analysis.arms import BySeed, by_seed, median_of
from hpcml.analysis.scaling_arms import ScalingArm, causes
from hpcml.analysis.scaling_cells import BATCH
from hpcml.analysis.scaling_counts import Over
from hpcml.comparison import Interval
from hpcml.scaling import Kind, ScalingPoint

_WAITING = 0.05  # of a step's time: input that is waited for longer than this is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What all points of a cell are made from."""

    kind: Kind
    over: Over
    arms: Mapping[int, ScalingArm]
    reference: int | None
    costs_s: Mapping[int, BySeed]  # times that speed-ups are ratios of: of a sample, else of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as fast one number of devices is as another."""

    value: float
    ci95: Interval | None
    paired: bool


def find_costs(kind: Kind, arms: Mapping[int, ScalingArm]) -> dict[int, BySeed]:
    """Return the times by number of devices that may be set against each other; empty where none may.

    Of a sample, where a step's samples are known everywhere; else of a step in strong scaling, whose batch is alike.
    """
    timed = {devices: arm for devices, arm in arms.items() if arm.steps_s}
    if all(set(arm.samples_s) == set(arm.steps_s) for arm in timed.values()):
        return {devices: arm.samples_s for devices, arm in timed.items()}
    return {devices: arm.steps_s for devices, arm in timed.items()} if kind == "strong" else {}


def faster(costs_s: Mapping[int, BySeed], few: int, many: int) -> Ratio | None:
    """Return how many times as fast *many* devices are as *few*, by t on logarithms, paired by seed if possible."""
    slow, fast = costs_s.get(few, {}), costs_s.get(many, {})
    pairs = equivalence.is_paired(fast, slow)
    found = equivalence.ratio([slow[s] for s in sorted(slow)], [fast[s] for s in sorted(fast)], pairs=pairs)
    return None if found is None else Ratio(value=found[0], ci95=found[1], paired=pairs)


def build_point(devices: int, cell: Measured) -> ScalingPoint:
    """Return everything there is to say about *devices* devices."""
    arm, costs = cell.arms[devices], cell.costs_s
    speedup = gain = None
    if cell.reference is not None and devices != cell.reference:
        speedup = faster(costs, cell.reference, devices)
    if smaller := [n for n in costs if n < devices]:
        gain = faster(costs, max(smaller), devices)
    ratio = None if cell.reference is None else devices / cell.reference
    efficiency = None if speedup is None or ratio is None else speedup.value / ratio
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
        paired=None if speedup is None else speedup.paired,
        efficiency=efficiency,
        efficiency_ci95=None if speedup is None or ratio is None else _scaled(speedup.ci95, 1 / ratio),
        gain=None if gain is None else gain.value,
        gain_ci95=None if gain is None else gain.ci95,
        cost=None if efficiency is None else 1 / efficiency,
        gpu_hours=median_of(arm.gpu_hours),
        energy_kj=median_of(arm.energy_kj),
        energy_per_sample_j=median_of(arm.energy_per_sample_j),
        communication_share=median_of(arm.communication),
        flags=tuple(_flags(arm, cell, speedup)),
    )


def _flags(arm: ScalingArm, cell: Measured, speedup: Ratio | None) -> list[str]:
    flags = []
    reference = None if cell.reference is None else cell.arms[cell.reference]
    n = min(len(arm.steps_s), len(reference.steps_s)) if reference is not None else len(arm.steps_s)
    ended = len(arm.timed) + len(arm.silent) + len(arm.failed)
    if arm.failed:
        flags.append(f"{len(arm.failed)} of {ended} ended runs failed: {causes(arm.failed)}")
    if arm.steps_s and n < equivalence.INDICATIVE_BELOW:
        flags.append(f"n={n}: indicative only")
    if speedup is not None and not speedup.paired and n > 1:
        flags.append("seeds do not match the reference's one to one: unpaired (Welch)")
    if extra := len(arm.timed) - len(arm.steps_s):
        flags.append(f"{extra} replicates of seeds that were run before: averaged within the seed first")
    flags += _disagreements(arm, cell.over)
    waiting = median_of(arm.waiting)
    if waiting is not None and waiting >= _WAITING:
        flags.append(
            f"waits for input as long as {waiting * 100:.2g} % of a step's time, which is not part of the step"
        )
    return flags


def _disagreements(arm: ScalingArm, over: Over) -> list[str]:
    """Return what the programs said of themselves that is not as configured."""
    used = [run.work.devices for run in arm.timed if run.work is not None and run.work.devices is not None]
    if over is Over.threads:
        used = [run.facts["threads"] for run in arm.timed if isinstance(run.facts.get("threads"), int)]
    flags = []
    if over is not Over.nodes and any(number != arm.devices for number in used):
        numbers = ", ".join(map(str, sorted(set(used))))
        flags.append(f"the program says that it used {numbers}, not {arm.devices}")
    sizes = by_seed(arm.timed, lambda run: run.work.samples if run.work is not None else None)
    batch = _batch_size(arm)
    if batch is not None and any(size != batch for size in sizes.values()):
        flags.append(f"a step took other samples than the {batch} that were configured: the program's number counts")
    return flags


def _batch_size(arm: ScalingArm) -> int | None:
    sizes = {run.params.get(BATCH) for run in (*arm.timed, *arm.failed, *arm.unfinished)}
    size = sizes.pop() if len(sizes) == 1 else None
    return int(size) if isinstance(size, int | float) else None


def _scaled(interval: Interval | None, factor: float) -> Interval | None:
    if interval is None:
        return None
    return Interval(low=interval.low * factor, high=interval.high * factor, confidence=interval.confidence)
