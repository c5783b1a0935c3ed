"""The speed of a row: its steady step time, its speed-up against the reference, and the reasons to doubt them.

The step time is a median, and so are speed-ups, unless the mean of an arm's steps is another: then the throughput
counts, which is by means (`means_differ`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean

from hpcml.analysis.compare.arms import Arm, batch_sizes, by_seed, median_of, times
from hpcml.analysis.compare.cells import Terms
from hpcml.analysis.compare.nodes import Placed, PlacedRatio, by_seed_of, ratio_over_places
from hpcml.analysis.steady import SteadyState, find_drift
from hpcml.model.comparison import Speed

_DIFFERENT = 0.05  # of means and medians: of step times, and of the speed-ups of both
OF_MEANS = "speed-ups and samples/s are of mean step times, the throughput: medians of these steps tell others"
_Read = Callable[[SteadyState], float]
_MEDIAN: _Read = attrgetter("median_s")  # two ways to read a state
_MEAN: _Read = attrgetter("mean_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUps:
    """The speed-up of an arm over the reference; None: there is none, or it is not known."""

    found: PlacedRatio | None  # of means, where the cell goes by means (`uses_means`), else of medians
    by_median: PlacedRatio | None  # where the cell goes by means


def find_speed_ups(arm: Arm, terms: Terms) -> SpeedUps:
    """Return the speed-ups of *arm*, whose runs must all be native (`Arm.has_speed`)."""
    return SpeedUps(
        found=_ratio(arm, terms, _MEAN if terms.by_mean else _MEDIAN),
        by_median=_ratio(arm, terms, _MEDIAN) if terms.by_mean else None,
    )


def find_speed(arm: Arm, terms: Terms, ups: SpeedUps) -> Speed:
    """Return the speed of *arm*, whose runs must all be native (`Arm.has_speed`)."""
    own = times(arm, terms.steady)
    found, by_median = ups.found, ups.by_median
    samples_s = _sample_means_s(arm, terms.steady) if terms.by_mean else own.samples_s
    all_known = set(samples_s) == set(own.steps_s) and bool(samples_s)
    return Speed(
        step_ms=median_of(own.steps_s, scale=1000),
        step_ms_p5=median_of(own.p5_s, scale=1000),
        step_ms_p95=median_of(own.p95_s, scale=1000),
        samples_per_s=median_of({seed: 1 / s for seed, s in samples_s.items()}) if all_known else None,
        speedup=None if found is None else found.value,
        speedup_ci95=None if found is None else found.ci95,
        speedup_paired=None if found is None else found.paired,
        n=len(own.steps_s),
        wall_s=median_of(own.walls_s),
        step_ms_mean=median_of(own.means_s, scale=1000),
        speedup_of="means" if terms.by_mean else "medians",
        speedup_unit=None if found is None else found.unit,
        speedup_of_medians=None if by_median is None else by_median.value,
    )


def speed_flags(arm: Arm, terms: Terms, ups: SpeedUps) -> list[str]:
    """Return the reasons to doubt the speed and the speed-up of *arm*, each one line for people."""
    flags = []
    if (drift := _drift(arm, terms)) is not None:
        flags.append(f"speed not steady: step times {drift * 100:+.0f} % from first to last third of the window")
    reference = terms.reference
    if reference is None or reference is arm or not reference.has_speed:
        return flags
    if (drift := _drift(reference, terms)) is not None:
        flags.append(f"speed-up not steady: {reference.level} changes by {drift * 100:+.0f} % within the window")
    found, by_median = ups.found, ups.by_median
    if found is not None and by_median is not None and abs(found.value / by_median.value - 1) > _DIFFERENT:
        ends = by_median.ci95
        said = "" if ends is None else f" [{ends.low:.3g}, {ends.high:.3g}]"
        flags.append(f"speed-up by means of step times (throughput); medians say {by_median.value:.3g}{said}")
    return flags


def means_differ(groups: Iterable[Sequence[SteadyState]]) -> bool:
    """Tell whether speeds go by means: in some group the mean of the steps is not their median, but for 5 %."""
    return any(abs(_mean_over_median(states) - 1) > _DIFFERENT for states in groups if states)


def uses_means(arms: Iterable[Arm], steady: Mapping[str, SteadyState]) -> bool:
    """Tell whether the speeds of a cell are by means, as `means_differ` says."""
    return means_differ(_states(arm, steady) for arm in arms if arm.has_speed)


def _ratio(arm: Arm, terms: Terms, read: _Read) -> PlacedRatio | None:
    """Return the ratio of times of a sample to the reference's.

    Where samples are not known, times of a step are used if all runs have the same batch size; else None.
    """
    reference = terms.reference
    if reference is None or reference is arm or not reference.has_speed:
        return None
    by_sample = all(_knows_samples(each, terms.steady) for each in (arm, reference))
    if not by_sample and len(batch_sizes(arm) | batch_sizes(reference)) != 1:
        return None
    over, under = (_timed(each, terms.steady, read, by_sample=by_sample) for each in (reference, arm))
    return ratio_over_places(over, under)


def _knows_samples(arm: Arm, steady: Mapping[str, SteadyState]) -> bool:
    """Tell whether each seed that has a step time has one of a sample, too."""
    if None not in arm.samples:
        return True
    timed = [(run.seed, of) for run, of in zip(arm.ok, arm.samples, strict=True) if run.uid in steady]
    return {seed for seed, _ in timed} == {seed for seed, of in timed if of is not None}


def _timed(arm: Arm, steady: Mapping[str, SteadyState], read: _Read, *, by_sample: bool) -> list[Placed]:
    return [
        Placed(run.seed, place, read(state) / samples if by_sample and samples is not None else read(state))
        for run, place, samples, state in zip(arm.ok, arm.places, arm.samples, arm.states(steady), strict=True)
        if state is not None and (samples is not None or not by_sample)
    ]


def _sample_means_s(arm: Arm, steady: Mapping[str, SteadyState]) -> Mapping[int, float]:
    return by_seed_of(_timed(arm, steady, _MEAN, by_sample=True))


def _states(arm: Arm, steady: Mapping[str, SteadyState]) -> list[SteadyState]:
    return [state for state in arm.states(steady) if state is not None]


def _drift(arm: Arm, terms: Terms) -> float | None:
    """Return the change that the step times of *arm* are shown to have; where means count, medians change by chance."""
    if uses_means([arm], terms.steady):
        return None
    changes = by_seed(arm.ok, lambda run: terms.steady[run.uid].change if run.uid in terms.steady else None)
    return find_drift(list(changes.values()))


def _mean_over_median(states: Sequence[SteadyState]) -> float:
    return math.exp(fmean(math.log(state.mean_s / state.median_s) for state in states))
