"""The next points of a search, and which runs to stop early: by Optuna, from what the runs of the study have recorded.

Optuna keeps nothing: the study is rebuilt in memory from the runs each time, in the order in which they were submitted
and ended. The same runs and the same seed give the same next points.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from hpcml.errors import ConfigError
from hpcml.model.choices import Goal
from hpcml.model.search import Axis, PrunerName, SamplerName, Search, Value, grid, grid_size

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

_OLDEST = 5  # of Optuna: the first whose TPE keeps away from points under way without being told to
_MOST_LISTED = 100_000  # points of a space that are listed to find those that were not tried
_TRIES = 100  # for a point that was not tried before
_INSTALL = "pip install 'hpcml[tune]'"

Point = Mapping[str, Value]  # a value for each axis, by its key


class PointState(Enum):
    """What a run tells the search."""

    UNDER_WAY = "under way"  # it waits, runs, or is about to be tried again
    TOLD = "told"  # it has a value
    FAILED = "failed"  # it ended without one
    PRUNED = "pruned"  # it was stopped early


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One run of a study; `began_at` and `ended_at` are unix seconds, the latter None while it is under way."""

    uid: str
    point: Point
    outcome: PointState
    began_at: float
    ended_at: float | None = None
    value: float | None = None
    reported: Mapping[int, float] = field(default_factory=dict)  # values of the metric by step, where it may be pruned


def next_points(search: Search, axes: Sequence[Axis], tried: Sequence[Tried], count: int) -> list[Point]:
    """Return *count* points to be tried next, none of which was tried before.

    There are fewer where the space has no more. Raises `ConfigError` where Optuna is not installed, or too old.
    """
    known = {tuple(run.point.values()) for run in tried}
    size = grid_size(axes)
    rest = None
    if search.sampler is SamplerName.grid or (size is not None and size <= _MOST_LISTED):
        rest = [point for point in grid(axes) if tuple(point.values()) not in known]
        count = min(count, len(rest))
    if rest is not None and (search.sampler is SamplerName.grid or count == len(rest)):
        return rest[:count]
    found: list[Point] = []
    study, chance = _rebuilt(search, axes, tried), random.Random(search.seed + len(tried))  # noqa: S311
    for _ in range(count):
        point = _new_point(study, axes, known)
        if point is None and rest is not None:
            point = chance.choice([each for each in rest if tuple(each.values()) not in known])
        if point is None:
            break
        known.add(tuple(point.values()))
        found.append(point)
    return found


def _new_point(study: optuna.Study, axes: Sequence[Axis], known: set[tuple[Value, ...]]) -> Point | None:
    """Ask *study* for a point that is not *known*; None where it repeats itself."""
    from optuna.trial import TrialState  # noqa: PLC0415 - an extra, which takes half a second

    for _ in range(_TRIES):
        trial = study.ask(_distributions(axes))
        point = {axis.key: axis.rounded(trial.params[axis.key]) for axis in axes}
        if tuple(point.values()) not in known:
            return point
        study.tell(trial, state=TrialState.FAIL)
    return None


def to_prune(search: Search, axes: Sequence[Axis], tried: Sequence[Tried]) -> list[str]:
    """Return the uids of the runs under way that the pruner of *search* would stop, by what they reported so far."""
    doomed: list[str] = []
    if search.pruner is not PrunerName.none:
        _rebuilt(search, axes, tried, doomed)
    return doomed


def _rebuilt(
    search: Search, axes: Sequence[Axis], tried: Sequence[Tried], doomed: list[str] | None = None
) -> optuna.Study:
    """Return the study with all that *tried* tells; *doomed* gets the uids of runs under way that should be pruned."""
    check_optuna()
    import optuna  # noqa: PLC0415 - an extra, which takes half a second
    from optuna.trial import TrialState  # noqa: PLC0415

    is_replayed = search.sampler is SamplerName.cmaes  # which keeps its state in the trials that it has proposed
    sampler = _sampler(search, len(tried))
    study = optuna.create_study(
        study_name=search.study,  # Hyperband draws its brackets by it
        direction="maximize" if search.goal is Goal.max else "minimize",
        sampler=sampler if is_replayed else optuna.samplers.RandomSampler(seed=search.seed),
        pruner=_pruner(search.pruner),
    )
    trials: dict[str, optuna.Trial] = {}
    for run, is_end in _history(tried):
        if not is_end:
            study.enqueue_trial(dict(run.point))
            trials[run.uid] = study.ask(_distributions(axes))
            continue
        trial = trials[run.uid]
        should_stop = _report(trial, run.reported)
        if run.outcome is PointState.UNDER_WAY:
            if should_stop and doomed is not None:
                doomed.append(run.uid)
        elif run.outcome is PointState.TOLD:
            study.tell(trial, run.value)
        else:
            is_pruned = run.outcome is PointState.PRUNED and bool(run.reported)
            study.tell(trial, state=TrialState.PRUNED if is_pruned else TrialState.FAIL)
    study.sampler = sampler
    return study


