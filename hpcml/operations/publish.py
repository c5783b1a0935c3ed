"""Everything that a report shows, asked of the store and of the statistics once, and the file that it goes into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from hpcml import __version__
from hpcml.analysis.attainment import attain
from hpcml.analysis.bands import Track, band
from hpcml.analysis.compare import compare
from hpcml.analysis.energy_track import energy_at
from hpcml.analysis.grouping import group_runs
from hpcml.analysis.judging import COMMUNICATION, DATA, STEP
from hpcml.analysis.objective import find_yardstick
from hpcml.analysis.scaling import Question, study_scaling
from hpcml.analysis.scaling_arms import StepCurves
from hpcml.answers import Curves, Timeline
from hpcml.attainment import Attainment
from hpcml.comparison import Comparison
from hpcml.errors import ComparisonError, ConfigError, HpcmlError
from hpcml.interop import output
from hpcml.manifest import IMPORTED, Manifest, read_manifest, read_raw
from hpcml.operations.collect import collect, opened
from hpcml.operations.consult import Selection, select
from hpcml.places import Places
from hpcml.publication import Axis, Band, Group, GroupCurves, Origin, Publication
from hpcml.records import Point, RunRecord
from hpcml.rundir import RunDir
from hpcml.scaling import Scaling
from hpcml.store import queries
from hpcml.store.engine import Store
from hpcml.store.timelines import timelines

DEFAULT_BY = "precision"
STDOUT = "-"
_Points = Mapping[str, Sequence[Point]]  # by uid
_LOSSES = ("loss", "train_loss")  # the first that was recorded is drawn beside the compared metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the report should be about. What is None was not asked for, and is chosen."""

    title: str | None
    by: str | None
    reference: str | None
    metric: str | None
    goal: str | None
    margin: float | None
    target: float | None
    score: str | None
    allow: Sequence[str]
    allow_mixed: bool
    curves: Sequence[str]  # metrics
    command_line: Sequence[str]

    @property
    def insists(self) -> bool:
        """Whether a comparison was asked for, so that none is an error."""
        named = (self.by, self.reference, self.goal, self.margin, self.target, self.score)
        return any(one is not None for one in named) or self.allow_mixed or bool(self.allow)


def publish(places: Places, selection: Selection, wish: Wish) -> Publication:
    """Return everything known of the selected runs; raises where nothing is selected or the wish cannot be met."""
    with opened(places) as store:
        collect(store, places)
        runs = select(store, selection)
        if not runs:
            raise ConfigError("no run matches: nothing to report; hpcml runs lists those that there are")
        by = wish.by or DEFAULT_BY
        sampled = {run.uid: timelines(store, run.uid) for run in runs if run.usage is not None}
        steps = {name: _points(store, runs, name) for name in (STEP, DATA, COMMUNICATION)}
        comparison, why_not = _compare(store, runs, steps, sampled, wish)
        groups = group_runs(runs, by, comparison)
        curves = _curves(store, runs, groups, _metrics(runs, wish, comparison), sampled)
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
        curves=curves,
        timelines=sampled,
        scaling=_scaling(runs, of_steps, left_out),
        attainment=_attainment(runs, of_steps, left_out),
        left_out=left_out,
        origins=origins,
        without_origin=unknown,
    )


def write_report(text: str, target: str, stdout: IO[str], *, is_ours: Callable[[bytes], bool]) -> None:
    """Write the report whole to *target*, a file or `STDOUT`; over nothing but an earlier report of the same form."""
    if target == STDOUT:
        stdout.write(text)
        return
    with output.new_file(Path(target).absolute(), is_ours=is_ours) as file:
        file.write(text)


def _compare(
    store: Store,
    runs: Sequence[RunRecord],
    steps: Mapping[str, _Points],
    sampled: Mapping[str, Sequence[Timeline]],
    wish: Wish,
) -> tuple[Comparison | None, str | None]:
    """Return the comparison, or the reason why there is none where none was insisted on."""
    has_target = wish.target is not None or any(run.params.get("objective.target") is not None for run in runs)
    try:
        judged = find_yardstick(runs, wish.metric, wish.goal).metric if has_target else None
        comparison = compare(
            runs,
            steps[STEP],
            by=wish.by or DEFAULT_BY,
            reference=wish.reference,
            metric=wish.metric,
            goal=wish.goal,
            margin=wish.margin,
            target=wish.target,
            score=wish.score,
            allow=wish.allow,
            allow_mixed=wish.allow_mixed,
            more_curves={**steps, **({} if judged is None else {judged: _points(store, runs, judged)})},
            timelines=sampled,
        )
    except ComparisonError as error:
        if wish.insists:
            raise
        return None, str(error)
    return comparison, None


