"""The statistical comparison of the selected runs, for ``hpcml compare`` and ``hpcml report``."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.analysis.compare.cells import Curves
from hpcml.analysis.compare.checklist import check
from hpcml.analysis.compare.comparison import COMMUNICATION, DATA, STEP, compare
from hpcml.analysis.compare.factor import with_distinct_settings
from hpcml.analysis.compare.left_out import held_against_all, of_the_same_arms
from hpcml.analysis.compare.looks import glances_of
from hpcml.analysis.compare.objective import find_yardstick
from hpcml.commands.collect import answering, collect
from hpcml.commands.selection import Selection, select
from hpcml.errors import ComparisonError, HpcmlError, why_not
from hpcml.model.checklist import Checklist
from hpcml.model.choices import Until
from hpcml.model.comparison import Comparison, ComparisonRequest
from hpcml.model.looks import Glance, LookPlan, PlannedStudy
from hpcml.model.query_results import Timeline
from hpcml.model.records import Curve, RunRecord
from hpcml.moments import local_time
from hpcml.paths import Places
from hpcml.runs import looks
from hpcml.runs.files import read_raw
from hpcml.runs.layout import RunDir
from hpcml.runs.private import is_ours
from hpcml.store import query
from hpcml.store.attempts import attempts_of, others_of_experiments
from hpcml.store.database import Database
from hpcml.store.telemetry import timelines

log = logging.getLogger(__name__)

_NAMED = 6  # packages in one line


def compare_runs(
    places: Places, selection: Selection, request: ComparisonRequest, *, over_steps: bool = False
) -> Comparison:
    """Return the comparison of the selected runs, whose levels, metric and tests *request* says.

    *over_steps*: also of their whole learning curves.

    Raises `ComparisonError` where it would not be fair: the runs differ in more than the compared setting, for example.
    """
    with answering(places) as store:
        collect(store, places)
        runs = select(store, selection, refusal="no run matches: nothing to compare")
        others = left_out_of(store, runs, selection)
        found = compare_selected(store, runs, request, step_curves(store, runs), over_steps=over_steps, others=others)
    if over_steps and all(row.curve is None for cell in found.cells for row in cell.rows):
        raise ComparisonError(
            f"--over-steps: no curves of {found.metric} to compare: it takes three seeds an arm, each with two values "
            "at least, and steps that all of them reached (training.eval_every)"
        )
    return found


def check_runs(places: Places, selection: Selection, request: ComparisonRequest) -> tuple[Comparison, Checklist]:
    """Return the comparison of the selected runs, and what a reviewer would ask of it with the records' answers."""
    with answering(places) as store:
        collect(store, places)
        runs = select(store, selection, refusal="no run matches: nothing to compare")
        others = left_out_of(store, runs, selection)
        comparison = compare_selected(store, runs, request, step_curves(store, runs), others=others)
        return comparison, checklist_of(store, runs, comparison)


def left_out_of(store: Database, runs: Sequence[RunRecord], selection: Selection) -> list[RunRecord]:
    """Return the other runs of the experiments of *runs*, which *selection* left out; none if it is of whole ones."""
    is_part = selection.references or selection.states or selection.where or selection.submission
    return others_of_experiments(store, {run.experiment for run in runs}, {run.uid for run in runs}) if is_part else []


def checklist_of(store: Database, runs: Sequence[RunRecord], comparison: Comparison) -> Checklist:
    """Return the answers about *comparison*, which was made of *runs*, with all other runs of their experiments."""
    others = others_of_experiments(store, {run.experiment for run in runs}, {run.uid for run in runs})
    attempts = attempts_of(store, [run.uid for run in (*runs, *others)])
    return check(comparison, runs, others=others, attempts=attempts, glances=_glances(_homes(runs)))


def compare_selected(
    store: Database,
    runs: Sequence[RunRecord],
    request: ComparisonRequest,
    steps: Mapping[str, Curves],
    sampled: Mapping[str, Sequence[Timeline]] | None = None,
    *,
    over_steps: bool = False,
    others: Sequence[RunRecord] = (),
) -> Comparison:
    """Return the comparison of *runs*; *steps* are their `step_curves`, *sampled* their telemetry timelines by uid.

    *others* were not selected: a claim has to hold with those of them that are of the same arms.

    The compared metric's curves are read from the store only where there is a target to reach, or they are compared
    *over_steps*; timelines that were not given (None) only for a target.
    """
    curves = dict(steps)
    has_target = request.target is not None or any(
        run.params.get("objective.target") is not None for run in with_distinct_settings(runs)
    )
    if runs and (has_target or over_steps):
        judged = find_yardstick(runs, request.metric, request.goal).metric
        curves[judged] = curves_of(store, runs, judged)
        if sampled is None and has_target:
            sampled = {run.uid: timelines(store, run.uid) for run in runs if run.usage is not None}
    planned = find_study(runs, request)
    comparison = compare(
        with_packages(runs),
        steps[STEP],
        planned.request,
        more_curves=curves,
        timelines=sampled,
        study=planned.study,
        glances=planned.glances,
        unplanned=planned.why_not,
    )
    left_out = of_the_same_arms(runs, others) if others else []
    everyone = [*runs, *left_out]
    whole: Comparison | ComparisonError = comparison
    if left_out:
        try:
            whole = _compare_all(everyone, request, comparison)
        except ComparisonError as error:
            whole = error
    if planned.study is None and not store.is_read_only:  # what was left out was there to be seen: none is added later
        _remember(comparison if isinstance(whole, ComparisonError) else whole, everyone)
    return held_against_all(comparison, whole, n_left_out=len(left_out))


