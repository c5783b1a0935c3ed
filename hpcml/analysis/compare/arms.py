"""The runs of one level in one cell (an arm), sorted into those that count and those that do not, one number per seed.

Used by `hpcml compare`, `scaling`, `peak` and `plan`. `BySeed` is one number for each seed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any

from hpcml.analysis.compare.nodes import node_of
from hpcml.analysis.statistics import average
from hpcml.analysis.steady import SteadyState
from hpcml.analysis.utilization.rates import samples_per_step
from hpcml.model.choices import Numerics
from hpcml.model.comparison import MIXED, NOT_AS_REQUESTED, Excluded
from hpcml.model.divergence import losses_of
from hpcml.model.failure_causes import Cause
from hpcml.model.precision import contradicts
from hpcml.model.records import MetricSummary, Point, RunRecord
from hpcml.model.state import State

BySeed = Mapping[int, float]
_OWN_CAUSES = frozenset({Cause.PROGRAM, Cause.HOST_MEMORY, Cause.GPU_MEMORY, Cause.UNKNOWN, None})

_STILL = 0.002  # of its largest value: a loss that moves by less has learnt nothing that it shows
_FEW_VALUES = 5  # from here on a curve says whether it moves


@dataclass(frozen=True, kw_only=True)
class Arm:
    """The runs of one level in one cell; each run is in exactly one of the six tuples."""

    level: str
    ok: tuple[RunRecord, ...]  # completed, metric finite: the only ones that enter any statistics
    nan: tuple[RunRecord, ...]  # completed, or ended by others than themselves, after the metric was no number any more
    without_metric: tuple[RunRecord, ...]
    incomplete: tuple[RunRecord, ...]  # completed, but records may be missing: the last value may be another one
    failed: tuple[RunRecord, ...]
    unfinished: tuple[RunRecord, ...]
    values: BySeed  # the metric; runs of one seed are averaged first, since the seed is the unit
    by_precision: bool = False  # its level is a precision: runs that computed in another one have no times of it
    read_by: frozenset[str] = frozenset()  # how metrics were read of the runs of its cell that have one: `reading`
    never_trained: frozenset[str] = frozenset()  # uids in `failed`: `never_trained`

    @property
    def ended(self) -> tuple[RunRecord, ...]:
        """The runs that are over and whose records are whole, whether or not they enter the statistics."""
        return self.ok + self.nan + self.without_metric + self.failed

    @property
    def without_value(self) -> tuple[RunRecord, ...]:
        """The runs that are over and do not enter the statistics."""
        return self.nan + self.without_metric + self.incomplete + self.failed

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that have a value of the metric, ascending."""
        return tuple(sorted(self.values))

    @cached_property  # as the next three: asked a dozen times of thousands of runs
    def kinds(self) -> tuple[str, ...]:
        """The `numerics` of the runs in `ok` (native, emulated, unproven), each once, native first."""
        return tuple(sorted({run.numerics for run in self.ok}, key=lambda kind: (kind != Numerics.native.name, kind)))

    @cached_property
    def numerics(self) -> str | None:
        """The one `numerics` of the runs in `ok`, `MIXED` for several, None where no run is in `ok`."""
        return MIXED if len(self.kinds) > 1 else next(iter(self.kinds), None)

    @cached_property
    def has_speed(self) -> bool:
        """Whether these runs' times say anything about the level: only if all were native, and what they are called."""
        return self.numerics == Numerics.native.name and not (self.by_precision and self.is_impostor)

    @cached_property
    def is_impostor(self) -> bool:
        """Whether any run was seen to compute in another precision than it was configured for."""
        return any(contradicts(run.precision, run.precision_effective) for run in self.ok)

    @cached_property
    def facts(self) -> Sequence[tuple[Mapping[str, Any], int]]:
        """The different facts of the runs in `ok`, in their order, each with the number of runs that share them."""
        known = {id(run.facts): run.facts for run in self.ok}
        counts = Counter(map(id, [run.facts for run in self.ok]))
        return [(facts, counts[alike]) for alike, facts in known.items()]

    @cached_property
    def samples(self) -> Sequence[float | None]:
        """The samples of a step of each run in `ok`, in their order (`samples_per_step`)."""
        return [samples_per_step(run) for run in self.ok]

    @cached_property
    def places(self) -> Sequence[str | None]:
        """The node of each run in `ok`, in their order (`node_of`)."""
        return [node_of(run) for run in self.ok]

    def states(self, steady: Mapping[str, SteadyState]) -> Sequence[SteadyState | None]:
        """Return the state of each run in `ok` in *steady*, in their order; None where it has none."""
        return [steady.get(run.uid) for run in self.ok]

    @property
    def why_no_speed(self) -> str:
        """Why the times of these runs cannot be used, in words; only where `has_speed` is false."""
        if self.numerics == MIXED:
            return f"{', '.join(self.kinds[:-1])} and {self.kinds[-1]} runs mixed"
        if self.numerics == Numerics.native.name:
            return NOT_AS_REQUESTED
        return str(self.numerics) if self.numerics == Numerics.emulated.name else f"numerics {self.numerics}"

    def aligned(self, seeds: Iterable[int]) -> list[float]:
        """Return the metric at *seeds*, in their order."""
        return [self.values[seed] for seed in seeds]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmTimes:
    """Durations of an arm's runs in seconds, per seed; a seed whose duration is not known is absent."""

    steps_s: BySeed
    samples_s: BySeed  # a step's time over its samples
    means_s: BySeed  # of a step, as `steps_s`, which are medians
    p5_s: BySeed
    p95_s: BySeed
    walls_s: BySeed


