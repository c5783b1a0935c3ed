"""A look at a study of `hpcml tune`: what ended is told to the search, and what is missing is submitted.

A look is all there is: the command in the foreground is a loop over looks, and ``hpcml sync`` takes one at every study.
Of two looks at once one waits for the other. A look that is killed leaves what `recover` undoes or finishes, as every
submission does, and the next look begins with that: no point is lost, and none is submitted twice.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.analysis.search import Point, PointState, Tried, next_points, to_prune
from hpcml.commands import repairs
from hpcml.commands.cancel import cancel_planned, plan_cancel
from hpcml.commands.collect import collect, opened
from hpcml.commands.retry import finish_interrupted, is_going_on, retry_automatically
from hpcml.commands.selection import Selection
from hpcml.commands.status import SchedulersAsked
from hpcml.commands.submit import budget
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.check import plan_points
from hpcml.commands.submit.launch import Launched
from hpcml.commands.submit.run import RunReporter, submit_points
from hpcml.commands.submit.submission import deciding_alone
from hpcml.commands.tune.study import compose_points, find_study
from hpcml.config.compose import compose_command
from hpcml.config.search_words import SearchWords, read_search
from hpcml.errors import HpcmlError, require
from hpcml.model.record_keys import begun_at, value_of
from hpcml.model.records import RunRecord
from hpcml.model.search import PrunerName, Search
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.store.database import Database
from hpcml.store.query import curves, find_runs

_PERIOD_S = 1.0
_SHARE = 4.0  # so many times longer than looking takes is slept: a thousand directories on a slow file system
_TO_SEE = 3  # runs that ended without a value, before which a search goes on without any


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What one look found and did.

    `runs` are the points' runs by uid; `trouble` says why nothing more is submitted although points are left.
    """

    search: Search
    words: SearchWords
    tried: Sequence[Tried]
    runs: Mapping[str, RunRecord]
    launched: Sequence[Launched]
    pruned: Sequence[str]  # uids of runs that were told to stop
    lines: Sequence[str]  # what is to be told besides
    trouble: str | None

    @property
    def under_way(self) -> int:
        """How many runs wait or run, those that were just submitted among them."""
        return len(self.launched) + sum(run.outcome is PointState.UNDER_WAY for run in self.tried)

    @property
    def submitted(self) -> int:
        """How many points were ever submitted."""
        return len(self.launched) + len(self.tried)

    @property
    def is_over(self) -> bool:
        """Whether nothing is under way and nothing more will be submitted."""
        return self.under_way == 0


def looks(
    places: Places,
    backends: Backends,
    search: Search,
    reporter: RunReporter,
    *,
    environ: Mapping[str, str],
    interval_s: float,
) -> Iterator[Looked]:
    """Look again and again, as `look` does, until nothing is under way, or `Looked.trouble` says what is in the way.

    Between two looks a second passes at least, and four times as long as the look took.
    """
    while True:
        began = time.monotonic()
        looked = look(places, backends, search, reporter, environ=environ, interval_s=interval_s)
        yield looked
        if looked.is_over or looked.trouble is not None:
            return
        time.sleep(max(_PERIOD_S, _SHARE * (time.monotonic() - began)))


