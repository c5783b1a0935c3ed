"""Exports runs to MLflow, as often as one likes: what is there already stays, and what is new is added.

`MlflowTarget` is what `hpcml export` uses for the format mlflow. A run is found again by its tag ``hpcml.uid``, which
it gets in the call that creates it. MLflow never takes a value of a metric back, so a step that a later attempt did
again is there twice; its times tell which is the later one. `mend` repairs MLflow's folder of files where a process
died while MLflow was writing there.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcml.codec import encode
from hpcml.errors import ConfigError, HpcmlError
from hpcml.interop.exported import WholeRun, clean, json_ready
from hpcml.interop.mlflow_client import client_of, folder_of, one_line
from hpcml.interop.output import file_name
from hpcml.model.secrets import masked_json
from hpcml.model.state import State
from hpcml.runs.files import read_raw
from hpcml.runs.layout import RunDir

UID = "hpcml.uid"
_DONE = "hpcml.exported"  # what was exported, in one word: where it is still that, nothing is looked at
_TAG = "hpcml.tag."  # and the tag: so that one can be taken back
_FOLDER = "hpcml"  # of the artifacts
# What MLflow takes in one call, and how long its words may be (mlflow.utils.validation).
_BATCH = 1000
_BATCH_PARAMS = 100
_LONGEST_KEY, _LONGEST_PARAM, _LONGEST_TAG = 250, 6000, 5000
_UNSAFE = re.compile(r"[^A-Za-z0-9_\-. :/]")
STATUS: Mapping[State, str] = {
    State.PENDING: "SCHEDULED",
    State.RUNNING: "RUNNING",
    State.COMPLETED: "FINISHED",
    State.CANCELLED: "KILLED",
}


@dataclass(slots=True)
class MlflowReport:
    """What an export to MLflow did, in counts: of runs, and of values of metrics (`points`) that were sent."""

    created: int = 0
    updated: int = 0
    unchanged: int = 0
    points: int = 0
    remarks: list[str] = field(default_factory=list)  # what MLflow has not as it is here, a line each


class MlflowTarget:
    """A tracking server of MLflow, or a folder or database in its place.

    *uri* is as MLflow takes it: ``http://host:5000``, ``sqlite:///mlflow.db``, or a folder. What MLflow knows of an
    experiment is asked once and remembered. Every failure of MLflow, or of a library below it, is raised as an
    `HpcmlError` of one line, without passwords. Raises `ConfigError` where mlflow is missing.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._runs: dict[str, dict[str, Any]] = {}  # experiment id -> uid -> run
        self._experiments: dict[str, str] = {}
        with self._one_line():
            self._client = client_of(uri)

    def put(self, run: WholeRun, told: MlflowReport, *, artifacts: Sequence[tuple[Path, str]]) -> None:
        """Bring MLflow's copy of *run* up to date; each of *artifacts* is a file and the folder for it in MLflow.

        The folder ``.`` is the top one. What was done is counted in *told*. A run that was deleted in MLflow is left
        out, with a remark; an experiment that was deleted there raises `ConfigError`. If this process is killed
        meanwhile, the next export does what is missing.
        """
        with self._one_line():
            record = run.record
            known = self._known_runs(record.experiment)
            theirs = known.get(record.uid)
            if theirs is not None and theirs.info.lifecycle_stage != "active":
                told.remarks.append(f"run {record.uid} was deleted in MLflow: left out")
                return
            stamp = _stamp(run, artifacts)
            if theirs is not None and theirs.data.tags.get(_DONE) == stamp:
                told.unchanged += 1
                return
            if theirs is None:
                theirs = self._create(run)
                told.created += 1
            else:
                told.updated += 1
            run_id = str(theirs.info.run_id)
            self._params(run, run_id, theirs.data.params, told)
            self._metrics(run, run_id, theirs.data.metrics, told)
            self._tags(run, run_id, theirs.data.tags, told)
            self._artifacts(run, run_id, artifacts)
            self._status(run, run_id)
            self._client.set_tag(run_id, _DONE, stamp)  # last: whoever is killed before has not finished

    def _create(self, run: WholeRun) -> Any:  # noqa: ANN401 - of a library without types
        record = run.record
        provenance = _provenance(run)
        about = {
            UID: record.uid,
            "mlflow.user": str(provenance.get("user") or "unknown"),
            "mlflow.source.type": "JOB",
            "mlflow.source.name": " ".join(map(str, provenance.get("command_line") or ["hpcml"])),
        }
        return self._client.create_run(
            self._experiments[record.experiment],
            start_time=run.unix_ms(0.0) if record.t_start is None else round(record.t_start * 1000),
            tags={key: _cut(value, _LONGEST_TAG) for key, value in about.items()},
            run_name=clean(record.name or record.uid),
        )

    def _params(self, run: WholeRun, run_id: str, known: Mapping[str, str], told: MlflowReport) -> None:
        """Send the settings that MLflow does not have yet; it never changes one, which is told as a remark."""
        from mlflow.entities import Param  # noqa: PLC0415 - an extra

        params: list[Any] = []
        keys = _Keys()
        cut: list[str] = []
        for key, value in run.record.params.items():
            text = value if isinstance(value, str) else json.dumps(json_ready(value))
            if len(clean(text)) > _LONGEST_PARAM:
                cut.append(key)
            name, told_value = keys.name(key), _cut(text, _LONGEST_PARAM)
            if name in known and known[name] != told_value:
                told.remarks.append(f"run {run.record.uid}: MLflow keeps {name}={known[name]}")  # it never changes one
            elif name not in known:
                params.append(Param(name, told_value))
        for start in range(0, len(params), _BATCH_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + _BATCH_PARAMS])
        if cut:
            told.remarks.append(f"run {run.record.uid}: cut after {_LONGEST_PARAM} characters: {', '.join(cut)}")
        told.remarks += [f"MLflow calls {key!r} {name!r}" for key, name in keys.renamed.items()]

    def _metrics(self, run: WholeRun, run_id: str, known: Mapping[str, float], told: MlflowReport) -> None:
        """Send the values that MLflow does not have yet, found by metric, step and time in ms."""
        from mlflow.entities import Metric  # noqa: PLC0415 - an extra

        keys = _Keys()
        waiting: list[Any] = []

        def flush() -> None:
            if waiting:
                self._client.log_batch(run_id, metrics=waiting)
                told.points += len(waiting)
                waiting.clear()

        for metric, points in run.curves.items():
            name = keys.name(metric)
            there: set[tuple[int, int]] = set()
            if name in known:
                there = {(at.step, at.timestamp) for at in self._client.get_metric_history(run_id, name)}
            for point in points:
                at_ms = run.unix_ms(point.t_s)
                if (point.step, at_ms) not in there:
                    waiting.append(Metric(name, point.value, at_ms, point.step))
                if len(waiting) == _BATCH:
                    flush()
        flush()
        told.remarks += [f"MLflow calls {metric!r} {name!r}" for metric, name in keys.renamed.items()]

    def _tags(self, run: WholeRun, run_id: str, known: Mapping[str, str], told: MlflowReport) -> None:
        """Send what has changed of the outcome, facts, usage, notes and tags.

        Tags that were removed from the run are removed in MLflow.
        """
        from mlflow.entities import RunTag  # noqa: PLC0415 - an extra

        record = run.record
        fields = (
            *(
                "state",
                "cause",
                "reason",
                "incomplete",
                "exit_code",
                "attempt",
                "wall_s",
                "spec_hash",
                "submission",
                "path",
            ),
            *("scheduler", "job_id", "precision", "precision_effective", "numerics", "git_dirty"),
        )
        about: dict[str, object] = {f"hpcml.{name}": encode(getattr(record, name)) for name in fields}
        about |= {f"hpcml.fact.{key}": value for key, value in record.facts.items()}
        for space, measured in (("usage", record.usage), ("work", record.work)):
            about |= {f"hpcml.{space}.{key}": value for key, value in (encode(measured) or {}).items()}
        about["mlflow.source.git.commit"] = record.git_commit
        about["mlflow.note.content"] = "\n\n".join(f"{note.author}: {note.text}" for note in record.notes) or None
        about |= {f"{_TAG}{tag}": "true" for tag in record.tags}
        keys = _Keys()
        tags = {
            keys.name(key): _cut(value if isinstance(value, str) else json.dumps(json_ready(value)), _LONGEST_TAG)
            for key, value in about.items()
            if value is not None
        }
        news = [RunTag(key, value) for key, value in tags.items() if known.get(key) != value]
        for start in range(0, len(news), _BATCH_PARAMS):
            self._client.log_batch(run_id, tags=news[start : start + _BATCH_PARAMS])
        for key in known:
            if key.startswith(_TAG) and key not in tags:
                self._client.delete_tag(run_id, key)
        told.remarks += [f"MLflow calls {key!r} {name!r}" for key, name in keys.renamed.items()]

    def _artifacts(self, run: WholeRun, run_id: str, artifacts: Sequence[tuple[Path, str]]) -> None:
        run_dir = RunDir(Path(run.record.path))
        if run_dir.manifest.is_file():
            asked = json.dumps(masked_json(read_raw(run_dir.manifest)), indent=2)
            self._client.log_text(run_id, f"{asked}\n", f"{_FOLDER}/{run_dir.manifest.name}")
        for path in (run_dir.git_diff, run_dir.image_record):
            if path.is_file():
                self._client.log_artifact(run_id, str(path), _FOLDER)
        environment = {"facts": dict(run.record.facts), "packages": _provenance(run).get("packages") or {}}
        self._client.log_dict(run_id, json_ready(environment), f"{_FOLDER}/environment.json")
        for path, folder in artifacts:
            self._client.log_artifact(run_id, str(path), None if folder == "." else folder)

    def _status(self, run: WholeRun, run_id: str) -> None:
        record = run.record
        status = STATUS.get(record.state, "FAILED")
        if not record.state.is_final:
            self._client.update_run(run_id, status=status)
            return
        last_s = max((point.t_s for points in run.curves.values() for point in points), default=0.0)
        ended_ms = run.unix_ms(last_s) if record.t_end is None else round(record.t_end * 1000)
        self._client.set_terminated(run_id, status=status, end_time=ended_ms)

    def _known_runs(self, experiment: str) -> dict[str, Any]:
        """Return the runs of an experiment that hpcml exported to MLflow, by uid; the experiment is made if needed."""
        if experiment not in self._experiments:
            self._experiments[experiment] = self._experiment_id(experiment)
        experiment_id = self._experiments[experiment]
        if experiment_id not in self._runs:
            mend(self._uri, experiment_id, UID)
            self._runs[experiment_id] = {run.data.tags[UID]: run for run in self._every_run(experiment_id)}
        return self._runs[experiment_id]

    def _experiment_id(self, name: str) -> str:
        """Return the id of the experiment, which is created where there is none; a deleted one raises `ConfigError`."""
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - an extra

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=_beside_database(self._uri, name)))
            except MlflowException:  # another export was faster
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise ConfigError(f"experiment {name} was deleted in MLflow: restore it there, or delete it for good")
        return str(found.experiment_id)

    def _every_run(self, experiment_id: str) -> Iterator[Any]:
        from mlflow.entities import ViewType  # noqa: PLC0415 - an extra

        token: str | None = None
        while True:
            page = self._client.search_runs(
                [experiment_id],
                f'tags."{UID}" LIKE "%"',
                run_view_type=ViewType.ALL,
                max_results=_BATCH,
                page_token=token,
            )
            yield from page
            token = page.token
            if not token:
                return

    def _one_line(self) -> AbstractContextManager[None]:
        """Return a context manager that turns an error of MLflow into an `HpcmlError` of one line."""
        folder = folder_of(self._uri)
        database = None if folder is None else f"sqlite:///{folder.absolute() / 'mlflow.db'}"
        return one_line(self._uri, instead=f"; or write -o {database}")


