"""Runs as `hpcml compare`, `scaling`, `peak` and `plan` see them: sorted into those that count, one number per seed.

An arm holds the runs of one level in one cell.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from hpcml.analysis.compare.result import MIXED, NOT_AS_REQUESTED, NOT_PROVEN, Excluded
from hpcml.analysis.flags import Flag, FlagCode, flag
from hpcml.analysis.stats import BySeed, average
from hpcml.analysis.steady import Curves
from hpcml.model.choices import Numerics
from hpcml.model.failure_causes import Cause
from hpcml.model.precision import contradicts
from hpcml.model.records import RunRecord
from hpcml.model.state import State

_OWN_CAUSES = frozenset({Cause.PROGRAM, Cause.HOST_MEMORY, Cause.GPU_MEMORY, Cause.UNKNOWN, None})


@dataclass(frozen=True, slots=True, kw_only=True)
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
    mistaken: frozenset[str] = frozenset()  # uids in `failed`, of submissions that failed whole: `mistaken_runs`

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

    @property
    def kinds(self) -> tuple[str, ...]:
        """The `numerics` of the runs in `ok` (native, emulated, unproven), each once, native first."""
        return tuple(sorted({run.numerics for run in self.ok}, key=lambda kind: (kind != Numerics.native.name, kind)))

    @property
    def numerics(self) -> str | None:
        """The one `numerics` of the runs in `ok`, `MIXED` for several, None where no run is in `ok`."""
        return MIXED if len(self.kinds) > 1 else next(iter(self.kinds), None)

    @property
    def effective(self) -> tuple[str, ...]:
        """The precisions that runs in `ok` were measured to compute in, sorted; `NOT_PROVEN` where not measured."""
        return tuple(sorted({run.precision_effective or NOT_PROVEN for run in self.ok}))

    @property
    def has_speed(self) -> bool:
        """Whether these runs' times say anything about the level: only if all were native, and what they are called."""
        return self.numerics == Numerics.native.name and not (self.by_precision and self.is_impostor)

    @property
    def is_impostor(self) -> bool:
        """Whether any run was seen to compute in another precision than it was configured for."""
        return any(contradicts(run.precision, run.precision_effective) for run in self.ok)

    @property
    def why_no_speed(self) -> str:
        """Why the times of these runs cannot be used, in words; only where `has_speed` is false."""
        if self.numerics == MIXED:
            return f"{', '.join(self.kinds[:-1])} and {self.kinds[-1]} runs mixed"
        if self.numerics == Numerics.native.name:
            return NOT_AS_REQUESTED
        return str(self.numerics) if self.numerics == Numerics.emulated.name else f"numerics {self.numerics}"


def sort_runs(
    level: str,
    runs: Sequence[RunRecord],
    metric: str,
    *,
    by_precision: bool = False,
    mistaken: Collection[str] = (),
) -> Arm:
    """Return the arm of the *runs*, all of one level of one cell, by the last value of *metric*."""
    kinds: dict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        kinds[_kind(run, metric)].append(run)
    return Arm(
        level=level,
        ok=tuple(kinds["ok"]),
        nan=tuple(kinds["nan"]),
        without_metric=tuple(kinds["without_metric"]),
        incomplete=tuple(kinds["incomplete"]),
        failed=tuple(kinds["failed"]),
        unfinished=tuple(kinds["unfinished"]),
        values=by_seed(kinds["ok"], lambda run: metric_value(run, metric)),
        by_precision=by_precision,
        mistaken=frozenset(run.uid for run in kinds["failed"] if run.uid in mistaken),
    )


def _kind(run: RunRecord, metric: str) -> str:
    summary, value = run.metrics.get(metric), metric_value(run, metric)
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


def metric_value(run: RunRecord, metric: str) -> float | None:
    """Return the last value of *metric*, or None where it is not finite or was never recorded.

    The last, not the best: picking the best step of each run rewards noise, and the noisier arm most.
    """
    summary = run.metrics.get(metric)
    if summary is None or summary.last is None or not math.isfinite(summary.last):
        return None
    return summary.last


