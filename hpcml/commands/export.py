"""Writing runs in the formats of other tools (MLflow, TensorBoard, Parquet, ...), for ``hpcml export``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO

from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import Selection, select
from hpcml.errors import ConfigError
from hpcml.interop import (
    crate_export,
    csv_export,
    json_export,
    mlflow_export,
    output,
    parquet_export,
    tensorboard_export,
)
from hpcml.interop.exported import Export, WholeRun
from hpcml.interop.exporters import Exporter, exporter_of
from hpcml.model.records import Curve, RunRecord
from hpcml.paths import Places
from hpcml.runs.layout import RunDir
from hpcml.runs.lock import Owner, kept_alive, try_lock
from hpcml.runs.private import make_folder
from hpcml.store import query
from hpcml.store.database import Database
from hpcml.store.loading import clock_zeros

_AT_ONCE = 200_000  # points that are in memory together, unless one run has more
STDOUT = "-"
_MLFLOW = "mlflow"
FORMS = ("csv", "json", "parquet", _MLFLOW, "tensorboard", "rocrate")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What is to be exported where."""

    form: str  # one of `FORMS`, or what a package adds
    out: str | None = None  # a folder, a file or MLflow's URI; None: standard output, or what MLFLOW_TRACKING_URI says
    with_artifacts: bool = False  # logs and what runs reported as artifacts go along
    license: str | None = None  # of a crate


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was done, in one line, and remarks on what the other tool could not take as it is here."""

    line: str
    remarks: Sequence[str] = ()


def export(
    places: Places, selection: Selection, wish: ExportRequest, environ: Mapping[str, str], stdout: IO[str]
) -> Exported:
    """Export the selected runs as they are now; json may go to *stdout*.

    What was at the target before is replaced as a whole, or stays whole if anything fails; only an earlier export of
    the same form is replaced. MLflow is different: its runs are created or updated one after the other, and no two
    exports of this HPCML_HOME do that at once. *environ* is asked for MLFLOW_TRACKING_URI.

    Raises `ConfigError` where no target is given and the format needs one, and where no run matches.
    """
    exporter = None if wish.form == _MLFLOW else _exporter_of(wish)
    target = _target(wish, exporter, environ)
    with opened(places) as store:
        collect(store, places)
        records = _with_last_values(store, select(store, selection, refusal="no run matches: nothing was exported"))
        zeros = clock_zeros(store, [record.uid for record in records])
        runs = Export(records=records, t_zero=zeros, runs=_whole_runs(store, records, zeros))
        if exporter is None:
            with _alone(places):
                return _to_mlflow(runs, target, wish)
        _write(runs, exporter, target, wish.form, stdout)
    counted = _count(len(records), "run")
    return Exported(line=f"{counted} exported" if target == STDOUT else f"{counted} exported to {target}")


def _exporter_of(wish: ExportRequest) -> Exporter:
    """Return what writes the format: one of hpcml's own, or a package's."""
    own = {
        "csv": Exporter(write_folder=csv_export.write_csv),
        "json": Exporter(write_file=json_export.write_json, is_ours=json_export.is_json_export),
        "parquet": Exporter(write_folder=parquet_export.write_parquet),
        "tensorboard": Exporter(write_folder=tensorboard_export.write_tensorboard),
        "rocrate": Exporter(write_folder=partial(_write_crate, wish=wish)),
    }
    return own.get(wish.form) or exporter_of(wish.form, ours=FORMS)


def _write_crate(runs: Export, folder: Path, wish: ExportRequest) -> None:
    about = crate_export.About(
        made_at=datetime.now(UTC),
        license=wish.license,
        with_artifacts=wish.with_artifacts,
    )
    crate_export.write_crate(runs, folder, about)


def _target(wish: ExportRequest, exporter: Exporter | None, environ: Mapping[str, str]) -> str:
    """Return where the export goes: what was asked for, else the format's own default."""
    is_file = exporter is not None and exporter.write_file is not None
    if wish.out is not None and (wish.out != STDOUT or is_file):
        return wish.out
    if is_file:
        return STDOUT
    if exporter is not None:
        raise ConfigError(f"--to {wish.form} writes a folder: say which with -o FOLDER")
    if uri := environ.get("MLFLOW_TRACKING_URI"):
        return uri
    raise ConfigError("say where MLflow is: -o sqlite:////path/to/mlflow.db, -o https://..., or MLFLOW_TRACKING_URI")


