"""What recorded runs differ in, how they scale, and what they attain: ``hpcml compare``, ``scaling``, ``peak``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from hpcml.analysis.attained import Attainment
from hpcml.analysis.compare.comparison import COMMUNICATION, DATA, STEP, compare
from hpcml.analysis.compare.objective import find_yardstick
from hpcml.analysis.compare.result import Comparison, ComparisonRequest
from hpcml.analysis.hours import find_hours
from hpcml.analysis.peak import attain
from hpcml.analysis.published import published_figures
from hpcml.analysis.scaling.result import Scaling
from hpcml.analysis.scaling.study import ScalingRequest, study_scaling
from hpcml.analysis.steady import Curves, StepCurves
from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import Selection, select
from hpcml.errors import ComparisonError, HpcmlError
from hpcml.model.hours import Hours
from hpcml.model.precision import PrecisionName
from hpcml.model.query_results import Timeline
from hpcml.model.records import Curve, RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.files import read_raw
from hpcml.runs.layout import RunDir
from hpcml.spelling import did_you_mean
from hpcml.store import query
from hpcml.store.attempts import attempts_of, others_of_experiments
from hpcml.store.database import Database
from hpcml.store.telemetry import timelines

_NAMED = 6  # packages in one line


def compare_runs(places: Places, selection: Selection, request: ComparisonRequest) -> Comparison:
    """Return the comparison of the selected runs, whose levels, metric and tests *request* says.

    Raises `ComparisonError` where it would not be fair: the runs differ in more than the compared setting, for example.
    """
    with opened(places) as store:
        collect(store, places)
        runs = select(store, selection, refusal="no run matches: nothing to compare")
        return compare_selected(store, runs, request, step_curves(store, runs))


def hours_of(store: Database, runs: Sequence[RunRecord]) -> tuple[Hours, Hours]:
    """Return the hours of *runs*, and those of all runs of their experiments."""
    others = others_of_experiments(store, {run.experiment for run in runs}, {run.uid for run in runs})
    attempts = attempts_of(store, [run.uid for run in (*runs, *others)])
    return find_hours(runs, attempts), find_hours([*runs, *others], attempts)


def compare_selected(
    store: Database,
    runs: Sequence[RunRecord],
    request: ComparisonRequest,
    steps: Mapping[str, Curves],
    sampled: Mapping[str, Sequence[Timeline]] | None = None,
) -> Comparison:
    """Return the comparison of *runs*; *steps* are their `step_curves`, *sampled* their telemetry timelines by uid.

    The compared metric's curves are read from the store only where there is a target to reach, or no run completed;
    timelines that were not given (None) only for a target.
    """
    curves = dict(steps)
    has_target = request.target is not None or any(run.params.get("objective.target") is not None for run in runs)
    if runs and (has_target or not any(run.state is State.COMPLETED for run in runs)):
        judged = find_yardstick(runs, request.metric, request.goal).metric
        curves[judged] = curves_of(store, runs, judged)
        if sampled is None and has_target:
            sampled = {run.uid: timelines(store, run.uid) for run in runs if run.usage is not None}
    return compare(with_packages(runs), steps[STEP], request, more_curves=curves, timelines=sampled)


def step_curves(store: Database, runs: Sequence[RunRecord], *, is_timed: bool = False) -> dict[str, Curves]:
    """Return what *runs* reported of each step: by metric, then by uid.

    The metrics are the time of a step, the wait for input, and the communication, all in seconds. When a step was
    made is left out unless *is_timed*.
    """
    return {name: curves_of(store, runs, name, is_timed=is_timed) for name in (STEP, DATA, COMMUNICATION)}


def curves_of(store: Database, runs: Sequence[RunRecord], metric: str, *, is_timed: bool = True) -> dict[str, Curve]:
    """Return the curves of *metric* by uid, with times if *is_timed*; runs that never reported it are left out."""
    return query.curves(store, [run.uid for run in runs if metric in run.metrics], metric, is_timed=is_timed)


def with_packages(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return *runs* with the packages in which they differ named in the fact ``packages``, in place of a digest.

    What was installed stands in run.json; where that cannot be read the digest stays. In the same way loaded modules
    are those that not all runs have.
    """
    runs = _with_modules(runs)
    first = {str(run.facts["packages"]): run for run in runs if "packages" in run.facts}
    if len(first) < 2:
        return list(runs)
    lists = {digest: _packages(run) for digest, run in first.items()}
    known = [of for of in lists.values() if of is not None]
    names = sorted({name for of in known for name in of if len({each.get(name) for each in known}) > 1})
    told = {digest: _named(of, names) for digest, of in lists.items() if of is not None}
    return [
        replace(run, facts={**run.facts, "packages": told[digest]})
        if (digest := str(run.facts.get("packages"))) in told
        else run
        for run in runs
    ]


