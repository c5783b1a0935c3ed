"""Importing runs of other tools (MLflow) as run directories of hpcml, for ``hpcml import``.

A run is recognised by its id there, so that importing again adds what is new and nothing twice.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.commands.collect import claim, collect, opened
from hpcml.errors import HpcmlError
from hpcml.interop import mlflow_import
from hpcml.interop.mlflow_client import folder_of
from hpcml.interop.mlflow_import import Imported, Unreadable, journal_text, runs_in
from hpcml.interop.output import copy_file, is_inside
from hpcml.paths import Places
from hpcml.runs.atomic import write_text
from hpcml.runs.files import read_raw
from hpcml.runs.journal import Event, read_journal
from hpcml.runs.layout import RunDir
from hpcml.runs.private import make_folder
from hpcml.runs.run_json import IMPORTED
from hpcml.store.loading import clock_zeros

_JOURNAL = "0-mlflow-agent.jsonl"  # of the agent, whose word on beginning and end of an attempt counts
_ARTIFACTS = "artifacts"
_BEGUN = ".importing-"  # no name of a run: what is under it is not whole yet


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What is to be imported, and how; as the options of ``hpcml import`` say it."""

    source: str  # a database, the folder of a file store, or an address as MLflow takes it
    experiment: str | None = None  # only this one of theirs
    names: Sequence[str] = ()  # THEIRS=OURS, of settings
    with_artifacts: bool = False  # their files are copied, too
    is_dry: bool = False  # nothing is written


@dataclass(slots=True)
class Report:
    """What an import did, or would do: counts of runs, `points` of metric values."""

    created: int = 0
    updated: int = 0
    unchanged: int = 0
    own: int = 0  # runs that hpcml exported itself and has
    points: int = 0
    problems: list[str] = field(default_factory=list)  # a line for each run that was left out
    remarks: Counter[str] = field(default_factory=Counter)  # what is not here as it was there -> of how many runs


def import_runs(places: Places, wish: ImportRequest) -> Report:
    """Bring the runs of MLflow's in ``wish.source`` into run directories, and these into the store.

    Each run appears as a whole or not at all. Of one that was imported before the journal is written anew where
    something is new there; one that hpcml exported itself is counted as `own` and left alone. A run that cannot be read
    is reported in `Report.problems`, and the import goes on.

    Raises `ConfigError` for a source that is none of MLflow's and where mlflow is missing, and `HpcmlError` where it
    cannot be read or a directory cannot be written.
    """
    names = mlflow_import.parse_names(wish.names)
    report = Report()
    if not wish.is_dry:
        claim(places)
    with opened(places) as store:
        collect(store, places)
        for found in runs_in(wish.source, experiment=wish.experiment):
            if isinstance(found, Unreadable):
                report.problems.append(found.why)
                continue
            ours = mlflow_import.as_ours(found, names)
            run_dir = RunDir(places.runs / ours.experiment / ours.uid)
            theirs = _files_in(run_dir.path / _ARTIFACTS)
            if wish.with_artifacts and found.artifact_uri:
                theirs = {**_files_in(folder_of(found.artifact_uri)), **theirs}
            if theirs:
                ours = mlflow_import.as_ours(found, names, artifacts=_artifact_events(theirs))
            if not run_dir.manifest.exists() and clock_zeros(store, [ours.uid]):
                report.own += 1  # it lies elsewhere
                continue
            with _one_line(run_dir):
                _bring_in(run_dir, ours, theirs, report, is_dry=wish.is_dry)
        if not wish.is_dry:
            collect(store, places)
    return report


def _bring_in(run_dir: RunDir, ours: Imported, artifacts: Mapping[str, Path], report: Report, *, is_dry: bool) -> None:
    n_points, journal = _count_points(ours.records), run_dir.journals / _JOURNAL
    if not run_dir.manifest.exists() and (is_dry or _create(run_dir, ours, artifacts)):
        report.created += 1
        report.points += n_points
        report.remarks.update(dict.fromkeys(ours.remarks, 1))
        return
    known = read_raw(run_dir.manifest)
    if known.get("format") != IMPORTED:
        report.own += 1
        return
    text = journal_text(ours)
    has_news = not journal.exists() or journal.read_text(encoding="ascii") != text
    if not has_news and known == ours.manifest:
        report.unchanged += 1
        return
    report.updated += 1
    report.points += n_points - _count_points(read_journal(journal).records) if journal.exists() else n_points
    report.remarks.update(dict.fromkeys(ours.remarks, 1))
    if not is_dry:
        _write(run_dir, ours, artifacts)


def _create(run_dir: RunDir, ours: Imported, artifacts: Mapping[str, Path]) -> bool:
    """Make the run directory, whole or not at all; False where another import was faster."""
    make_folder(run_dir.path.parent, parents=True)
    work = RunDir(run_dir.path.with_name(f"{_BEGUN}{secrets.token_hex(4)}"))
    make_folder(work.path)
    try:
        make_folder(work.journals)
        _write(work, ours, artifacts)
        work.path.rename(run_dir.path)  # a folder: its own name tells the store what it is while it is written
    except OSError:
        if run_dir.manifest.exists():
            return False
        raise
    finally:
        shutil.rmtree(work.path, ignore_errors=True)
    return True


def _write(run_dir: RunDir, ours: Imported, artifacts: Mapping[str, Path]) -> None:
    """Write what *ours* says into *run_dir*, in place of what an earlier import wrote."""
    for name, source in artifacts.items():
        if not (run_dir.path / name).exists():
            copy_file(source, run_dir.path / name)
    write_text(run_dir.journals / _JOURNAL, journal_text(ours), durable=True)
    write_text(run_dir.manifest, json.dumps(ours.manifest, indent=2, allow_nan=False) + "\n")


def _files_in(folder: Path | None) -> dict[str, Path]:
    """Return the files in a folder of artifacts by what a run calls them; what lies on a server stays there."""
    if folder is None or not folder.is_dir():
        return {}
    files = sorted(path for path in folder.rglob("*") if is_inside(path, folder))
    return {f"{_ARTIFACTS}/{path.relative_to(folder).as_posix()}": path for path in files}


def _artifact_events(files: Mapping[str, Path]) -> list[Event]:
    """Return an event "artifact" for each file, with its size in bytes and its SHA-256."""
    events: list[Event] = []
    for name, path in sorted(files.items()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        details = {"path": name, "kind": None, "bytes": path.stat().st_size, "sha256": digest}
        events.append(Event(seq=0, t_s=0.0, name="artifact", details=details))
    return events


def _count_points(records: Sequence[object]) -> int:
    return sum(len(getattr(record, "values", ())) for record in records)


@contextmanager
def _one_line(run_dir: RunDir) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HpcmlError(f"{error.filename or run_dir.path} cannot be written: {error.strerror or error}") from error