def reading(run: RunRecord) -> str:
    """Return by which settings metrics of *run* were read."""
    return repr([run.params.get(f"workload.{key}") for key in ("metrics", "metrics_from")])


def never_trained(levels: Iterable[str], runs: Iterable[RunRecord]) -> frozenset[str]:
    """Return the uids of *runs* whose submission failed as a whole before any metric was read.

    These are all that are compared, of all cells, with their *levels*: of a submission that failed in one cell alone
    the settings of that are the cause. Where runs of several levels all failed in the same words, somebody forgot a
    file, a package or a flag, and mended it.
    """
    of_submissions: dict[str | None, list[tuple[str, RunRecord]]] = defaultdict(list)
    for level, run in zip(levels, runs, strict=True):
        of_submissions[run.submission].append((level, run))
    whole = [
        [run.uid for _, run in members]
        for submission, members in of_submissions.items()
        if submission is not None
        and len({level for level, _ in members}) > 1
        and len({run.reason for _, run in members}) == 1
        and all(
            run.state is State.FAILED and run.cause == Cause.PROGRAM and run.reason and not run.metrics
            for _, run in members
        )
    ]
    return frozenset(uid for uids in whole for uid in uids)


def sort_runs(level: str, runs: Sequence[RunRecord], metric: str, *, by_precision: bool = False) -> Arm:
    """Return the arm of the *runs*, all of one level of one cell, by the last value of *metric*."""
    drawers: dict[str, list[RunRecord]] = defaultdict(list)
    values: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        value = metric_value(run, metric)
        drawers[drawer := _drawer(run, metric, value)].append(run)
        if drawer == "ok" and value is not None:
            values[run.seed].append(value)
    return Arm(
        level=level,
        ok=tuple(drawers["ok"]),
        nan=tuple(drawers["nan"]),
        without_metric=tuple(drawers["without_metric"]),
        incomplete=tuple(drawers["incomplete"]),
        failed=tuple(drawers["failed"]),
        unfinished=tuple(drawers["unfinished"]),
        values=_means(values),
        by_precision=by_precision,
    )


def at_common_step(
    runs: Sequence[RunRecord], metric: str, curves: Mapping[str, Sequence[Point]]
) -> tuple[list[RunRecord], str]:
    """Return *runs* with those that their walltime ended as completed at the last step that all of these reached.

    Their value of *metric* is the last one up to that step of their *curves*. The second is what to say of it; "" where
    none reported the metric.
    """
    ended = {run.uid: curves[run.uid] for run in runs if run.state is State.TIMEOUT and curves.get(run.uid)}
    if not ended:
        return list(runs), ""
    last_steps = [curve[-1].step for curve in ended.values()]
    common, most = min(last_steps), max(last_steps)
    found = []
    for run in runs:
        if run.uid in ended:
            point = next(point for point in reversed(ended[run.uid]) if point.step <= common)
            value = point.value if math.isfinite(point.value) else None
            summary = replace(run.metrics[metric], last=value, last_step=point.step)
            metrics = {**run.metrics, metric: summary}
            found.append(replace(run, state=State.COMPLETED, reason=None, metrics=metrics))
        else:
            found.append(run)
    beyond = "" if most == common else f"; the longest came to step {most}"
    reached = f"{metric} is that of step {common}, the last one that all of them reached{beyond}"
    return found, f"INCOMPLETE: their walltime ended {len(ended)} of {len(runs)} runs; {reached}"


def metric_value(run: RunRecord, metric: str) -> float | None:
    """Return the last value of *metric*, or None where it is not finite or was never recorded.

    The last, not the best: picking the best step of each run rewards noise, and the noisier arm most.
    """
    summary = run.metrics.get(metric)
    if summary is None or summary.last is None or not math.isfinite(summary.last):
        return None
    return summary.last