class _Keys:
    """Names as MLflow takes them; two that would become one stay two. `renamed` has those that were changed."""

    def __init__(self) -> None:
        self.renamed: dict[str, str] = {}

    def name(self, key: str) -> str:
        """Return *key*, or what it is called where MLflow does not take it: cleaned, with 8 hex digits of its hash."""
        safe = _UNSAFE.sub("_", key)
        parts = safe.split("/")
        is_path = all(part not in ("", ".", "..") and part == part.strip() for part in parts)
        if safe == key and is_path and len(key) <= _LONGEST_KEY:
            return key
        digest = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:8]
        stem = "/".join(part for part in parts if part.strip(". "))[: _LONGEST_KEY - len(digest) - 1].strip("/ ")
        self.renamed[key[:80]] = name = f"{stem}-{digest}"
        return name


def _stamp(run: WholeRun, artifacts: Sequence[tuple[Path, str]]) -> str:
    """Return 16 hex digits that change whenever there is something new to export."""
    record = run.record
    known = [
        encode(record),
        {name: [len(points), points[-1].step, points[-1].t_s] for name, points in run.curves.items() if points},
        sorted(f"{folder}/{path.name}" for path, folder in artifacts),
    ]
    return hashlib.sha256(json.dumps(json_ready(known), sort_keys=True).encode()).hexdigest()[:16]