def _write(runs: Export, exporter: Exporter, target: str, form: str, stdout: IO[str]) -> None:
    place = Path(target).absolute()
    if exporter.write_folder is not None:
        with output.new_folder(place, form) as folder:
            exporter.write_folder(runs, folder)
    elif exporter.write_file is not None and target == STDOUT:
        exporter.write_file(runs, stdout)
    elif exporter.write_file is not None and exporter.is_ours is not None:
        with output.new_file(place, is_ours=exporter.is_ours) as file:
            exporter.write_file(runs, file)


def _to_mlflow(runs: Export, uri: str, wish: ExportRequest) -> Exported:
    target, told = mlflow_export.MlflowTarget(uri), mlflow_export.MlflowReport()
    for run in runs.runs:
        run_dir = RunDir(Path(run.record.path))
        found = crate_export.artifact_files(run, run_dir) if wish.with_artifacts else []
        artifacts = [(path, path.relative_to(run_dir.path).parent.as_posix()) for path, _ in found]
        target.put(run, told, artifacts=artifacts)
    line = (
        f"{_count(told.created, 'run')} created in MLflow, {told.updated} updated, {told.unchanged} unchanged; "
        f"{_count(told.points, 'new point')}"
    )
    return Exported(line=line, remarks=list(dict.fromkeys(told.remarks)))


@contextmanager
def _alone(places: Places) -> Iterator[None]:
    """Keep another export of ours from creating the same runs in MLflow, which would have them twice then."""
    folder = places.exports
    try:
        make_folder(folder, parents=True)
        lock = try_lock(folder, "mlflow")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error
    if isinstance(lock, Owner):
        raise ConfigError(f"another export to MLflow is under way ({lock}): try again when it has ended")
    with kept_alive(lock):
        yield


def _with_last_values(store: Database, records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return *records* with last values that are not finite as they were; the store only says that they are not."""
    having: dict[str, list[str]] = {}
    for record in records:
        for metric, summary in record.metrics.items():
            if summary.last is None and summary.n_nonfinite:
                having.setdefault(metric, []).append(record.uid)
    known = {record.uid: dict(record.metrics) for record in records}
    for metric, uids in having.items():
        for uid, curve in query.curves(store, uids, metric, is_timed=False).items():
            if curve:
                known[uid][metric] = replace(known[uid][metric], last=curve[-1].value)
    return [replace(record, metrics=known[record.uid]) for record in records]


def _whole_runs(store: Database, records: Sequence[RunRecord], zeros: Mapping[str, float]) -> Iterator[WholeRun]:
    """Load the runs as they are asked for, several small ones at once."""
    together: list[RunRecord] = []
    n_points = 0
    for record in records:
        size = sum(summary.n for summary in record.metrics.values())
        if together and n_points + size > _AT_ONCE:
            yield from _load(store, together, zeros)
            together, n_points = [], 0
        together.append(record)
        n_points += size
    yield from _load(store, together, zeros)


def _load(store: Database, records: Sequence[RunRecord], zeros: Mapping[str, float]) -> Iterator[WholeRun]:
    """Load curves and events of *records* by one query for each metric, and yield the runs in their order."""
    having: dict[str, list[str]] = {}
    for record in records:
        for metric in record.metrics:
            having.setdefault(metric, []).append(record.uid)
    curves: dict[str, dict[str, Curve]] = {metric: query.curves(store, uids, metric) for metric, uids in having.items()}
    for record in records:
        yield WholeRun(
            record=record,
            t_zero=zeros.get(record.uid, record.t_start or 0.0),
            curves={metric: curves[metric][record.uid] for metric in record.metrics},
            events=query.events(store, record.uid),
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