def look(
    places: Places,
    backends: Backends,
    search: Search,
    reporter: RunReporter,
    *,
    environ: Mapping[str, str],
    interval_s: float,
) -> Looked:
    """Look at the study once: read what ended, stop what its pruner would, and submit what is missing.

    Schedulers are asked once in *interval_s* seconds. Raises `ConfigError` where the study's folder is gone, and what
    a submission raises.
    """
    require(Path(search.project).is_dir(), f"the folder of study {search.study} is gone: {search.project}")
    words = read_search(search.settings, search.program)
    with (
        contextlib.chdir(search.project),  # programs and ./conf are meant from there
        deciding_alone(places, reporter.note, lock=f"study-{search.study}"),
    ):
        search = find_study(places, search.study)  # it may have been stopped, or got other limits, since
        finish_interrupted(places, backends)
        revived = list(backends.this_machine().start_again())  # else its runs would be under way for ever
        runs, tried, lines = read_points(places, backends, search, words, interval_s)
        pruned = _prune(places, backends, to_prune(search, words.axes, tried))
        trouble = _trouble(search, tried, runs)
        under_way = sum(run.outcome is PointState.UNDER_WAY for run in tried)
        wanted = 0 if trouble else max(0, min(search.in_flight - under_way, search.runs - len(tried)))
        points = next_points(search, words.axes, tried, wanted) if wanted else []
        if points:
            launched, left = _submit(points, words, search, places, backends, reporter, environ)
            trouble = None if launched or under_way else left  # what ends may leave hours of its walltime
        else:
            launched = []
        going = [run.uid for run in tried if run.outcome is PointState.UNDER_WAY]
        going += [item.run_dir.uid for item in launched]
        if search.chain is not None and going:
            _chain(search, going[0], places, backends, reporter, environ)
    return Looked(
        search=search,
        words=words,
        tried=tried,
        runs=runs,
        launched=launched,
        pruned=pruned,
        lines=[*revived, *lines],
        trouble=trouble,
    )


def read_points(
    places: Places, backends: Backends, search: Search, words: SearchWords, interval_s: float
) -> tuple[dict[str, RunRecord], list[Tried], list[str]]:
    """Bring the store up to date, retry what the cluster failed, and return the study's runs and what they tell."""
    asked = SchedulersAsked(backends=backends, interval_s=interval_s)
    with opened(places, to_write=True) as store:
        collect(store, places, asked)
        lines = [*asked.problems, *_retried(store, places, backends, search)]
        return *points_of(store, places, search, words), lines


def points_of(
    store: Database, places: Places, search: Search, words: SearchWords
) -> tuple[dict[str, RunRecord], list[Tried]]:
    """Return the runs of the study by uid, and what they tell, as *store* has them.

    Runs that lie outside of the space are no points: somebody put them into the experiment.
    """
    found = [run for run in find_runs(store, experiment=search.study) if Path(run.path).is_dir()]
    points = {run.uid: (run, point) for run in found if (point := _point_of(run, words)) is not None}
    reported: Mapping[str, Mapping[int, float]] = {}
    if search.pruner is not PrunerName.none:
        reported = {
            uid: {each.step: each.value for each in curve if math.isfinite(each.value)}
            for uid, curve in curves(store, list(points), search.metric, is_timed=False).items()
        }
    tried = [_tried(store, places, run, point, search, reported.get(uid, {})) for uid, (run, point) in points.items()]
    return {uid: run for uid, (run, _) in points.items()}, tried


def _retried(store: Database, places: Places, backends: Backends, search: Search) -> Iterator[str]:
    for record in repairs.to_retry(store, places):
        if record.experiment == search.study:
            try:
                retried = retry_automatically(store, places, backends, record)
            except HpcmlError as error:
                yield f"{record.uid} could not be retried: {error}"
            else:
                yield from [] if retried is None else [f"{retried.uid} {retried.why}; now {retried.job}"]


def _point_of(run: RunRecord, words: SearchWords) -> Point | None:
    """Return where *run* lies in the space; None where it does not."""
    read = {axis.key: axis.read(value_of(run, axis.key, now=0)) for axis in words.axes}
    point = {key: value for key, value in read.items() if value is not None}
    return point if len(point) == len(words.axes) else None


def _tried(
    store: Database, places: Places, run: RunRecord, point: Point, search: Search, reported: Mapping[int, float]
) -> Tried:
    """Return what *run* tells the search.

    What was preempted, requeued or retried is under way until it has ended for good. A run that ran out of time has
    the last value that it reported, where the study takes that.
    """
    summary = run.metrics.get(search.metric)
    value = None if summary is None else summary.last
    is_going = not run.state.is_final or not run.is_settled or is_going_on(store, run, time.time())
    counts = run.state is State.COMPLETED or (run.state is State.TIMEOUT and search.takes_partial)
    if is_going or repairs.may_retry(run, places):
        outcome = PointState.UNDER_WAY
    elif counts and value is not None and math.isfinite(value):
        outcome = PointState.TOLD
    else:
        is_pruned = run.state is State.CANCELLED and search.pruner is not PrunerName.none
        outcome = PointState.PRUNED if is_pruned else PointState.FAILED
    return Tried(
        uid=run.uid,
        point=point,
        outcome=outcome,
        began_at=begun_at(run.submitted_at, run.t_start) or 0.0,
        ended_at=None if outcome is PointState.UNDER_WAY else run.t_end,
        value=value if outcome is PointState.TOLD else None,
        reported=reported,
    )


