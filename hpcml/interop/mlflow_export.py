"""Exports runs to MLflow, as often as one likes: what is there already stays, and what is new is added.

`MlflowTarget` is what `hpcml export` uses for the format mlflow. A run is found again by its tag ``hpcml.uid``, which
it gets in the call that creates it. MLflow never takes a value of a metric back, so a step that a later attempt did
again is there twice; its times tell which is the later one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcml.codec import encode
from hpcml.errors import ConfigError, HpcmlError
from hpcml.interop.exported import WholeRun, clean, json_ready
from hpcml.interop.mlflow_client import all_pages, client_of, folder_of, one_line
from hpcml.interop.output import file_name
from hpcml.model.secrets import masked_json
from hpcml.model.state import State
from hpcml.runs.files import read_raw
from hpcml.runs.layout import RunDir

UID = "hpcml.uid"
_DONE = "hpcml.exported"  # what was exported, in one word: where it is still that, nothing is looked at
_TAG = "hpcml.tag."  # and the tag: so that one can be taken back
_FOLDER = "hpcml"  # of the artifacts
_AT_ONCE = {"params": 100, "tags": 100, "metrics": 1000}  # that MLflow takes in one call (mlflow.utils.validation)
_LONGEST_KEY, _LONGEST_PARAM, _LONGEST_TAG = 250, 6000, 5000
_UNSAFE = re.compile(r"[^A-Za-z0-9_\-. :/]")
_FIELDS = (
    *("state", "cause", "reason", "incomplete", "exit_code", "attempt", "wall_s", "spec_hash", "submission", "path"),
    *("scheduler", "job_id", "precision", "precision_effective", "numerics", "git_dirty"),
)
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

    def name(self, key: str) -> str:
        """Return *key*, or what it is called where MLflow does not take it: cleaned, with 8 hex digits of its hash."""
        safe = _UNSAFE.sub("_", key)
        parts = safe.split("/")
        is_path = all(part not in ("", ".", "..") and part == part.strip() for part in parts)
        if safe == key and is_path and len(key) <= _LONGEST_KEY:
            return key
        digest = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:8]
        stem = "/".join(part for part in parts if part.strip(". "))[: _LONGEST_KEY - len(digest) - 1].strip("/ ")
        self.remarks.append(f"MLflow calls {key[:80]!r} {f'{stem}-{digest}'!r}")
        return f"{stem}-{digest}"


class MlflowTarget:
    """A tracking server of MLflow, or a folder or database in its place.

    *uri* is as MLflow takes it: ``http://host:5000``, ``sqlite:///mlflow.db``, or a folder. What MLflow knows of an
    experiment is asked once and remembered. Every failure of MLflow, or of a library below it, is raised as an
    `HpcmlError` of one line, without passwords. Raises `ConfigError` where mlflow is missing.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._runs: dict[str, dict[str, Any]] = {}  # experiment -> uid -> run
        self._experiments: dict[str, str] = {}
        with self._one_line():
            self._client = client_of(uri)

    def put(self, run: WholeRun, report: MlflowReport, *, artifacts: Sequence[tuple[Path, str]]) -> None:
        """Bring MLflow's copy of *run* up to date; each of *artifacts* is a file and the folder for it in MLflow.

        The folder ``.`` is the top one. What was done is counted in *report*. A run that was deleted in MLflow is left
        out, with a remark; an experiment that was deleted there raises `ConfigError`. If this process is killed
        meanwhile, the next export does what is missing.
        """
        with self._one_line():
            record = run.record
            theirs = self._known_runs(record.experiment).get(record.uid)
            if theirs is not None and theirs.info.lifecycle_stage != "active":
                report.remarks.append(f"run {record.uid} was deleted in MLflow: left out")
                return
            stamp = _stamp(run, artifacts)
            if theirs is not None and theirs.data.tags.get(_DONE) == stamp:
                report.unchanged += 1
                return
            if theirs is None:
                theirs = self._create(run)
                report.created += 1
            else:
                report.updated += 1
            run_id = str(theirs.info.run_id)
            self._params(run, run_id, theirs.data.params, report)
            self._metrics(run, run_id, theirs.data.metrics, report)
            self._tags(run, run_id, theirs.data.tags, report)
            self._artifacts(run, run_id, artifacts)
            self._status(run, run_id)
            self._client.set_tag(run_id, _DONE, stamp)  # last: whoever is killed before has not finished

    def _create(self, run: WholeRun) -> Any:  # noqa: ANN401 - of a library without types
        record, provenance = run.record, _provenance(run)
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

    def _send(self, run_id: str, kind: str, entities: Sequence[Any]) -> None:
        """Send params, tags or metrics, as many at once as MLflow takes."""
        for start in range(0, len(entities), _AT_ONCE[kind]):
            self._client.log_batch(run_id, **{kind: entities[start : start + _AT_ONCE[kind]]})

    def _params(self, run: WholeRun, run_id: str, known: Mapping[str, str], report: MlflowReport) -> None:
        """Send the settings that MLflow does not have yet; it never changes one, which is told as a remark."""
        from mlflow.entities import Param  # noqa: PLC0415 - an extra

        uid, cut, params = run.record.uid, [], []
        for key, value in run.record.params.items():
            text, name = _text(value), report.name(key)
            shown = _cut(text, _LONGEST_PARAM)
            cut += [key] if shown != clean(text) else []
            if name not in known:
                params.append(Param(name, shown))
            elif known[name] != shown:
                report.remarks.append(f"run {uid}: MLflow keeps {name}={known[name]}")
        self._send(run_id, "params", params)
        if cut:
            report.remarks.append(f"run {uid}: cut after {_LONGEST_PARAM} characters: {', '.join(cut)}")

    def _metrics(self, run: WholeRun, run_id: str, known: Mapping[str, float], report: MlflowReport) -> None:
        """Send the values that MLflow does not have yet, found by metric, step and time in ms."""
        from mlflow.entities import Metric  # noqa: PLC0415 - an extra

        for metric, points in run.curves.items():
            name = report.name(metric)
            history = self._client.get_metric_history(run_id, name) if name in known else ()
            there = {(at.step, at.timestamp) for at in history}
            values = [Metric(name, point.value, run.unix_ms(point.t_s), point.step) for point in points]
            news = [value for value in values if (value.step, value.timestamp) not in there]
            self._send(run_id, "metrics", news)
            report.points += len(news)

    def _tags(self, run: WholeRun, run_id: str, known: Mapping[str, str], report: MlflowReport) -> None:
        """Send what has changed of the outcome, facts, usage, notes and tags.

        Tags that were removed from the run are removed in MLflow.
        """
        from mlflow.entities import RunTag  # noqa: PLC0415 - an extra

        record = run.record
        about: dict[str, object] = {f"hpcml.{name}": encode(getattr(record, name)) for name in _FIELDS}
        about |= {f"hpcml.fact.{key}": value for key, value in record.facts.items()}
        for space, measured in (("usage", record.usage), ("work", record.work)):
            about |= {f"hpcml.{space}.{key}": value for key, value in (encode(measured) or {}).items()}
        about["mlflow.source.git.commit"] = record.git_commit
        about["mlflow.note.content"] = "\n\n".join(f"{note.author}: {note.text}" for note in record.notes) or None
        about |= {f"{_TAG}{tag}": "true" for tag in record.tags}
        tags = {report.name(key): _cut(_text(value), _LONGEST_TAG) for key, value in about.items() if value is not None}
        self._send(run_id, "tags", [RunTag(key, value) for key, value in tags.items() if known.get(key) != value])
        for key in known:
            if key.startswith(_TAG) and key not in tags:
                self._client.delete_tag(run_id, key)

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
        from mlflow.entities import ViewType  # noqa: PLC0415 - an extra

        if experiment not in self._runs:
            found = self._client.get_experiment_by_name(experiment)
            if found is None:
                place = _beside_database(self._uri, experiment)
                found = self._client.get_experiment(self._client.create_experiment(experiment, artifact_location=place))
            if found.lifecycle_stage != "active":
                raise ConfigError(
                    f"experiment {experiment} was deleted in MLflow: restore it there, or delete it for good"
                )
            self._experiments[experiment] = experiment_id = str(found.experiment_id)

            def page(**more: object) -> Any:  # noqa: ANN401 - MLflow's
                ours = f'tags."{UID}" LIKE "%"'
                return self._client.search_runs([experiment_id], ours, run_view_type=ViewType.ALL, **more)

            self._runs[experiment] = {run.data.tags[UID]: run for run in all_pages(page)}
        return self._runs[experiment]

    def _one_line(self) -> AbstractContextManager[None]:
        """Return a context manager that turns an error of MLflow into an `HpcmlError` of one line."""
        folder = folder_of(self._uri)
        database = None if folder is None else f"sqlite:///{folder.absolute() / 'mlflow.db'}"
        return one_line(self._uri, instead=f"; or write -o {database}")


def _stamp(run: WholeRun, artifacts: Sequence[tuple[Path, str]]) -> str:
    """Return 16 hex digits that change whenever there is something new to export."""
    known = [
        encode(run.record),
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


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(json_ready(value))


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