def _provenance(run: WholeRun) -> dict[str, Any]:
    try:
        found = read_raw(RunDir(Path(run.record.path)).manifest).get("provenance")
    except HpcmlError:
        return {}  # its directory is gone; what the store knows of it is still told
    return found if isinstance(found, dict) else {}


def _cut(text: str, longest: int) -> str:
    plain = clean(text)
    return plain if len(plain) <= longest else f"{plain[: longest - 3]}..."


def _beside_database(uri: str, experiment: str) -> str | None:
    """Return where the artifacts of an experiment go that a file of SQLite knows; else MLflow or its server decides.

    MLflow itself would put them below whatever folder one happens to be in.
    """
    scheme, _, path = uri.partition(":///")
    if not (scheme == "sqlite" or scheme.startswith("sqlite+")) or not path:
        return None
    folder = Path(path.partition("?")[0]).absolute().parent / "mlartifacts"
    return (folder / file_name(experiment, set())).as_uri()


_PATIENCE_S = 5.0  # after which whoever was writing a description of some lines is dead


def mend(uri: str, experiment_id: str, tag: str) -> None:
    """Remove leftovers of runs whose meta.yaml is empty, since MLflow refuses a whole experiment because of one.

    Such a file is left where a process died while MLflow was writing to its folder of files. Only runs are removed that
    have *tag*, which their exporter will create again, or nothing at all; any other raises `HpcmlError`. A tracking
    server or a database writes whole or not at all: nothing is done there.
    """
    folder = folder_of(uri)
    if folder is None:
        return
    for description in sorted((folder / experiment_id).glob("*/meta.yaml")):
        if not _stays_empty(description):
            continue
        run = description.parent
        if not (run / "tags" / tag).is_file() and any(path.is_file() for path in run.rglob("*") if path != description):
            raise HpcmlError(f"MLflow's run {run} has an empty meta.yaml, and is not hpcml's: remove it or restore it")
        shutil.rmtree(run)


def _stays_empty(path: Path) -> bool:
    """Tell whether the file *path* is empty and was not written to for `_PATIENCE_S`; wait for that long at most."""
    try:
        while (found := path.stat()).st_size == 0:
            if time.time() - found.st_mtime > _PATIENCE_S:
                return True
            time.sleep(0.1)
    except FileNotFoundError:
        pass  # removed meanwhile
    return False
