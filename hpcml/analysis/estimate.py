"""`hpcml plan --time`: how long runs will take and what they will use, from recorded runs of the same work. Pure.

`find_precedents` chooses the recorded runs, `find_pace` splits each into start-up and steps, `estimate` predicts. Each
recorded run predicts the wanted one by its own pace. The geometric mean of the predictions is the estimate. A 95 %
prediction interval for the next run comes from Student's t on their logarithms, ``± t(df) * s * sqrt(1 + 1/n)``, with
the spread s pooled over all configurations of the sweep; below `_LEAST_DF` degrees of freedom there is none. Where no
run is alike, those that differ in the fewest settings give a range without a confidence: a step with another batch
size, or on another number of devices, is taken to cost something between the same and in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from scipy import special  # not scipy.stats: it takes a second to import

from hpcml.analysis.compare.result import Interval
from hpcml.analysis.planning import Estimate, Forecast, Total, Wanted
from hpcml.analysis.steady import MIN_STEPS, Curves
from hpcml.model.identity import changes_results
from hpcml.model.mig import gpus_of_run
from hpcml.model.own_program import is_own_program
from hpcml.model.records import Point, RunRecord
from hpcml.model.state import State
from hpcml.model.told_apart import show

_CONFIDENCE = 0.95
_LEAST_DF = 2  # with one, t is 12.7: an interval from minutes to days says nothing
_USELESS = 5.0  # an interval that goes so many times beyond the estimate says that the runs are not alike
_HEADROOM = 1.2  # of a suggested walltime, over the upper bound: file systems have bad days
_WITHOUT_INTERVAL = 2.0  # over the longest prediction, where there is no bound
_FAR = 3  # times more steps than ever recorded
_J_PER_KWH = 3.6e6
_LADDER_S = ((3600, 300), (6 * 3600, 1800), (24 * 3600, 3600), (math.inf, 6 * 3600))  # up to, in steps of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prediction:
    """The wall time in seconds that one recorded run predicts."""

    run: RunRecord
    wall_s: float
    low_s: float  # differs from `wall_s` where the run is not alike
    high_s: float
    pace: RunPace | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """The pooled standard deviation of log durations of runs that are alike, and its degrees of freedom."""

    log_sd: float | None
    df: int


def estimate(wanted: Sequence[Wanted], precedents: Sequence[Precedents], curves: Curves) -> Estimate:
    """Return a forecast for each of *wanted*, and the sum over all.

    *precedents* are the recorded runs of each of *wanted*, in the same order; *curves* their curves of ``step_time_s``
    by uid. A forecast without usable runs has the basis "none" and no numbers.
    """
    runs = {run.uid: run for found in precedents for run in found.runs}
    paces = {uid: find_pace(run, curves.get(uid, ())) for uid, run in runs.items()}
    predictions = [
        [one for run in found.runs if (one := _prediction(each, run, paces[run.uid])) is not None]
        for each, found in zip(wanted, precedents, strict=True)
    ]
    spread = _pooled(precedents, predictions)
    forecasts = [
        _forecast(each, found, of, spread) for each, found, of in zip(wanted, precedents, predictions, strict=True)
    ]
    known = [each for each in forecasts if each.wall_s is not None]
    return Estimate(
        forecasts=forecasts,
        total=_total(forecasts),
        longest=max(known, key=lambda each: each.high_s or 0.0, default=None),
        log_sd=spread.log_sd,
        df=spread.df,
    )


def suggest_walltime_s(needed_s: float) -> int:
    """Return *needed_s* rounded up as people write walltimes: to 5 minutes, half hours, hours, quarters of days.

    >>> suggest_walltime_s(3500), suggest_walltime_s(4000)
    (3600, 5400)
    """
    step_s = next(step_s for up_to_s, step_s in _LADDER_S if needed_s <= up_to_s)
    return step_s * math.ceil(needed_s / step_s)


def _prediction(wanted: Wanted, run: RunRecord, pace: RunPace | None) -> _Prediction | None:
    """Return the prediction of *run*; None where it has no pace and another number of steps."""
    assert run.wall_s is not None
    low, high = _scale(wanted.params, run.params)
    steps, recorded = (params.get("training.steps") for params in (wanted.params, run.params))
    if is_own_program(wanted.params):  # it is free to ignore the number of steps
        more_steps = _ratio(wanted.params, run.params, "training.steps")
        low, high = low * min(1.0, more_steps), high * max(1.0, more_steps)
    elif pace is not None:
        walls = [pace.fixed_s + int(steps or 0) * pace.step_s * factor for factor in (1.0, low, high)]
        return _Prediction(run=run, wall_s=walls[0], low_s=walls[1], high_s=walls[2], pace=pace)
    elif steps != recorded:
        return None
    return _Prediction(run=run, wall_s=run.wall_s, low_s=run.wall_s * low, high_s=run.wall_s * high, pace=None)


def _scale(wanted: Mapping[str, Any], recorded: Mapping[str, Any]) -> tuple[float, float]:
    """Return how many times longer a step may take, at least and at most."""
    samples = _ratio(wanted, recorded, "training.batch_size")
    devices = devices_of(recorded) / devices_of(wanted)
    return min(1.0, samples) * min(1.0, devices), max(1.0, samples) * max(1.0, devices)


def _ratio(wanted: Mapping[str, Any], recorded: Mapping[str, Any], key: str) -> float:
    own, other = wanted.get(key), recorded.get(key)
    return float(own) / float(other) if own and other else 1.0


def _pooled(precedents: Sequence[Precedents], predictions: Sequence[Sequence[_Prediction]]) -> _Spread:
    squares, df = [], 0
    seen: set[frozenset[str]] = set()
    for found, of in zip(precedents, predictions, strict=True):
        uids = frozenset(each.run.uid for each in of)
        if found.differing or len(of) < 2 or uids in seen:
            continue
        seen.add(uids)
        logs = [math.log(each.wall_s) for each in of]
        mean = fmean(logs)
        squares += [(log - mean) ** 2 for log in logs]
        df += len(logs) - 1
    return _Spread(log_sd=math.sqrt(math.fsum(squares) / df) if df else None, df=df)


def _forecast(wanted: Wanted, found: Precedents, predictions: Sequence[_Prediction], spread: _Spread) -> Forecast:
    if not predictions:
        return Forecast(wanted=wanted, basis="none", differing=found.differing)
    uids = [each.run.uid for each in predictions]
    wall_s = math.exp(fmean(math.log(each.wall_s) for each in predictions))
    interval, range_s = _interval(wall_s, len(predictions), spread), None
    if found.differing:
        range_s = min(each.low_s for each in predictions), max(each.high_s for each in predictions)
        wall_s = math.sqrt(range_s[0] * range_s[1])
        interval, needed_s = None, range_s[1]
    elif interval is not None:
        needed_s = interval.high
    else:
        needed_s = max(each.wall_s for each in predictions) * _WITHOUT_INTERVAL
    paces = [each.pace.fixed_s for each in predictions if each.pace is not None]
    powers = [
        each.run.usage.energy_j / each.run.wall_s
        for each in predictions
        if each.run.usage is not None and each.run.usage.energy_j is not None and each.run.wall_s
    ]
    suggested_s = suggest_walltime_s(needed_s * _HEADROOM + wanted.margin_s)
    return Forecast(
        wanted=wanted,
        basis="near" if found.differing else "alike",
        uids=uids,
        differing=found.differing,
        wall_s=wall_s,
        interval=interval,
        range_s=range_s,
        start_s=median(paces) if paces else None,
        energy_j=median(powers) * wall_s if powers and not found.differing else None,
        suggested_s=suggested_s,
        remarks=tuple(_remarks(wanted, predictions, interval, range_s, suggested_s)),
    )


def _interval(wall_s: float, count: int, spread: _Spread) -> Interval | None:
    """Return the 95 % prediction interval of one more run; None where the runs are too few or differ too much."""
    if spread.log_sd is None or spread.df < _LEAST_DF:
        return None
    half = float(special.stdtrit(spread.df, (1 + _CONFIDENCE) / 2)) * spread.log_sd * math.sqrt(1 + 1 / count)
    if half > math.log(_USELESS):
        return None
    return Interval(low=wall_s * math.exp(-half), high=wall_s * math.exp(half), confidence=_CONFIDENCE)


def _remarks(
    wanted: Wanted,
    predictions: Sequence[_Prediction],
    interval: Interval | None,
    range_s: tuple[float, float] | None,
    suggested_s: int,
) -> Iterator[str]:
    longest = max((each.pace.steps for each in predictions if each.pace is not None), default=0)
    steps = int(wanted.params.get("training.steps") or 0)
    if longest and steps > _FAR * longest:
        yield f"{steps} steps are extrapolated from {longest} at most"
    if interval is None and range_s is None:
        walls = [each.wall_s for each in predictions]
        runs = f"{len(walls)} recorded run{'s'[: len(walls) != 1]}"
        apart = max(walls) / min(walls)
        why = (
            f"the longest {apart:.2g} times as long as the shortest" if apart > _USELESS / 2 else "too few to tell more"
        )
        yield f"no interval: {runs}, {why}"
    models = {each.run.facts.get("gpu_model") for each in predictions} - {None}
    if len(models) > 1:
        yield f"recorded on several GPUs: {', '.join(sorted(map(str, models)))}"
    if wanted.limit_s is not None and suggested_s > wanted.limit_s:
        yield "it may need more walltime than its queue allows: let it leave checkpoints and be queued again"


def _total(forecasts: Sequence[Forecast]) -> Total:
    known = [each for each in forecasts if each.wall_s is not None]
    with_gpus = [each for each in known if each.wanted.gpus]
    by_nodes = [each for each in known if each.wanted.whole_nodes]
    energies = [each.energy_j for each in with_gpus if each.energy_j is not None]
    co2 = [
        each.energy_j / _J_PER_KWH * each.wanted.co2_g_per_kwh
        for each in with_gpus
        if each.energy_j is not None and each.wanted.co2_g_per_kwh is not None
    ]
    is_complete = len(known) == len(forecasts) and bool(energies)
    return Total(
        known=len(known),
        unknown=len(forecasts) - len(known),
        wall_s=math.fsum(each.wall_s or 0.0 for each in known),
        low_s=math.fsum(each.low_s or 0.0 for each in known),
        high_s=math.fsum(each.high_s or 0.0 for each in known),
        gpu_hours=math.fsum((each.wall_s or 0.0) * each.wanted.charged_gpus for each in known) / 3600,
        gpu_hours_low=math.fsum((each.low_s or 0.0) * each.wanted.charged_gpus for each in known) / 3600,
        gpu_hours_high=math.fsum((each.high_s or 0.0) * each.wanted.charged_gpus for each in known) / 3600,
        node_hours=math.fsum((each.wall_s or 0.0) * each.wanted.nodes for each in by_nodes) / 3600
        if by_nodes
        else None,
        energy_j=math.fsum(energies) if is_complete and len(energies) == len(with_gpus) else None,
        co2_g=math.fsum(co2) if is_complete and len(co2) == len(with_gpus) else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPace:
    """The wall time of one run in two parts, of which the first does not grow with its steps."""

    fixed_s: float  # imports, data, compilation, warm-up, and what comes after the last step
    step_s: float  # from one step to the next: waiting for data, evaluations and checkpoints included
    steps: int


def find_pace(run: RunRecord, step_times: Sequence[Point]) -> RunPace | None:
    """Return the pace of a completed run, from the times at which it reported its steps; None: it reported too few.

    *step_times* is the curve ``step_time_s``. The time of a step is the mean over the last half of the run: a duration
    is a sum, so that stalls, evaluations and checkpoints belong to it.
    """
    points = sorted(point for point in step_times if point.step >= 0)
    if run.wall_s is None or len(points) < 2 * MIN_STEPS:
        return None
    middle, last = points[len(points) // 2], points[-1]
    step_s = (last.t_s - middle.t_s) / (last.step - middle.step)
    if not step_s > 0:
        return None
    return RunPace(fixed_s=max(0.0, run.wall_s - last.step * step_s), step_s=step_s, steps=last.step)


_MOST = 20  # of the runs found, the newest: software and machines change
_LISTED = 4  # values of one setting, in a line
# What must be the same, or the runs say nothing about each other.
_SAME_WORK = ("model.name", "model.recipe", "data.name", "cluster.name", "workload.command")
# What does not change how long a run takes, or is accounted for: steps are counted.
_NEUTRAL = frozenset({"seed", "experiment", "data.path", "workload.cwd", "workload.metrics", "training.learning_rate"})
_COUNTED = frozenset({"training.steps"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Precedents:
    """Recorded runs, the newest first, and the settings in which they differ from the wanted run.

    `differing` has lines for people; it is empty where the runs are alike but for seed and number of steps.
    """

    runs: Sequence[RunRecord] = ()
    differing: Sequence[str] = ()


def find_precedents(wanted: Wanted, runs: Sequence[RunRecord]) -> Precedents:
    """Return the newest completed *runs* that are alike, else those that differ in the fewest settings, else none.

    Only runs of the same model, recipe, data, cluster and kind of device are looked at.
    """
    able = [run for run in runs if _is_same_work(wanted, run)]
    differences = {run.uid: differing_keys(wanted.params, run.params) for run in able}
    fewest = min(map(len, differences.values()), default=0)
    nearest = [run for run in able if len(differences[run.uid]) == fewest]
    keys = sorted({key for run in nearest for key in differences[run.uid]})
    newest = sorted(nearest, key=lambda run: (run.t_end or 0.0, run.uid), reverse=True)
    return Precedents(runs=newest[:_MOST], differing=[_difference(key, wanted, nearest) for key in keys])


def differing_keys(wanted: Mapping[str, Any], recorded: Mapping[str, Any]) -> frozenset[str]:
    """Return the settings that may change a duration and differ; a setting that only one side has is no difference."""
    neutral = _NEUTRAL
    if not is_own_program(wanted):
        neutral |= _COUNTED  # the user's own program is free to ignore them: there, only the same number says something
    return frozenset(
        key
        for key in wanted.keys() & recorded.keys()
        if changes_results(key)  # not where it waits: the GPU that this led to is a fact
        and key not in neutral
        and not key.startswith("objective.")
        and show(wanted[key]) != show(recorded[key])
    )


def devices_of(params: Mapping[str, Any]) -> int:
    """Return the devices of a run with these settings over all nodes (without GPUs: its processes)."""
    per_node = params.get("strategy.processes_per_node") or gpus_of_run(params) or 1
    return int(params.get("resources.nodes") or 1) * int(per_node)


def _is_same_work(wanted: Wanted, run: RunRecord) -> bool:
    if run.state is not State.COMPLETED or run.wall_s is None or run.wall_s <= 0 or run.attempt > 0:
        return False  # between two attempts lies the queue
    if any(show(wanted.params.get(key)) != show(run.params.get(key)) for key in _SAME_WORK):
        return False
    if run.numerics not in (wanted.numerics, "unproven"):
        return False
    kind = run.facts.get("device") or ("cuda" if run.facts.get("gpu_model") else "cpu")
    model = run.facts.get("cpu_model" if kind == "cpu" else "gpu_model")
    return kind == wanted.device and (wanted.device_model is None or model in (None, wanted.device_model))


def _difference(key: str, wanted: Wanted, runs: Sequence[RunRecord]) -> str:
    values = list(dict.fromkeys(show(run.params[key]) for run in runs if key in run.params))
    more = f" and {len(values) - _LISTED} more" if len(values) > _LISTED else ""
    return f"{key}={show(wanted.params[key])} (recorded: {', '.join(values[:_LISTED])}{more})"
