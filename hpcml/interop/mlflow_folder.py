"""Reads MLflow's file store, the folder `mlruns`, which is a tree of small files.

    mlruns/<experiment>/meta.yaml
    mlruns/<experiment>/<run>/meta.yaml  params/<name>  tags/<name>  metrics/<name>  artifacts/

The file of a parameter or tag holds its value; that of a metric has one line per value: time in ms, value, and (since
2018) step.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hpcml.errors import ConfigError, HpcmlError
from hpcml.interop.mlflow_run import Logged, MlflowRun, Unreadable, moment, no_such_experiment, word

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_STATUS = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}  # RunStatus of MLflow's service.proto
_DATABASE = "mlflow.db"  # beside a folder mlruns that has only the files of its runs
_LONGEST = 1 << 20  # of a parameter or tag


def runs_in(root: Path, *, experiment: str | None = None) -> Iterator[MlflowRun | Unreadable]:
    """Yield every run that was not deleted, of all experiments or the named one; *root* may be an experiment's folder.

    Experiments and runs come in the order of their folders' names; one that cannot be read is yielded as `Unreadable`,
    and the others are still read. Raises `ConfigError` for what is no file store, and, after the last run, for an
    *experiment* that is not in it.
    """
    folders = _experiment_folders(root)
    names: set[str] = set()
    for folder in folders:
        try:
            meta = _meta(folder)
        except HpcmlError as error:
            yield Unreadable(why=str(error))
            continue
        name = str(meta.get("name") or folder.name)
        names.add(name)
        if meta.get("lifecycle_stage", "active") == "active" and experiment in (None, name):
            yield from _runs_of(folder, str(meta.get("experiment_id") or folder.name), name)
    if experiment is not None and experiment not in names:
        raise no_such_experiment(root, experiment, names)


def _experiment_folders(root: Path) -> list[Path]:
    if not root.is_dir():
        what = "is neither MLflow's database, mlflow.db, nor its file store, the folder mlruns"
        raise ConfigError(f"{root} {what if root.exists() else 'does not exist'}")
    if (root / "meta.yaml").is_file():
        return [root]
    folders = sorted(path.parent for path in root.glob("[!.]*/meta.yaml"))
    if not folders:
        databases = [path for path in (root / _DATABASE, root.absolute().parent / _DATABASE) if path.is_file()]
        advice = (
            f"; MLflow's runs are in its database: hpcml import {shlex.quote(str(databases[0]))}" if databases else ""
        )
        raise ConfigError(f"{root} is no MLflow file store: no folder in it has a meta.yaml{advice}")
    return folders


def _runs_of(folder: Path, experiment_id: str, experiment: str) -> Iterator[MlflowRun | Unreadable]:
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or not ((path / "meta.yaml").is_file() or _RUN_ID.fullmatch(path.name)):
            continue
        try:
            meta = _meta(path)
            if meta.get("lifecycle_stage", "active") == "active" and ("run_id" in meta or "run_uuid" in meta):
                yield _read_run(path, meta, experiment_id, experiment)
        except HpcmlError as error:
            yield Unreadable(why=str(error))


def _read_run(folder: Path, meta: Mapping[str, Any], experiment_id: str, experiment: str) -> MlflowRun:
    try:
        tags = {name: _text(path) for name, path in _files(folder / "tags")}
        metrics: dict[str, list[Logged]] = {}
        bad_lines = 0
        for name, path in _files(folder / "metrics"):
            metrics[name], bad = _read_metric(path)
            bad_lines += bad
        params = {name: _text(path) for name, path in _files(folder / "params")}
    except OSError as error:
        raise HpcmlError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    status = meta.get("status")
    return MlflowRun(
        experiment_id=experiment_id,
        experiment=experiment,
        run_id=folder.name,
        name=tags.get("mlflow.runName") or word(meta.get("run_name") or meta.get("name")),
        status=_STATUS.get(status, str(status)) if isinstance(status, int) else str(status),
        started_ms=moment(meta.get("start_time")),
        ended_ms=moment(meta.get("end_time")),
        user=tags.get("mlflow.user") or word(meta.get("user_id")),
        artifact_uri=word(meta.get("artifact_uri")),
        folder=folder,
        params=params,
        tags=tags,
        metrics=metrics,
        bad_values=bad_lines,
    )


def _read_metric(path: Path) -> tuple[list[Logged], int]:
    """Return the values in the file of a metric, in its order, and the number of lines that cannot be read."""
    logged: list[Logged] = []
    bad = 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        parts = line.split(" ")
        try:
            step = int(parts[2]) if len(parts) >= 3 else 0
            value = Logged(at_ms=int(parts[0]), value=float(parts[1]), step=step)
        except (ValueError, IndexError):
            bad += bool(line.strip())
            continue
        logged.append(value)
    return logged, bad


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield names and files: a name with slashes lies in folders."""
    if folder.is_dir():
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path


def _text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        return file.read(_LONGEST)


def _meta(folder: Path) -> dict[str, Any]:
    path = folder / "meta.yaml"
    try:
        meta = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise HpcmlError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise HpcmlError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(meta, dict):
        raise HpcmlError(f"{path} is no meta.yaml of MLflow")
    return meta
