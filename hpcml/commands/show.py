"""One run, its files, events and curves, and in what two differ: for ``hpcml show`` and ``diff``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.analysis.compare.objective import find_yardstick
from hpcml.analysis.run_diff import RunDiff, contrast
from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import Selection, find, select
from hpcml.errors import ConfigError, HpcmlError
from hpcml.model.query_results import Curves
from hpcml.model.records import RunRecord, StoredEvent
from hpcml.model.secrets import masked
from hpcml.paths import Places
from hpcml.report.show import Asked, ShownRun
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import read_manifest
from hpcml.runs.run_json import IMPORTED
from hpcml.runs.working_directory import WrittenFile, written_files
from hpcml.store import query
from hpcml.store.scheduler_polls import read_words
from hpcml.store.telemetry import timelines


def show_run(places: Places, reference: str) -> ShownRun:
    """Return everything recorded of the run that *reference* means; `StoreError` where it means none or several."""
    with opened(places) as store:
        collect(store, places)
        record = query.get_run(store, reference)
        return ShownRun(
            run=record,
            events=query.events(store, record.uid),
            timelines=timelines(store, record.uid),
            word=read_words(places.home, [record.uid]).get(record.uid),
            asked=_asked(RunDir(Path(record.path))),
        )


def _asked(run_dir: RunDir) -> Asked:
    code = str(run_dir.code.resolve()) if run_dir.code.exists() else None
    try:
        manifest = read_manifest(run_dir.manifest)
    except HpcmlError:  # its directory is gone or damaged, or another tool ran it: the store alone answers
        return Asked(overrides=None, code=code)
    is_own, image, typed = manifest.run.workload.command is not None, manifest.plan.image, manifest.provenance.overrides
    return Asked(
        overrides=None if typed is None else masked(typed),
        argv=masked(manifest.plan.program) if is_own else None,
        code=code,
        image=None if image is None else image.path,
    )


def events_of(places: Places, reference: str) -> list[StoredEvent]:
    """Return the events of a run, in the order of their times; `StoreError` as in `show_run`."""
    with opened(places) as store:
        collect(store, places)
        return query.events(store, query.get_run(store, reference).uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The working directory of a run and what its program wrote there, in all attempts so far, sorted by path."""

    work: Path
    files: Sequence[WrittenFile]


def files_of(places: Places, reference: str) -> RunFiles:
    """Return what the run that *reference* means has written; of one that goes on, up to now.

    Raises `StoreError` where it means none or several runs, `ConfigError` where the run has no working directory of its
    own (yet), and `HpcmlError` where that cannot be read.
    """
    ((record, run_dir),) = find(places, [reference])
    if not run_dir.staged.exists():
        why = _why_none(record, run_dir)
        raise ConfigError(f"run {record.uid} has no working directory of its own: {why}")
    try:
        return RunFiles(work=run_dir.work, files=written_files(run_dir))
    except OSError as error:
        raise HpcmlError(f"{error.filename} cannot be read: {error.strerror}") from error


def _why_none(record: RunRecord, run_dir: RunDir) -> str:
    if record.scheduler == IMPORTED:
        return f"it was imported; its files lie in {run_dir.path} where hpcml import --artifacts copied them"
    return "a recipe and schedule.snapshot=none have none" if record.state.is_final else "it has not started"


def curves_of(places: Places, selection: Selection, *, metric: str | None, points: int | None = None) -> Curves:
    """Return a metric of the selected runs, by default their objective, with at most *points* points a run.

    None keeps all points. Raises `ConfigError` for an empty selection, and `ComparisonError` where no metric is given
    and the runs' objectives differ.
    """
    if selection.is_empty:
        raise ConfigError("curves of which runs? name them, or choose them with --where or --experiment")
    with opened(places) as store:
        collect(store, places)
        runs = select(store, selection, refusal="no run matches: nothing to draw")
        name = find_yardstick(runs, metric, None).metric
        found = query.curves(store, [run.uid for run in runs], name)
    curves = Curves(metric=name, runs=runs, points=found)
    return curves if points is None else curves.thinned(points)


def diff_runs(places: Places, first: str, second: str, *, everything: bool) -> RunDiff:
    """Return in what two runs differ: settings, environment, code and outcome.

    *first* and *second* are ids, ends of ids or names; `StoreError` where one means no run or several. *everything*
    also lists the settings and facts in which they agree.
    """
    with opened(places) as store:
        collect(store, places)
        left, right = query.get_run(store, first), query.get_run(store, second)
    return contrast(left, right, codes=(_code(left), _code(right)), everything=everything)


def _code(run: RunRecord) -> str | None:
    code = RunDir(Path(run.path)).code
    return str(code.resolve()) if code.exists() else None