def is_own_doing(run: RunRecord) -> bool:
    """Tell whether *run* failed by its program or for want of memory, and not by the cluster or a person."""
    cause = None if run.cause is None else Cause(run.cause) if run.cause in set(Cause) else Cause.UNKNOWN
    return run.state in (State.FAILED, State.OUT_OF_MEMORY) and cause in _OWN_CAUSES


def excluded(arm: Arm, metric: str) -> list[Excluded]:
    """Return the runs of *arm* that do not enter the statistics, each with its reason in words."""
    reasons = [(run, f"{run.state}{f': {run.reason}' if run.reason else ''}") for run in arm.failed + arm.unfinished]
    before = {run.uid: "" if run.state is State.COMPLETED else f"{run.state}, and before that " for run in arm.nan}
    reasons += [(run, f"{before[run.uid]}{metric} ended non-finite") for run in arm.nan]
    reasons += [(run, f"{metric} was never recorded") for run in arm.without_metric]
    reasons += [(run, f"incomplete: {run.incomplete}") for run in arm.incomplete]
    return [Excluded(uid=run.uid, level=arm.level, reason=reason) for run, reason in reasons]


def mistaken_runs(levels: Iterable[str], runs: Iterable[RunRecord]) -> frozenset[str]:
    """Return the uids of *runs* whose submission failed as a whole before any metric was read.

    These are all that are compared, with their *levels*. Where runs of several levels all failed in the same words,
    somebody forgot a file, a package or a flag, and mended it: no arm's own doing.
    """
    submissions: dict[str | None, list[tuple[str, RunRecord]]] = defaultdict(list)
    for level, run in zip(levels, runs, strict=True):
        submissions[run.submission].append((level, run))
    return frozenset(
        run.uid
        for submission, members in submissions.items()
        if submission is not None
        and len({level for level, _ in members}) > 1
        and len({run.reason for _, run in members}) == 1
        and all(
            run.state is State.FAILED and run.cause == Cause.PROGRAM and run.reason and not run.metrics
            for _, run in members
        )
        for _, run in members
    )


def at_common_step(runs: Sequence[RunRecord], metric: str, curves: Curves) -> tuple[list[RunRecord], list[Flag]]:
    """Return *runs* with those that their walltime ended as completed at the last step that all of these reached.

    Their value of *metric* is the last one up to that step of their *curves*. The second is the flag that says so; []
    where none reported the metric.
    """
    ended = {run.uid: curves[run.uid] for run in runs if run.state is State.TIMEOUT and curves.get(run.uid)}
    if not ended:
        return list(runs), []
    common = min(curve[-1].step for curve in ended.values())
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
    return found, [flag(FlagCode.WALLTIME, n=len(ended), of=len(runs), metric=metric, step=common)]


def by_seed(runs: Iterable[RunRecord], read: Callable[[RunRecord], float | None]) -> BySeed:
    """Return one number for each seed, the mean of what *read* finds in its runs; a seed without any is absent."""
    found: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        if (value := read(run)) is not None:
            found[run.seed].append(value)
    return {seed: average(values) for seed, values in sorted(found.items())}


def median_of(values: BySeed, *, scale: float = 1.0) -> float | None:
    """Return the median over seeds times *scale* (e.g. 1000 for s to ms), or None where there is none."""
    return median(values.values()) * scale if values else None


def node_of(run: RunRecord) -> str | None:
    """Return the (first) node of *run*; None where it is not known."""
    node = run.facts.get("hostname")
    return None if node is None else str(node)


def device_of(run: RunRecord) -> str | None:
    """Return the device that *run* computed on, "cuda (NVIDIA A100)"; None where it is not known."""
    kind = run.facts.get("device")
    model = run.facts.get("cpu_model" if kind == "cpu" else "gpu_model")
    return None if kind is None else f"{kind} ({model})" if model else str(kind)


def one_device(runs: Iterable[RunRecord]) -> str | None:
    """Return the device of all *runs*; None where it is not known, or they had several."""
    devices = {device_of(run) for run in runs}
    return devices.pop() if len(devices) == 1 else None