def _compare_all(runs: Sequence[RunRecord], request: ComparisonRequest, found: Comparison) -> Comparison:
    """Return what is said of *runs*, among which are those of *found*, in the same question; no curve is looked at."""
    planned = find_study(runs, replace(request, metric=found.metric, goal=found.goal, score=None))
    return compare(with_packages(runs), {}, planned.request, study=planned.study, glances=planned.glances)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """How often, and by which plan, the runs of a comparison were looked at."""

    request: ComparisonRequest  # with what the plan says where nothing else was asked
    study: PlannedStudy | None = None
    glances: Sequence[Glance] = ()
    why_not: str | None = None  # why the plan of these runs does not hold for this comparison


def find_study(runs: Sequence[RunRecord], request: ComparisonRequest) -> _Looked:
    """Return the planned looks by which *runs* are judged; where there are none, the looks that nobody planned."""
    places = _homes(runs)
    studies = [
        looks.read_study(files, top=home) for home, name in places if (files := looks.files_of(home, name)).is_planned
    ]
    glances = _glances(places)
    of_plan = {uid for study in studies for arm in study.plan.arms for uid in arm.uids}
    own = [run for run in runs if run.uid in of_plan]
    if not own:
        lacks = any(run.params.get("schedule.until") == Until.verdict.name for run in runs)
        return _Looked(request=request, glances=glances, why_not="the plan of its looks is not here" if lacks else None)
    plan = studies[0].plan
    asked = request if request.by else replace(request, by=plan.by, reference=request.reference or plan.reference)
    if why_not := _why_not(plan, asked, n_studies=len(studies), n_others=len({run.uid for run in runs}) - len(own)):
        return _Looked(request=asked, glances=glances, why_not=why_not)
    return _Looked(request=asked, study=studies[0])


def _why_not(plan: LookPlan, request: ComparisonRequest, *, n_studies: int, n_others: int) -> str | None:
    if n_studies > 1:
        return "runs of several plans are compared: choose one with --experiment"
    if request.seed is not None:
        return f"the looks of experiment {plan.experiment} were planned for the seeds of its runs"
    if n_others:
        return f"{n_others} runs are not of the plan of experiment {plan.experiment}"
    planned = {
        "by": plan.by,
        "reference": plan.reference,
        "metric": plan.metric,
        "goal": plan.goal,
        "margin": plan.margin,
    }
    for name, value in planned.items():
        asked = getattr(request, name)
        if asked not in (None, value):
            return f"the looks of experiment {plan.experiment} were planned for {name} {value}, not {asked}"
    return None


def _homes(runs: Sequence[RunRecord]) -> list[tuple[Path, str]]:
    """Return the homes and experiments of *runs*; runs that lie elsewhere have none."""
    paths = {Path(path) for path in {run.path.rpartition("/")[0] or "/" for run in runs if run.path}}
    return sorted((path.parent.parent, path.name) for path in paths if path.parent.name == "runs")


def _glances(places: Sequence[tuple[Path, str]]) -> list[Glance]:
    return [glance for home, name in places for glance in looks.glances(home, name)]


def _remember(comparison: Comparison, runs: Sequence[RunRecord]) -> None:
    """Write down what *comparison* saw, in the homes of its runs as far as they are this user's to write to."""
    by_uid = {run.uid: run for run in runs}
    at = local_time().isoformat(timespec="seconds")
    for digest, glance in glances_of(comparison, at=at):
        for home, name in _homes([by_uid[uid] for uid in (*glance.seen, *glance.awaited)]):
            if not is_ours(home) or not os.access(home, os.W_OK):
                continue
            try:
                looks.remember(home, name, digest, glance)
            except OSError as error:
                log.warning("that these runs were looked at cannot be written down: %s", why_not(error, home))
                return


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

    What was installed stands in run.json; where that cannot be read the digest stays.
    """
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
