"""Collecting everything that a report shows and writing it into one file, for ``hpcml report``."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from hpcml import __version__
from hpcml.analysis.attained import Attainment
from hpcml.analysis.compare.cells import group_runs, with_seeds_from
from hpcml.analysis.compare.comparison import COMMUNICATION, DATA, STEP
from hpcml.analysis.compare.objective import find_yardstick
from hpcml.analysis.compare.result import Band, Comparison, ComparisonRequest, ReportGroup
from hpcml.analysis.peak import attain
from hpcml.analysis.scaling.result import Scaling
from hpcml.analysis.scaling.study import ScalingRequest, study_scaling
from hpcml.analysis.stats import Track, band
from hpcml.analysis.steady import StepCurves
from hpcml.commands.collect import collect, opened
from hpcml.commands.compare import compare_selected, curves_of, hours_of, step_curves
from hpcml.commands.selection import Selection, select
from hpcml.errors import ComparisonError, ConfigError, HpcmlError
from hpcml.interop import output
from hpcml.model.choices import Numerics
from hpcml.model.metric_goal import training_loss
from hpcml.model.query_results import Curves, Timeline
from hpcml.model.records import Point, RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.report.contents import Axis, GroupCurves, LiveLook, Origin, Publication, StudyContents
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import Provenance, read_provenance
from hpcml.store.database import Database
from hpcml.store.telemetry import timelines

log = logging.getLogger(__name__)

STDOUT = "-"
_Points = Mapping[str, Sequence[Point]]  # by uid
_LOSS_SCALE = "loss_scale"
_NOTHING = "no run matches: nothing to report; hpcml runs lists those that there are"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the report should be about.

    `title` None: it is named after its runs' experiment. `curves` are metrics; empty: the compared one, the loss of
    the training, the time of a step, and the loss scale where it changed.
    `command_line` is printed in the report, so that it can be made again.
    """

    title: str | None
    comparison: ComparisonRequest
    curves: Sequence[str]  # metrics
    command_line: Sequence[str]


def publish(places: Places, selection: Selection, wish: Wish) -> Publication:
    """Return everything that a report shows of the selected runs; it is rendered and written elsewhere.

    Parts that the runs say nothing about are left out, with the reason in `Publication.left_out` or `not_compared`.

    Raises `ConfigError` where no run is selected, or none has a metric that was wished for, and `ComparisonError` where
    the comparison is not possible although options of it were given.
    """
    with opened(places) as store:
        collect(store, places)
        runs = select(store, selection, refusal=_NOTHING)
        return replace(gather(store, runs, wish), study=_study(store, places, runs))


def _study(store: Database, places: Places, runs: Sequence[RunRecord]) -> StudyContents | None:
    """Return the search whose points *runs* are; None where they are of no study, or of several experiments."""
    name = runs[0].experiment
    if any(run.experiment != name for run in runs) or not (places.studies / f"{name}.json").exists():
        return None
    # Imported here: loads all that submits runs, for the reports of searches alone.
    from hpcml.analysis.search import importances  # noqa: PLC0415
    from hpcml.commands.tune.look import points_of  # noqa: PLC0415
    from hpcml.commands.tune.study import find_study  # noqa: PLC0415
    from hpcml.config.search_words import read_search  # noqa: PLC0415

    search = find_study(places, name)
    words = read_search(search.settings, search.program)
    found, tried = points_of(store, places, search, words)
    try:
        shares = importances(search, words.axes, tried)
    except ConfigError as error:  # Optuna is not here: all else of the study is shown without it
        log.warning("the importance of settings is left out: %s", error)
        shares = {}
    return StudyContents(search=search, axes=words.axes, tried=tried, runs=found, importances=shares)