def _points(store: Store, runs: Sequence[RunRecord], metric: str) -> dict[str, list[Point]]:
    return queries.curves(store, [run.uid for run in runs if metric in run.metrics], metric)


def _scaling(runs: Sequence[RunRecord], curves: StepCurves, left_out: dict[str, str]) -> Scaling | None:
    """Return the study of how the runs scale; where they say nothing about it the reason goes to *left_out*."""
    try:
        return study_scaling(runs, curves, Question())
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


def _metrics(runs: Sequence[RunRecord], wish: Wish, comparison: Comparison | None) -> list[str]:
    """Return the metrics whose curves are drawn: those that were wished for, else the judged one and a loss."""
    known = {name for run in runs for name in run.metrics}
    if wish.curves:
        for name in wish.curves:
            if name not in known:
                raise ConfigError(f"--curve {name}: no run recorded it; they have {', '.join(sorted(known)) or 'none'}")
        return list(dict.fromkeys(wish.curves))
    judged = [comparison.metric] if comparison else []
    if not judged:
        try:
            judged = [find_yardstick(runs, wish.metric, wish.goal).metric]
        except ComparisonError:  # they disagree, or recorded none: a report of such runs has other things to show
            judged = [wish.metric] if wish.metric in known else []
    loss = [name for name in _LOSSES if name in known][:1]
    return list(dict.fromkeys([*filter(None, judged), *loss]))


def _curves(
    store: Store,
    runs: Sequence[RunRecord],
    groups: Sequence[Group],
    metrics: Sequence[str],
    sampled: Mapping[str, Sequence[Timeline]],
) -> tuple[GroupCurves, ...]:
    by_uid = {run.uid: run for run in runs}
    found = []
    for metric in metrics:
        points = _points(store, runs, metric)
        energy = {uid: energy_at(of, sampled[uid]) for uid, of in points.items() if uid in sampled}
        for at, group in enumerate(groups):
            members = [by_uid[uid] for level in group.levels for uid in level.uids]
            own = {run.uid: points.get(run.uid, []) for run in members}
            known = {uid: drawn for uid, drawn in energy.items() if uid in own and drawn is not None}
            bands = {
                level.name: _bands([(by_uid[uid].seed, own[uid], known.get(uid)) for uid in level.counted])
                for level in group.levels
            }
            curves = Curves(metric=metric, runs=members, points=own)
            found.append(GroupCurves(group=at, curves=curves, bands=bands, energy_kj=known))
    return tuple(found)


def _bands(tracks: Sequence[tuple[int, Sequence[Point], Sequence[float] | None]]) -> dict[Axis, Band]:
    """Return the bands of one level over each axis; over energy only where it is known of every run."""
    tracks = [(seed, points, energy) for seed, points, energy in tracks if points]
    over: dict[Axis, list[tuple[int, Track]]] = {
        "step": [(seed, ([p.step for p in points], [p.value for p in points])) for seed, points, _ in tracks],
        "time": [(seed, _ordered([p.t_s for p in points], points)) for seed, points, _ in tracks],
        "energy": [(seed, _ordered(energy, points)) for seed, points, energy in tracks if energy is not None],
    }
    bands = {axis: band(one) for axis, one in over.items() if len(one) == len(tracks)}
    return {axis: one for axis, one in bands.items() if one is not None}


def _ordered(x: Sequence[float], points: Sequence[Point]) -> Track:
    """Return the points in the order of *x*: a run that went on from a checkpoint went back in its steps."""
    pairs = sorted(zip(x, (point.value for point in points), strict=True))
    return [at for at, _ in pairs], [value for _, value in pairs]


def _origins(runs: Sequence[RunRecord]) -> tuple[tuple[Origin, ...], dict[str, int]]:
    """Return by which commands the runs came about, and for how many it is not known why."""
    counted: Counter[tuple[tuple[str, ...], str, str, str | None, bool | None]] = Counter()
    unknown: Counter[str] = Counter()
    for run in runs:
        manifest = _manifest(run)
        if isinstance(manifest, str):
            unknown[manifest] += 1
            continue
        origin = manifest.provenance
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


def _manifest(run: RunRecord) -> Manifest | str:
    """Return the run's own record of where it came from, or why there is none."""
    path = RunDir(Path(run.path)).manifest
    if not path.is_file():
        return "their directories are not on this machine"
    try:
        if read_raw(path).get("format") == IMPORTED:
            return "another tool ran them, and they were imported"
        return read_manifest(path)
    except HpcmlError:
        return "their run.json cannot be read by this hpcml"


def _title(runs: Sequence[RunRecord], by: str) -> str:
    experiments = sorted({run.experiment for run in runs})
    named = experiments[0] if len(experiments) == 1 else f"{len(experiments)} experiments"
    return f"{named}: runs by {by}"