def unmoved(runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Return the losses of *runs* by uid where none of a run has moved: at 2.303, say, a guess of ten classes."""
    losses = losses_of(runs)
    curves = {run.uid: [run.metrics[name] for name in sorted(losses & run.metrics.keys())] for run in runs}
    return {
        uid: [each.name for each in of] for uid, of in curves.items() if of and all(_stands_still(each) for each in of)
    }


def _stands_still(curve: MetricSummary) -> bool:
    if curve.min is None or curve.max is None or curve.n < _FEW_VALUES:
        return False
    return curve.max - curve.min <= _STILL * max(abs(curve.min), abs(curve.max))


def times(arm: Arm, steady: Mapping[str, SteadyState]) -> ArmTimes:
    """Return the durations of the runs of *arm*; *steady* holds their steady states by uid.

    Call it for native arms only (`Arm.has_speed`): the times of emulated arithmetic say nothing about a device.
    """
    by_seeds: dict[int, list[SteadyState]] = defaultdict(list)
    samples_s: dict[int, list[float]] = defaultdict(list)
    for run, samples, state in zip(arm.ok, arm.samples, arm.states(steady), strict=True):
        if state is not None:
            by_seeds[run.seed].append(state)
            if samples is not None:
                samples_s[run.seed].append(state.median_s / samples)
    seeds = sorted(by_seeds.items())
    return ArmTimes(
        steps_s={seed: fmean([state.median_s for state in of]) for seed, of in seeds},
        samples_s=_means(samples_s),
        means_s={seed: fmean([state.mean_s for state in of]) for seed, of in seeds},
        p5_s={seed: fmean([state.p5_s for state in of]) for seed, of in seeds},
        p95_s={seed: fmean([state.p95_s for state in of]) for seed, of in seeds},
        walls_s=by_seed(arm.ok, lambda run: run.wall_s),
    )


def batch_sizes(arm: Arm) -> frozenset[object]:
    """Return the batch sizes of the runs of *arm* as configured."""
    return frozenset(run.params.get("training.batch_size") for run in {id(run.params): run for run in arm.ok}.values())


def median_of(values: BySeed, *, scale: float = 1.0) -> float | None:
    """Return the median over seeds times *scale* (e.g. 1000 for s to ms), or None where there is none."""
    return median(values.values()) * scale if values else None


def excluded(arm: Arm, metric: str) -> list[Excluded]:
    """Return the runs of *arm* that do not enter the statistics, each with its reason in words."""
    reasons = [(run, f"{run.state}{f': {run.reason}' if run.reason else ''}") for run in arm.failed + arm.unfinished]
    reasons += [(run, f"{_unless_completed(run)}{metric} ended non-finite") for run in arm.nan]
    reasons += [(run, f"{metric} was never recorded") for run in arm.without_metric]
    reasons += [(run, f"incomplete: {run.incomplete}") for run in arm.incomplete]
    return [Excluded(uid=run.uid, level=arm.level, reason=reason) for run, reason in reasons]


def is_own_doing(run: RunRecord) -> bool:
    """Tell whether *run* failed by its program or for want of memory, and not by the cluster or a person."""
    cause = None if run.cause is None else Cause(run.cause) if run.cause in set(Cause) else Cause.UNKNOWN
    return run.state in (State.FAILED, State.OUT_OF_MEMORY) and cause in _OWN_CAUSES


def _unless_completed(run: RunRecord) -> str:
    return "" if run.state is State.COMPLETED else f"{run.state}, and before that "


def _drawer(run: RunRecord, metric: str, value: float | None) -> str:
    summary = run.metrics.get(metric)
    is_reported = summary is not None and bool(summary.n or summary.n_nonfinite)
    if run.state is not State.COMPLETED:
        if run.state.is_final and is_reported and value is None and not is_own_doing(run):
            return "nan"  # whoever stopped it, it had diverged before
        return "failed" if run.state.is_final else "unfinished"
    if run.incomplete is not None:
        return "incomplete"
    if not is_reported:
        return "without_metric"
    return "nan" if value is None else "ok"


def replicates_flag(extra: int) -> str:
    """Return what is said of so many runs beyond the first of each seed."""
    replicates = "1 replicate of a seed" if extra == 1 else f"{extra} replicates of seeds"
    return f"{replicates} that other runs have: averaged within the seed first"


def by_seed(runs: Sequence[RunRecord], read: Callable[[RunRecord], float | None]) -> BySeed:
    """Return one number for each seed, the mean of what *read* finds in its runs; a seed without any is absent."""
    found: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        if (value := read(run)) is not None:
            found[run.seed].append(value)
    return _means(found)


def _means(values: Mapping[int, Sequence[float]]) -> BySeed:
    """Return the mean of the values of each seed, by ascending seed."""
    return {seed: average(of) for seed, of in sorted(values.items())}