def gather(
    store: Database,
    runs: Sequence[RunRecord],
    wish: Wish,
    live: LiveLook | None = None,
) -> Publication:
    """Return the same of *runs*, as *store* has them; *live* is what is known besides of those that have not ended.

    While runs go, a comparison that is not possible yet is told in `Publication.not_compared`, whatever was asked for,
    and a curve that nothing is known of yet is left out.
    """
    if not runs:
        raise ConfigError(_NOTHING)
    by = wish.comparison.factor
    known = [run.uid for run in runs if run.usage is not None or (live is not None and run.state is State.RUNNING)]
    sampled = {uid: timelines(store, uid) for uid in known}
    steps = step_curves(store, runs, is_timed=True)
    comparison, why_not = _compare(store, runs, steps, sampled, wish.comparison, is_live=live is not None)
    hours = None if comparison is None else hours_of(store, runs)
    groups = group_runs(runs, by, comparison)
    metrics = _metrics(runs, wish, comparison, is_live=live is not None)
    seeded = runs if comparison is None or comparison.seed is None else with_seeds_from(comparison.seed, runs)
    curves = _curves(seeded, groups, _points(store, runs, metrics, steps))
    left_out: dict[str, str] = {}
    of_steps = StepCurves(step_s=steps[STEP], communication_s=steps[COMMUNICATION], waiting_s=steps[DATA])
    origins, unknown = _origins(runs)
    return Publication(
        title=wish.title or _title(runs, by),
        made_at=datetime.now(UTC).isoformat(sep=" ", timespec="seconds"),
        hpcml_version=__version__,
        command_line=tuple(wish.command_line),
        runs=runs,
        by=by,
        groups=groups,
        comparison=comparison,
        not_compared=why_not,
        hours=hours,
        curves=curves,
        timelines=sampled,
        scaling=_scaling(runs, of_steps, left_out),
        attainment=_attainment(runs, of_steps, left_out),
        left_out=left_out,
        origins=origins,
        without_origin=unknown,
        live=live,
    )


def write_report(text: str, target: str, stdout: IO[str], *, is_ours: Callable[[bytes], bool]) -> None:
    """Write the report as a whole to *target*, a file or `STDOUT`.

    *is_ours* tells from a file's first bytes whether it is an earlier report of the same form; any other file is
    refused with `ConfigError`, and stays.
    """
    if target == STDOUT:
        stdout.write(text)
        return
    with output.new_file(Path(target).absolute(), is_ours=is_ours) as file:
        file.write(text)


def _compare(
    store: Database,
    runs: Sequence[RunRecord],
    steps: Mapping[str, _Points],
    sampled: Mapping[str, Sequence[Timeline]],
    request: ComparisonRequest,
    *,
    is_live: bool,
) -> tuple[Comparison | None, str | None]:
    """Return the comparison, or the reason why there is none where none was insisted on."""
    try:
        return compare_selected(store, runs, request, steps, sampled), None
    except ComparisonError as error:
        if request.is_insistent and not is_live:
            raise
        return None, str(error)


def _scaling(runs: Sequence[RunRecord], curves: StepCurves, left_out: dict[str, str]) -> Scaling | None:
    """Return the study of how the runs scale; where they say nothing about it the reason goes to *left_out*."""
    try:
        return study_scaling(runs, curves, ScalingRequest())
    except ComparisonError as error:
        left_out["Scaling"] = str(error)
        return None


def _attainment(runs: Sequence[RunRecord], curves: StepCurves, left_out: dict[str, str]) -> Attainment | None:
    """Return what was attained of the peaks; where no run has a rate the reason goes to *left_out*."""
    try:
        return attain(runs, curves)
    except ComparisonError as error:
        left_out["Peaks"] = str(error)
        return None


def _metrics(
    runs: Sequence[RunRecord], wish: Wish, comparison: Comparison | None, *, is_live: bool = False
) -> list[str]:
    """Return the metrics whose curves are drawn: those that were wished for, else those that a run is looked at by."""
    known = {name for run in runs for name in run.metrics}
    if wish.curves:
        for name in wish.curves:
            if name not in known and not is_live:
                raise ConfigError(f"--curve {name}: no run recorded it; they have {', '.join(sorted(known)) or 'none'}")
        return [name for name in dict.fromkeys(wish.curves) if name in known]
    judged, asked = [comparison.metric] if comparison else [], wish.comparison
    if not judged:
        try:
            judged = [find_yardstick(runs, asked.metric, asked.goal).metric]
        except ComparisonError:  # they disagree, or recorded none: a report of such runs has other things to show
            judged = [asked.metric] if asked.metric in known else []
    scales = [run.metrics[_LOSS_SCALE] for run in runs if _LOSS_SCALE in run.metrics]
    scale = [_LOSS_SCALE] if any(of.min != of.max for of in scales) else []
    return list(dict.fromkeys([*filter(None, [*judged, training_loss(known)]), *({STEP} & known), *scale]))