def _with_modules(runs: Sequence[RunRecord]) -> Sequence[RunRecord]:
    loaded = {run.uid: set(str(run.facts["modules"]).split(", ")) for run in runs if "modules" in run.facts}
    if len(loaded) < len(runs) or len(set(map(frozenset, loaded.values()))) < 2:
        return runs
    of_all = set.intersection(*loaded.values())
    told = {uid: ", ".join(sorted(modules - of_all)) or "no other" for uid, modules in loaded.items()}
    return [replace(run, facts={**run.facts, "modules": told[run.uid]}) for run in runs]


def _packages(run: RunRecord) -> Mapping[str, str] | None:
    try:
        packages = read_raw(RunDir(Path(run.path)).manifest)["provenance"]["packages"]
    except (HpcmlError, KeyError, TypeError):  # the store outlives directories, and has those of other machines
        return None
    return packages if isinstance(packages, dict) else None


def _named(packages: Mapping[str, str], names: Sequence[str]) -> str:
    shown = ", ".join(f"{name} {packages.get(name, 'absent')}" for name in names[:_NAMED])
    more = len(names) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def scale_runs(places: Places, selection: Selection, question: ScalingRequest) -> Scaling:
    """Return speed-up and efficiency of the selected runs by their number of devices.

    Raises `ComparisonError` where they say nothing about it: all have the same number of devices, for example.
    """
    with with_steps(places, selection) as (runs, curves):
        return study_scaling(runs, curves, question)


@contextmanager
def with_steps(places: Places, selection: Selection) -> Iterator[tuple[list[RunRecord], StepCurves]]:
    """Yield the selected runs, and by uid the times of their steps in seconds (empty where none were reported)."""
    with opened(places) as store:
        collect(store, places)
        runs = select(store, selection, refusal="no run matches: nothing to look at")
        uids = [run.uid for run in runs]
        curves = StepCurves(
            step_s=query.curves(store, uids, "step_time_s"),
            communication_s=query.curves(store, uids, "communication_time_s"),
            waiting_s=query.curves(store, uids, "data_time_s"),
        )
        yield runs, curves


def attained_by(places: Places, selection: Selection, cpu_peaks: Sequence[str] = ()) -> Attainment:
    """Return the share of their devices' peak that the selected runs attained, beside published figures.

    *cpu_peaks* are those of the CPU, ``fp32=3.2`` in TFLOP/s. Raises `ComparisonError` where no run has a rate, and for
    a peak that is none.
    """
    given = dict(map(_cpu_peak, cpu_peaks))
    with with_steps(places, selection) as (runs, curves):
        return attain(runs, curves, given)


def _cpu_peak(text: str) -> tuple[str, float]:
    precision, _, tflops = text.partition("=")
    if precision not in PrecisionName.__members__:
        near = did_you_mean(precision, PrecisionName.__members__) or "write --cpu-peak fp32=3.2, in TFLOP/s"
        raise ComparisonError(f"--cpu-peak {text}: {precision!r} is no precision: {near}")
    with suppress(ValueError):
        if math.isfinite(value := float(tflops)) and value > 0:
            return precision, value
    raise ComparisonError(f"--cpu-peak {text}: write a number of TFLOP/s above 0, such as {precision}=3.2")


def published_alone() -> Attainment:
    """Return all that others published, beside no run."""
    return Attainment(n_runs=0, attained=(), published=published_figures())
