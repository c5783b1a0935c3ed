"""What the runs of a row took: GPU time, energy and CO2, for all of the run and for a sample."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from hpcml.analysis import equivalence
from hpcml.analysis.arms import Arm, BySeed, by_seed, median_of
from hpcml.analysis.attained import samples_per_step
from hpcml.comparison import Cost, Interval
from hpcml.records import RunRecord

_STEP_METRIC = "step_time_s"
_SCOPES = ("gpu", "board", "shared")  # from a GPU's own energy to one that others draw as well


def cost(arm: Arm, reference: Arm | None) -> Cost | None:
    """Return what the runs of a native *arm* took; None where nothing was measured beside any of them."""
    known = [run.usage for run in arm.ok if run.usage is not None]
    if not known:
        return None
    energies = by_seed(arm.ok, _energy_kj)
    ratio, interval = _energy_ratio(arm, reference)
    sources = {usage.co2_source for usage in known if usage.co2_g is not None}
    co2_g = by_seed(arm.ok, lambda run: run.usage.co2_g if run.usage else None)
    with_energy = [usage for usage in known if usage.energy_j is not None]
    scopes = [usage.energy_scope for usage in with_energy if usage.energy_scope is not None]
    return Cost(
        gpu_hours=median_of(by_seed(arm.ok, _gpu_hours)),
        energy_kj=median_of(energies),
        energy_method=_joined(usage.energy_method for usage in with_energy),
        energy_scope=max(scopes, key=_severity, default=None),
        energy_per_sample_j=median_of(_per_sample_j(arm)),
        energy_ratio=ratio,
        energy_ratio_ci95=interval,
        co2_g=median(co2_g.values()) if co2_g and len(sources) == 1 else None,  # by several factors it is no median
        co2_source=next(iter(sources)) if len(sources) == 1 else None,
        n=len(energies),
    )


def cost_flags(arm: Arm) -> list[str]:
    """Return why the energy of *arm* may be doubted, or is that of fewer runs than the rest of the row."""
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
    """Return over how many samples *run* was trained; None where its steps or their samples are not known."""
    steps, samples = run.metrics.get(_STEP_METRIC), samples_per_step(run)
    if steps is None or samples is None or not steps.n:
        return None
    # The last step is the better count where only every tenth was reported, the points where steps begin at 0.
    return samples * max(steps.n, steps.last_step or 0)


def _energy_ratio(arm: Arm, reference: Arm | None) -> tuple[float | None, Interval | None]:
    if reference is None or reference is arm or not reference.has_speed:
        return None, None
    mine, theirs = _per_sample_j(arm), _per_sample_j(reference)
    pairs = equivalence.is_paired(mine, theirs)
    found = equivalence.ratio(list(mine.values()), list(theirs.values()), pairs=pairs)
    return found or (None, None)


def _per_sample_j(arm: Arm) -> BySeed:
    return by_seed(arm.ok, _energy_per_sample_j)


def _energy_per_sample_j(run: RunRecord) -> float | None:
    samples = trained_samples(run)
    if run.usage is None or run.usage.energy_j is None or not samples:
        return None
    return run.usage.energy_j / samples


def _energy_kj(run: RunRecord) -> float | None:
    return None if run.usage is None or run.usage.energy_j is None else run.usage.energy_j / 1000


def _gpu_hours(run: RunRecord) -> float | None:
    usage = run.usage
    return None if usage is None or usage.gpu_s is None or not usage.gpus else usage.gpu_s / 3600


def _severity(scope: str) -> int:
    return _SCOPES.index(scope) if scope in _SCOPES else len(_SCOPES)


def _joined(words: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({word for word in words if word is not None})) or None