def _history(tried: Sequence[Tried]) -> Iterator[tuple[Tried, bool]]:
    """Yield each run as it was submitted (False) and as it ended (True), in the order of time; those under way last."""
    begins = [(run.began_at, False, run) for run in tried]
    ends = [(math.inf if run.ended_at is None else max(run.ended_at, run.began_at), True, run) for run in tried]
    for _, is_end, run in sorted(itertools.chain(begins, ends), key=lambda each: (each[0], each[1], each[2].uid)):
        yield run, is_end


def _report(trial: optuna.Trial, reported: Mapping[int, float]) -> bool:
    """Report the values of a run to *trial*; return whether its pruner would have stopped it by now."""
    should_stop = False
    for step, value in sorted(reported.items()):
        trial.report(value, step)
        should_stop = trial.should_prune() or should_stop
    return should_stop


def _distributions(axes: Sequence[Axis]) -> dict[str, BaseDistribution]:
    from optuna import distributions  # noqa: PLC0415 - as above

    found: dict[str, BaseDistribution] = {}
    for axis in axes:
        if axis.choices:
            found[axis.key] = distributions.CategoricalDistribution(axis.choices)
        elif axis.is_whole:
            found[axis.key] = distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.is_log)
        else:
            found[axis.key] = distributions.FloatDistribution(axis.low, axis.high, log=axis.is_log)
    return found


def _sampler(search: Search, n_tried: int) -> BaseSampler:
    """Return the sampler, seeded such that it goes on and does not repeat what it has drawn."""
    from optuna import samplers  # noqa: PLC0415 - as above

    if search.sampler is SamplerName.cmaes:
        return samplers.CmaEsSampler(seed=search.seed, warn_independent_sampling=False)
    if search.sampler is SamplerName.random:
        return samplers.RandomSampler(seed=search.seed + n_tried)
    return samplers.TPESampler(seed=search.seed + n_tried)


def _pruner(pruner: PrunerName) -> BasePruner:
    from optuna import pruners  # noqa: PLC0415 - as above

    if pruner is PrunerName.median:
        return pruners.MedianPruner()
    return pruners.HyperbandPruner() if pruner is PrunerName.hyperband else pruners.NopPruner()


def importances(search: Search, axes: Sequence[Axis], tried: Sequence[Tried]) -> dict[str, float]:
    """Return by the name of each axis its share in how the value varies, by PED-ANOVA as Optuna computes it.

    Empty where fewer than two runs have a value, or all have the same. Reference: Watanabe, Bansal and Hutter 2023,
    "PED-ANOVA", IJCAI.
    """
    values = {run.value for run in tried if run.outcome is PointState.TOLD}
    if len(values) < 2:
        return {}
    check_optuna()
    from optuna.importance import get_param_importances  # noqa: PLC0415 - as above

    shares = get_param_importances(_rebuilt(search, axes, tried))
    return {axis.name: shares[axis.key] for axis in axes if axis.key in shares}


def check_optuna() -> None:
    """Raise `ConfigError` where Optuna is not installed, or too old."""
    try:
        import optuna  # noqa: PLC0415 - as above
    except ImportError as error:
        raise ConfigError(f"hpcml tune needs Optuna: {_INSTALL}") from error
    if int(optuna.__version__.partition(".")[0]) < _OLDEST:
        raise ConfigError(f"hpcml tune needs Optuna {_OLDEST} or newer, and {optuna.__version__} is here: {_INSTALL}")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
