"""MLflow's file store, read: the folder ``mlruns/``, which later MLflow does not open any more. Needs no MLflow.

    mlruns/<experiment>/meta.yaml
    mlruns/<experiment>/<run>/meta.yaml  params/<name>  tags/<name>  metrics/<name>  artifacts/

A file of a parameter or tag holds its value, one of a metric a line for each: time in ms, value, and since 2018 step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hpcml.errors import ConfigError, HpcmlError

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_STATUS = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}  # RunStatus of MLflow's service.proto
_LONGEST = 1 << 20  # of a parameter or tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One value of a metric as MLflow has it."""

    at_ms: int
    value: float
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowRun:
    """One run of a file store."""

    experiment_id: str
    experiment: str
    run_id: str
    name: str | None
    status: str  # RUNNING, SCHEDULED, FINISHED, FAILED, KILLED, or what else stood there
    started_ms: int | None
    ended_ms: int | None
    user: str | None
    artifact_uri: str | None
    folder: Path
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Sequence[Logged]] = field(default_factory=dict)
    bad_lines: int = 0  # of metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A run, or all runs of an experiment, that cannot be told, and why, in one line."""

    why: str


def find_runs(root: Path, *, experiment: str | None = None) -> Iterator[MlflowRun | Unreadable]:
    """Yield every run that was not deleted, of all experiments or the named one; *root* may be an experiment's folder.

    What is no file store raises `ConfigError`.
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
        raise ConfigError(f"{root} has no experiment {experiment}: it has {', '.join(sorted(names)) or 'none'}")


def _experiment_folders(root: Path) -> list[Path]:
    if not root.is_dir():
        what = "is no folder: an MLflow file store is one, mostly called mlruns" if root.exists() else "does not exist"
        raise ConfigError(f"{root} {what}")
    if (root / "meta.yaml").is_file():
        return [root]
    folders = sorted(path.parent for path in root.glob("[!.]*/meta.yaml"))
    if not folders:
        raise ConfigError(f"{root} is no MLflow file store: no folder in it has a meta.yaml")
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
        name=tags.get("mlflow.runName") or _word(meta.get("run_name") or meta.get("name")),
        status=_STATUS.get(status, str(status)) if isinstance(status, int) else str(status),
        started_ms=_moment(meta.get("start_time")),
        ended_ms=_moment(meta.get("end_time")),
        user=tags.get("mlflow.user") or _word(meta.get("user_id")),
        artifact_uri=_word(meta.get("artifact_uri")),
        folder=folder,
        params=params,
        tags=tags,
        metrics=metrics,
        bad_lines=bad_lines,
    )


def _read_metric(path: Path) -> tuple[list[Logged], int]:
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


def _moment(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 < value < 1e15 else None


def _word(value: object) -> str | None:
    return None if value is None or value == "" else str(value)