def _points(
    store: Database, runs: Sequence[RunRecord], metrics: Sequence[str], known: Mapping[str, _Points]
) -> dict[str, _Points]:
    """Return the curves of each of *metrics*, those that are *known* already without a look into the store."""
    return {name: known[name] if name in known else curves_of(store, runs, name) for name in metrics}


def _curves(
    runs: Sequence[RunRecord],
    groups: Sequence[ReportGroup],
    curves: Mapping[str, _Points],
) -> tuple[GroupCurves, ...]:
    by_uid = {run.uid: run for run in runs}
    found = []
    for metric, points in curves.items():
        for at, group in enumerate(groups):
            members = [by_uid[uid] for level in group.levels for uid in level.uids]
            drawn = {run.uid for run in members if metric != STEP or run.numerics == Numerics.native.name}
            own: dict[str, Sequence[Point]] = {
                run.uid: points.get(run.uid, []) if run.uid in drawn else [] for run in members
            }
            bands = {
                level.name: _bands([(by_uid[uid].seed, own[uid]) for uid in level.counted]) for level in group.levels
            }
            of_group = Curves(metric=metric, runs=members, points=own)
            found.append(GroupCurves(group=at, curves=of_group, bands=bands))
    return tuple(found)


def _bands(tracks: Sequence[tuple[int, Sequence[Point]]]) -> dict[Axis, Band]:
    """Return the bands of one level over each axis; *tracks* are, for each run, its seed and its points."""
    tracks = [(seed, points) for seed, points in tracks if points]
    over: dict[Axis, list[tuple[int, Track]]] = {
        "step": [(seed, ([p.step for p in points], [p.value for p in points])) for seed, points in tracks],
        "time": [(seed, _ordered([p.t_s for p in points], points)) for seed, points in tracks],
    }
    return {axis: found for axis, one in over.items() if (found := band(one)) is not None}


def _ordered(x: Sequence[float], points: Sequence[Point]) -> Track:
    """Return the points in the order of *x*: a run that went on from a checkpoint went back in its steps."""
    pairs = sorted(zip(x, (point.value for point in points), strict=True))
    return [at for at, _ in pairs], [value for _, value in pairs]


def _origins(runs: Sequence[RunRecord]) -> tuple[tuple[Origin, ...], dict[str, int]]:
    """Return the commands that the runs came about by, and for how many runs it is not known, by the reason."""
    counted: Counter[tuple[tuple[str, ...], str, str, str | None, bool | None]] = Counter()
    unknown: Counter[str] = Counter()
    for run in runs:
        origin = _provenance(run)
        if isinstance(origin, str):
            unknown[origin] += 1
            continue
        words = (tuple(origin.command_line), origin.cwd, origin.hpcml_version, origin.git_commit, origin.git_dirty)
        counted[words] += 1
    origins = [
        Origin(
            command_line=command_line,
            cwd=cwd,
            hpcml_version=hpcml_version,
            git_commit=git_commit,
            git_dirty=git_dirty,
            n_runs=n,
        )
        for (command_line, cwd, hpcml_version, git_commit, git_dirty), n in counted.items()
    ]
    return tuple(origins), dict(unknown)


def _provenance(run: RunRecord) -> Provenance | str:
    """Return the run's own record of where it came from, or why there is none."""
    path = RunDir(Path(run.path)).manifest
    if not path.is_file():
        return "their directories are not on this machine"
    try:
        return read_provenance(path) or "another tool ran them, and they were imported"
    except HpcmlError:
        return "their run.json cannot be read by this hpcml"


def _title(runs: Sequence[RunRecord], by: str) -> str:
    experiments = sorted({run.experiment for run in runs})
    named = experiments[0] if len(experiments) == 1 else f"{len(experiments)} experiments"
    return f"{named}: runs by {by}"
