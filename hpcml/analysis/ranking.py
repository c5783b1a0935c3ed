"""`hpcml runs --best`: the runs with the best values of one metric. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from hpcml.analysis.compare.factor import differing_settings
from hpcml.analysis.compare.fairness import differing, setting, settings_of
from hpcml.analysis.compare.objective import Yardstick, find_yardstick
from hpcml.analysis.stats import average
from hpcml.errors import ComparisonError
from hpcml.model.divergence import diverged
from hpcml.model.record_keys import flag_setting, is_measured, value_of
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.model.told_apart import factor_name, setting_of, show


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One run in a ranking, with the value it is ranked by."""

    place: int  # from 1, within its group
    group: Sequence[Any]  # its values under the keys of the ranking
    settings: Sequence[Any] = ()  # its values of what the candidates differ in
    value: float
    step: int | None  # at which it had that value
    run: RunRecord
    alike_n: int = 1  # completed runs with a value that are alike in all but their seed
    alike_seeds: int = 1  # that these have
    alike_mean: float | None = None  # over seeds, of the means of each one's values; None: not finite, or none is left
    diverged: Sequence[str] = ()  # its losses that were no number at the last: the value may be from before


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The best runs by one metric, in each group."""

    metric: str
    goal: Literal["max", "min"]
    at: Literal["last", "best"]  # which value of a run counts: the one it ended with, or its best
    by: Sequence[str]
    ranked: Sequence[Ranked]  # group by group, the group with the best run first
    differ: Sequence[str] = ()  # names of settings in which the candidates differ, beside those of *by*
    candidates: int  # runs that had a value
    without: int  # runs that had none, or ended with one that is not finite


At = Literal["last", "best"]


def rank(
    runs: Sequence[RunRecord],
    *,
    metric: str | None,
    goal: str | None,
    at: At,
    by: Sequence[str] = (),
    count: int,
    now: float,
) -> Ranking:
    """Return the best *count* of *runs*, or of each group of those that are alike in all settings named in *by*.

    *metric* and *goal* ("max" or "min") of None are taken from the runs' objective. *at* is the last value of the
    metric or the best that the run ever had. *now* is in unix seconds, for values that depend on it (the age of a run).
    Of runs with the same value the older stands first; runs without a finite value are counted in `without`. Raises
    `ComparisonError` where the metric is unknown, or where metric or goal are not clear.
    """
    is_used = metric is not None and is_measured(metric) and not any(metric in run.metrics for run in runs)
    yardstick = _of_usage(metric, goal) if is_used and metric is not None else find_yardstick(runs, metric, goal)
    if yardstick.goal is None:
        raise ComparisonError(f"{yardstick.metric}: nothing tells which way it is better: --goal max|min")
    measured = partial(value_of, key=yardstick.metric, now=now)
    found = [(run, *((_number(measured(run)), None) if is_used else _value(run, yardstick, at))) for run in runs]
    having = [(run, value, step) for run, value, step in found if value is not None and math.isfinite(value)]
    having.sort(key=lambda each: (-each[1] if yardstick.higher_is_better else each[1], each[0].uid))
    keys = [_meant(key, runs) for key in by]
    swept = [key for key in differing_settings([run for run, _, _ in having]) if not _is_shown(key, [*by, *keys])]
    groups: dict[str, list[Ranked]] = {}
    settings = _settings([run for run, _, _ in having])
    alike = _by_settings([(run, value) for run, value, _ in having], settings)
    ended = diverged([run for run, _, _ in having])
    for run, value, step in having:
        group = [value_of(run, key, now=now) for key in keys]
        members = groups.setdefault(repr(group), [])
        if len(members) < count:
            among = alike[settings[run.uid]]
            members.append(
                Ranked(
                    place=len(members) + 1,
                    group=tuple(group),
                    settings=tuple(setting_of(run, key) for key in swept),
                    value=value,
                    step=step,
                    run=run,
                    alike_n=sum(map(len, among.values())),
                    alike_seeds=len(among),
                    alike_mean=_mean([_mean(values) for values in among.values()]),
                    diverged=ended.get(run.uid, ()),
                )
            )
    return Ranking(
        metric=yardstick.metric,
        goal=yardstick.goal,
        at=at,
        by=tuple(by),
        differ=tuple(map(factor_name, swept)),
        ranked=[each for members in groups.values() for each in members],
        candidates=len(having),
        without=len(runs) - len(having),
    )


def _by_settings(
    having: Sequence[tuple[RunRecord, float]], settings: Mapping[str, str]
) -> Mapping[str, Mapping[int, Sequence[float]]]:
    """Return the values of runs by their *settings* and seed; what was cut off half-way is no value of its settings."""
    alike = defaultdict[str, defaultdict[int, list[float]]](lambda: defaultdict(list))
    for run, value in having:
        if run.state is State.COMPLETED:
            alike[settings[run.uid]][run.seed].append(value)
    return alike


def _settings(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return by uid in what each of *runs* may differ from others beside its seed, as one text."""
    reads = [setting(key, runs) for key in differing(runs, settings_of(runs))]
    return {run.uid: repr([show(read(run)) for read in reads]) for run in runs}


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of *values*, None where it is not finite, or there is none to take it of."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    found = average(known)
    return found if math.isfinite(found) else None


def _meant(key: str, runs: Sequence[RunRecord]) -> str:
    """Return which value of the runs *key* is: a flag that was typed for each one's program, as ``--by`` reads it."""
    flag = flag_setting(key)
    return flag if runs and all(flag in run.params for run in runs) else key


def _is_shown(key: str, by: Sequence[str]) -> bool:
    """Tell whether the setting *key* is told of each run anyway."""
    name = factor_name(key)
    return name in ("precision", "model") or not {key, name, f"args.{name}"}.isdisjoint(by)


def _of_usage(metric: str, goal: str | None) -> Yardstick:
    """Return the yardstick for what hpcml itself measures (energy, memory ...): no goal is configured for it."""
    wanted: Literal["max", "min"] | None = None if goal is None else "max" if goal == "max" else "min"
    return Yardstick(metric=metric, goal=wanted, goal_source="command line")


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _value(run: RunRecord, yardstick: Yardstick, at: At) -> tuple[Any, int | None]:
    summary = run.metrics.get(yardstick.metric)
    if summary is None:
        return None, None
    if at == "last":
        return summary.last, summary.last_step
    return (summary.max, summary.max_step) if yardstick.higher_is_better else (summary.min, summary.min_step)