def _trouble(search: Search, tried: Sequence[Tried], runs: Mapping[str, RunRecord]) -> str | None:
    """Return why nothing more is submitted, None where there is no reason."""
    if search.is_stopped:
        return f"study {search.study} was stopped: hpcml tune with its command line goes on"
    if time.time() >= search.ends_at():
        return f"--until {search.until} is over"
    ended = [run for run in tried if run.outcome is not PointState.UNDER_WAY]
    if len(ended) < _TO_SEE or any(run.outcome is not PointState.FAILED for run in ended):
        return None
    completed = [run.uid for run in ended if runs[run.uid].state is State.COMPLETED]
    if not completed:
        return f"all {len(ended)} runs that ended failed, so nothing more is submitted: hpcml logs {ended[-1].uid}"
    names = sorted({name for uid in completed for name in runs[uid].metrics})
    reported = f"they report {', '.join(names[:8])}" if names else "they report no metric"
    return (
        f"none of the {len(ended)} runs that ended has a number for {search.metric}, so nothing more is submitted: "
        f"{reported} (--metric NAME)"
    )


def _prune(places: Places, backends: Backends, uids: Sequence[str]) -> list[str]:
    """Cancel runs as `hpcml cancel` does, with the warning that lets them write a checkpoint; return which."""
    if not uids:
        return []
    plan = plan_cancel(places, Selection(references=tuple(uids)))
    return [stopped.uid for stopped in cancel_planned(plan, backends) if stopped.word == "cancelling"]


def _chain(
    search: Search,
    oldest: str,
    places: Places,
    backends: Backends,
    reporter: RunReporter,
    environ: Mapping[str, str],
) -> None:
    """Submit the job that takes the next look, once the run *oldest* has ended, unless one waits already."""
    experiment = f"{search.study}-looks"
    with opened(places) as store:
        if find_runs(store, experiment=experiment, states=(State.PENDING,)):
            return
    settings = [f"experiment={experiment}", f"resources.dependency=afterany:{oldest}", "telemetry.enabled=false"]
    where = ["--home", str(places.home), "--store", places.store_url]
    program = [sys.executable, "-m", "hpcml", *where, "tune", "--again", search.study]
    composed, _ = compose_command(
        [*(search.chain or ()), *settings], program, project=Path.cwd(), is_literal=True, most=1
    )
    planned, _ = plan_points(composed, environ, Path.cwd(), ask=lambda _: None, is_dry=False)
    submit_points(
        planned,
        places,
        backends,
        reporter,
        environ=environ,
        project=Path.cwd(),
        command_line=search.command_line,
        only_missing=False,
    )


def _submit(
    points: Sequence[Point],
    words: SearchWords,
    search: Search,
    places: Places,
    backends: Backends,
    reporter: RunReporter,
    environ: Mapping[str, str],
) -> tuple[list[Launched], str | None]:
    """Submit those of *points* that the budgets allow; return them, and what is left of the budgets."""
    project = Path.cwd()
    composed, _ = compose_points(words, points)
    planned, _ = plan_points(composed, environ, project, ask=lambda _: None, is_dry=False)
    left = budget.fit(planned, places, environ=environ, project=project)
    chosen = planned[: left.count]
    if not chosen:
        return [], "; ".join(left.lines)
    launched = submit_points(
        chosen,
        places,
        backends,
        reporter,
        environ=environ,
        project=project,
        command_line=search.command_line,
        only_missing=False,
    )
    return launched, None
