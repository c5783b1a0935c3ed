"""Reads MLflow's SQLite database, `mlflow.db`, which is its default since version 3.7.

The tables are those of mlflow/store/tracking/dbmodels/models.py, the same since MLflow 1.0. The database is opened
read-only, and each of its tables is read for one run at a time: a program that goes on logging does not wait for it.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from hpcml.errors import ConfigError, HpcmlError
from hpcml.interop.mlflow_run import Logged, MlflowRun, Unreadable, moment, no_such_experiment, word

_BEGIN = b"SQLite format 3\0"
_ID = re.compile(r"[0-9A-Za-z_-]{1,100}")  # it becomes part of a folder's name
_WAIT_S = 10.0  # for a program that is writing
_LONGEST_BYTES = 1 << 20  # of a parameter or tag
_LARGEST = sys.float_info.max  # what MLflow stores for an infinity (mlflow/store/tracking/sqlalchemy_store.py)
_EXPERIMENTS = "SELECT experiment_id, name, lifecycle_stage FROM experiments ORDER BY experiment_id"
_RUNS = (
    "SELECT run_uuid, name, status, start_time, end_time, user_id, artifact_uri FROM runs"
    " WHERE experiment_id = ? AND lifecycle_stage = 'active' ORDER BY start_time, run_uuid"
)
_PARAMS = "SELECT key, substr(value, 1, ?) FROM params WHERE run_uuid = ? ORDER BY key"
_TAGS = "SELECT key, substr(value, 1, ?) FROM tags WHERE run_uuid = ? ORDER BY key"
_METRICS = (
    "SELECT key, timestamp, value, step, is_nan FROM metrics WHERE run_uuid = ? ORDER BY key, timestamp, step, rowid"
)


def is_database(path: Path) -> bool:
    """Tell whether *path* is a file of SQLite's."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGIN)) == _BEGIN
    except OSError as error:
        raise HpcmlError(f"{path} cannot be read: {error.strerror}") from error


def runs_in(path: Path, *, experiment: str | None = None) -> Iterator[MlflowRun | Unreadable]:
    """Yield every run that was not deleted, of all experiments or the named one, by experiments and starts.

    A run that cannot be read is yielded as `Unreadable`, and the others are still read. Raises `ConfigError` for a
    database that is none of MLflow's and for an *experiment* that is not in it, `HpcmlError` where it cannot be read.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_WAIT_S)) as database:
            database.text_factory = _text
            found = database.execute(_EXPERIMENTS).fetchall()
            if experiment is not None and experiment not in (names := {str(name) for _, name, _ in found}):
                raise no_such_experiment(path, experiment, names)
            for number, name, stage in found:
                if stage == "active" and experiment in (None, name):
                    yield from _runs_of(database, path, str(number), str(name))
    except sqlite3.Error as error:
        if str(error).startswith("no such "):
            raise ConfigError(f"{path} is no database of MLflow: {error}") from error
        kind = HpcmlError if isinstance(error, sqlite3.OperationalError) else ConfigError  # locked, or damaged
        raise kind(f"{path} cannot be read: {error}") from error


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _runs_of(
    database: sqlite3.Connection, path: Path, experiment_id: str, experiment: str
) -> Iterator[MlflowRun | Unreadable]:
    for run_id, name, status, started, ended, user, uri in database.execute(_RUNS, (experiment_id,)).fetchall():
        if not isinstance(run_id, str) or not _ID.fullmatch(run_id):
            yield Unreadable(why=f"{path}: {run_id!r} is no id of a run")
            continue
        params = dict(database.execute(_PARAMS, (_LONGEST_BYTES, run_id)).fetchall())
        tags = dict(database.execute(_TAGS, (_LONGEST_BYTES, run_id)).fetchall())
        metrics, bad_values = _metrics_of(database, run_id)
        yield MlflowRun(
            experiment_id=experiment_id,
            experiment=experiment,
            run_id=run_id,
            name=tags.get("mlflow.runName") or word(name),
            status=str(status),
            started_ms=moment(started),
            ended_ms=moment(ended),
            user=tags.get("mlflow.user") or word(user),
            artifact_uri=word(uri),
            folder=path.parent / "mlruns" / experiment_id / run_id,  # where its files are put by default
            params={key: str(value) for key, value in params.items()},
            tags={key: str(value) for key, value in tags.items()},
            metrics=metrics,
            bad_values=bad_values,
        )


def _metrics_of(database: sqlite3.Connection, run_id: str) -> tuple[dict[str, list[Logged]], int]:
    """Return the values of each metric by time, and how many cannot be read."""
    metrics: dict[str, list[Logged]] = {}
    bad = 0
    for key, at_ms, stored, step, is_nan in database.execute(_METRICS, (run_id,)):
        if not (isinstance(at_ms, int) and isinstance(step, int) and isinstance(stored, int | float)):
            bad += 1
            continue
        value = float("nan") if is_nan else float(stored)
        value = float("inf") if value >= _LARGEST else float("-inf") if value <= -_LARGEST else value
        metrics.setdefault(str(key), []).append(Logged(at_ms=at_ms, value=value, step=step))
    return metrics, bad
