"""Runs as MLflow recorded them, read by MLflow's own client; `mlflow_import` makes them ours."""

from __future__ import annotations

import logging
import math
import re
import shlex
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hpcml.errors import ConfigError, HpcmlError
from hpcml.interop.mlflow_client import all_pages, client_of, folder_of, one_line

_LATEST_MS = 253_402_300_800_000  # the year 10000, which no calendar of Python's has: nanoseconds, mostly
_LARGEST = sys.float_info.max  # what MLflow stores for an infinity (mlflow/store/tracking/sqlalchemy_store.py)
_ID = re.compile(r"[0-9A-Za-z_-]{1,100}")  # it becomes part of a folder's name
_BEGIN = b"SQLite format 3\0"
_DATABASE = "mlflow.db"  # beside a folder mlruns that has only the files of its runs
_BAD = (HpcmlError, ValueError, TypeError)  # what MLflow's client raises for values that are none


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One value of a metric, as MLflow stored it: time in unix milliseconds; step 0 where none was logged."""

    at_ms: int
    value: float
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowRun:
    """One run of MLflow's.

    Times are in unix milliseconds, None where MLflow has none. The values of a metric are in the order of their times.
    A run that has not ended has no `ended_ms`.
    """

    experiment_id: str
    experiment: str
    run_id: str
    name: str | None
    status: str  # RUNNING, SCHEDULED, FINISHED, FAILED, KILLED
    started_ms: int | None
    ended_ms: int | None
    user: str | None
    artifact_uri: str | None
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Sequence[Logged]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A run or experiment that cannot be imported, and why, in one line."""

    why: str


def moment(value: object) -> int | None:
    """Return a time of MLflow in unix milliseconds; None for what cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 < value < _LATEST_MS else None


def runs_in(source: str, *, experiment: str | None = None) -> Iterator[MlflowRun | Unreadable]:
    """Yield every run that was not deleted, of all experiments or the named one, by experiments and starts.

    *source* is the path of a database or of a folder, or an address as MLflow takes it. A run or experiment that cannot
    be read is yielded as `Unreadable`, and the others are still read. Raises `ConfigError` for what is none of MLflow's
    and for an *experiment* that is not there, `HpcmlError` where MLflow cannot read it.
    """
    with _to_be_read(source) as uri, one_line(source):
        client = client_of(uri)
        found = sorted(all_pages(client.search_experiments), key=lambda each: str(each.experiment_id))
        names = {str(each.name) for each in found}
        if experiment is not None and experiment not in names:
            raise ConfigError(f"{source} has no experiment {experiment}: it has {', '.join(sorted(names)) or 'none'}")
        for each in found:
            if experiment in (None, each.name):
                yield from _runs_of(client, source, each)


def _runs_of(client: Any, source: str, experiment: Any) -> Iterator[MlflowRun | Unreadable]:  # noqa: ANN401 - MLflow's
    def page(**more: Any) -> Any:  # noqa: ANN401 - as above
        return client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"], **more)

    with _passed_over() as passed_over:
        try:
            with one_line(source):
                runs = list(all_pages(page))
        except _BAD as error:
            yield Unreadable(why=f"{source}: experiment {experiment.name}: {' '.join(str(error).split())}")
            return
    yield from (Unreadable(why=f"{source}: {text}") for text in passed_over)
    for run in runs:
        run_id = str(run.info.run_id)
        if not _ID.fullmatch(run_id):
            yield Unreadable(why=f"{source}: {run_id!r} is no id of a run")
            continue
        try:
            with one_line(source):
                yield _run_of(client, experiment, run)
        except _BAD as error:
            yield Unreadable(why=f"{source}: run {run_id}: {' '.join(str(error).split())}")


def _run_of(client: Any, experiment: Any, run: Any) -> MlflowRun:  # noqa: ANN401 - MLflow's
    info, tags = run.info, dict(sorted(run.data.tags.items()))
    return MlflowRun(
        experiment_id=str(experiment.experiment_id),
        experiment=str(experiment.name),
        run_id=str(info.run_id),
        name=tags.get("mlflow.runName") or info.run_name or None,
        status=str(info.status),
        started_ms=moment(info.start_time),
        ended_ms=moment(info.end_time),
        user=tags.get("mlflow.user") or info.user_id or None,
        artifact_uri=info.artifact_uri or None,
        params=dict(sorted(run.data.params.items())),
        tags=tags,
        metrics={name: _logged(client.get_metric_history(info.run_id, name)) for name in sorted(run.data.metrics)},
    )


def _logged(history: Sequence[Any]) -> list[Logged]:
    logged = [Logged(at_ms=int(at.timestamp), value=_number(float(at.value)), step=int(at.step)) for at in history]
    return sorted(logged, key=lambda at: (at.at_ms, at.step))


def _number(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) >= _LARGEST else value


@contextmanager
def _passed_over() -> Iterator[list[str]]:
    """Collect what MLflow says of runs in a folder that it passes over, a line each, in place of stderr."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    logger = logging.getLogger("mlflow.store.tracking.file_store")
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


@contextmanager
def _to_be_read(source: str) -> Iterator[str]:
    """Give the address for MLflow's client: of a database that of a copy, since MLflow makes and upgrades tables."""
    path = _database(source) or folder_of(source)
    if path is None:
        yield source
        return
    path = path.expanduser()
    if not _is_database(path):
        _check_folder(path)
        yield path.absolute().as_uri()
        return
    with tempfile.TemporaryDirectory(prefix="hpcml-import-") as folder:
        try:
            with (
                closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database,
                closing(sqlite3.connect(Path(folder) / _DATABASE)) as copy,
            ):
                database.execute("SELECT 1 FROM experiments, runs LIMIT 1")
                database.backup(copy)
        except sqlite3.Error as error:
            is_other = str(error).startswith("no such ")
            raise ConfigError(
                f"{path} {'is no database of MLflow' if is_other else 'cannot be read'}: {error}"
            ) from error
        yield f"sqlite:///{folder}/{_DATABASE}"


def _database(source: str) -> Path | None:
    """Return the file that ``sqlite:///mlflow.db`` names, None for what is no such address."""
    if urlsplit(source).scheme != "sqlite":
        return None
    return Path(source.removeprefix("sqlite:").removeprefix("///"))


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGIN)) == _BEGIN
    except OSError as error:
        raise HpcmlError(f"{path} cannot be read: {error.strerror}") from error


def _check_folder(root: Path) -> None:
    """Raise `ConfigError` where *root* is no file store of MLflow's, which would make one there."""
    if not root.is_dir():
        what = "is neither MLflow's database, mlflow.db, nor its file store, the folder mlruns"
        raise ConfigError(f"{root} {what if root.exists() else 'does not exist'}")
    if next(root.glob("[!.]*/meta.yaml"), None) is None:
        databases = [path for path in (root / _DATABASE, root.absolute().parent / _DATABASE) if path.is_file()]
        advice = f"; its runs are in its database: hpcml import {shlex.quote(str(databases[0]))}" if databases else ""
        raise ConfigError(f"{root} is no MLflow file store: no folder in it has a meta.yaml{advice}")
