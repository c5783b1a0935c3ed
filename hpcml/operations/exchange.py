"""Runs handed to other tools, in their formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import IO

from hpcml import __version__
from hpcml.errors import ConfigError, StoreError
from hpcml.interop import (
    csv_files,
    json_file,
    mlflow_runs,
    openmetrics_text,
    output,
    parquet_files,
    process_run_crate,
    tensorboard_events,
)
from hpcml.interop.exported import Export, WholeRun
from hpcml.lease import Owner, kept_alive, try_lock
from hpcml.operations.collect import collect, opened
from hpcml.operations.consult import Selection, select
from hpcml.places import Places
from hpcml.records import Point, RunRecord
from hpcml.rundir import RunDir
from hpcml.store import queries
from hpcml.store.clocks import clock_zeros
from hpcml.store.engine import Store

_AT_ONCE = 200_000  # points that are in memory together, unless one run has more
STDOUT = "-"


class Form(Enum):
    """What runs can be exported to."""

    csv = "csv"
    json = "json"
    parquet = "parquet"
    mlflow = "mlflow"
    tensorboard = "tensorboard"
    openmetrics = "openmetrics"
    rocrate = "rocrate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be exported where."""

    form: Form
    out: str | None = None  # a folder, a file or MLflow's URI; None: standard output, or what MLFLOW_TRACKING_URI says
    with_artifacts: bool = False  # logs and what runs reported as artifacts go along
    license: str | None = None  # of a crate


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was done, in one line, and what the other tool has not as it is here."""

    line: str
    remarks: Sequence[str] = ()


def export(places: Places, selection: Selection, wish: Wish, environ: Mapping[str, str], stdout: IO[str]) -> Exported:
    """Export the selected runs as they are now. What was at the target before is replaced whole, or stays whole."""
    target = _target(wish, environ)
    with opened(places) as store:
        collect(store, places)
        records = select(store, selection)
        if not records and wish.form is not Form.openmetrics:  # which is told anew and anew: none is news, too
            raise StoreError("no run matches: nothing was exported")
        zeros = clock_zeros(store, [record.uid for record in records])
        runs = Export(records=records, t_zero=zeros, runs=_whole_runs(store, records, zeros))
        if wish.form is Form.mlflow:
            with _alone(places):
                return _to_mlflow(runs, target, wish)
        if wish.form in _FILES:
            _to_file(runs, wish.form, target, stdout)
        else:
            _to_folder(runs, wish, Path(target))
    counted = _count(len(records), "run")
    return Exported(line=f"{counted} exported" if target == STDOUT else f"{counted} exported to {target}")


_FILES: Mapping[Form, tuple[Callable[[Export, IO[str]], None], Callable[[bytes], bool]]] = {
    Form.json: (json_file.write_json, json_file.is_json_export),
    Form.openmetrics: (
        lambda runs, file: openmetrics_text.write_openmetrics(runs.records, file),
        openmetrics_text.is_openmetrics_export,
    ),
}
_FOLDERS: Mapping[Form, Callable[[Export, Path], None]] = {
    Form.csv: csv_files.write_csv,
    Form.parquet: parquet_files.write_parquet,
    Form.tensorboard: tensorboard_events.write_tensorboard,
}


def _target(wish: Wish, environ: Mapping[str, str]) -> str:
    if wish.out is not None and (wish.out != STDOUT or wish.form in _FILES):
        return wish.out
    if wish.form in _FILES:
        return STDOUT
    if wish.form is Form.mlflow:
        if uri := environ.get("MLFLOW_TRACKING_URI"):
            return uri
        raise ConfigError(
            "say where MLflow is: -o sqlite:////path/to/mlflow.db, -o https://..., or MLFLOW_TRACKING_URI"
        )
    raise ConfigError(f"--to {wish.form.value} writes a folder: say which with -o FOLDER")


def _to_file(runs: Export, form: Form, target: str, stdout: IO[str]) -> None:
    write, is_ours = _FILES[form]
    if target == STDOUT:
        write(runs, stdout)
        return
    with output.new_file(Path(target).absolute(), is_ours=is_ours) as file:
        write(runs, file)


def _to_folder(runs: Export, wish: Wish, target: Path) -> None:
    with output.new_folder(target.absolute(), wish.form.value) as folder:
        if wish.form is Form.rocrate:
            about = process_run_crate.About(
                made_at=datetime.now(UTC),
                hpcml_version=__version__,
                license=wish.license,
                with_artifacts=wish.with_artifacts,
            )
            process_run_crate.write_crate(runs, folder, about)
        else:
            _FOLDERS[wish.form](runs, folder)


def _to_mlflow(runs: Export, uri: str, wish: Wish) -> Exported:
    target, told = mlflow_runs.MlflowTarget(uri), mlflow_runs.Told()
    for run in runs.runs:
        run_dir = RunDir(Path(run.record.path))
        found = process_run_crate.artifact_files(run, run_dir) if wish.with_artifacts else []
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
    folder = places.home / "exports"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = try_lock(folder, "mlflow")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error
    if isinstance(lock, Owner):
        raise ConfigError(f"another export to MLflow is under way ({lock}): try again when it has ended")
    with kept_alive(lock):
        yield


def _whole_runs(store: Store, records: Sequence[RunRecord], zeros: Mapping[str, float]) -> Iterator[WholeRun]:
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


def _load(store: Store, records: Sequence[RunRecord], zeros: Mapping[str, float]) -> Iterator[WholeRun]:
    having: dict[str, list[str]] = {}
    for record in records:
        for metric in record.metrics:
            having.setdefault(metric, []).append(record.uid)
    curves: dict[str, dict[str, list[Point]]] = {
        metric: queries.curves(store, uids, metric) for metric, uids in having.items()
    }
    for record in records:
        yield WholeRun(
            record=record,
            t_zero=zeros.get(record.uid, record.t_start or 0.0),
            curves={metric: curves[metric][record.uid] for metric in record.metrics},
            events=queries.events(store, record.uid),
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
