"""A run of MLflow as one of ours: the run.json and the journal that say the same. Pure.

Settings keep their names, so that ``learning_rate`` stays that; a few are known to hpcml under their own, and *names*
says which of MLflow's mean which of ours. What has no place here is kept, whole, in the journal's event ``imported``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hpcml.codec import Json, flatten
from hpcml.errors import ConfigError
from hpcml.interop.mlflow_runs import UID
from hpcml.interop.mlruns import Logged, MlflowRun
from hpcml.journal import Event, Metrics
from hpcml.manifest import IMPORTED
from hpcml.precision import ALIASES
from hpcml.spec import identifies

_GROUPS = ("model", "data", "precision", "strategy", "layout", "container", "cluster")
_NESTED = ("model", "precision", "cluster")  # what every run.json has as objects
_RESERVED = ("experiment", "name", "tags", "cluster.scheduler")  # say something else in a run.json
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")
_SAFE_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_REAL = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[-+]?\d{1,3})?", re.IGNORECASE)
_WORDS: Mapping[str, bool | None] = {
    "True": True,
    "False": False,
    "None": None,
    "true": True,
    "false": False,
    "null": None,
}
_STATES = {"FINISHED": "COMPLETED", "FAILED": "FAILED", "KILLED": "CANCELLED"}
_OF_TAG = "hpcml.tag."
_LONGEST_TAG = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a run directory of an imported run holds."""

    uid: str
    experiment: str
    manifest: Json
    t0: float  # unix seconds
    records: Sequence[Metrics | Event]  # of one journal, whose times count from t0
    remarks: Sequence[str]  # what is not here as it was there


def as_ours(run: MlflowRun, names: Mapping[str, str], *, artifacts: Sequence[Event] = ()) -> Imported:
    """Return *run* as hpcml writes it; *names* maps MLflow's names of settings to ours."""
    remarks: list[str] = []
    own_uid = run.tags.get(UID, "")
    started_ms = run.started_ms or min((at.at_ms for of in run.metrics.values() for at in of), default=0)
    started = datetime.fromtimestamp(started_ms / 1000, UTC)
    uid = own_uid if _SAFE_UID.fullmatch(own_uid) else f"{started:%Y%m%d-%H%M%S}-{run.run_id}"
    experiment = safe_experiment(run.experiment)
    if experiment != run.experiment:
        remarks.append(f"experiment {run.experiment!r} is called {experiment} here")
    settings = _settings(run, names, remarks)
    asked = {**settings, "experiment": experiment, "name": run.name, "tags": list(_tags(run, remarks))}
    manifest = {
        "format": IMPORTED,
        "uid": uid,
        "spec_hash": _spec_hash(asked),
        "run": asked,
        "plan": {"numerics": "unproven"},
        "provenance": {
            "command_line": [run.tags["mlflow.source.name"]] if "mlflow.source.name" in run.tags else [],
            "submitted_at": started.isoformat(timespec="milliseconds"),
            "submitted_from": "mlflow",
            "user": run.user or "unknown",
            "git_commit": run.tags.get("mlflow.source.git.commit"),
        },
    }
    t0 = started_ms / 1000
    records = list(_records(run, t0, artifacts, remarks))
    return Imported(uid=uid, experiment=experiment, manifest=manifest, t0=t0, records=records, remarks=remarks)


def is_ours(run: MlflowRun) -> bool:
    """Whether hpcml itself exported *run* to MLflow."""
    return UID in run.tags


def safe_experiment(name: str) -> str:
    """Return *name* as a folder may be called; two names that would become one stay two."""
    safe = _UNSAFE.sub("_", name).lstrip("._+-")[:64]
    if safe == name:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:6]
    return f"{safe[:57].rstrip('_') or 'experiment'}-{digest}"


def parse_names(words: Sequence[str]) -> dict[str, str]:
    """Return ``{"lr": "training.learning_rate"}`` for ``lr=training.learning_rate``."""
    names: dict[str, str] = {}
    for word in words:
        theirs, separator, ours = word.partition("=")
        if not (separator and theirs and ours):
            raise ConfigError(f"--map {word}: write it as THEIRS=OURS, e.g. lr=training.learning_rate")
        if ours in _RESERVED:
            raise ConfigError(f"--map {word}: {ours} is no setting that can be imported")
        names[theirs] = ours
    return names


def _settings(run: MlflowRun, names: Mapping[str, str], remarks: list[str]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, text in run.params.items():
        wanted = names.get(key, key)
        name, value = f"{wanted}.name" if wanted in _GROUPS else wanted, typed(text)
        if name == "precision.name":
            value = ALIASES[text.casefold()].name if text.casefold() in ALIASES else text
        is_no_seed = name == "seed" and not (type(value) is int and 0 <= value < 2**32)
        if is_no_seed or name in _RESERVED or name in flat:
            if not is_ours(run):  # its own words, of which it has the rest as tags
                remarks.append(f"parameter {key} is kept as params.{key}: {name} means something else here")
            name = f"params.{key}"
        flat[name] = value
    if "seed" not in flat:
        remarks.append("no seed was logged: 0 stands for it")
    if "precision.name" not in flat:
        remarks.append("no precision was logged: it is called unknown")
    flat = {"seed": 0, "precision.name": "unknown", "cluster.name": IMPORTED, "model.recipe": None, **flat}
    flat["cluster.scheduler"] = IMPORTED
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        group, _, word = key.partition(".")
        if group in _NESTED and word:
            nested.setdefault(group, {})[word] = value
        else:
            nested[key] = value
    return nested


def typed(text: str) -> str | int | float | bool | None:
    """Return what Python, or JSON, wrote as *text*; what is not surely something else stays text."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _REAL.fullmatch(text):
        return float(text) if abs(float(text)) < 1e308 else text
    return text


def _tags(run: MlflowRun, remarks: list[str]) -> Iterator[str]:
    for key, value in run.tags.items():
        if key.startswith(_OF_TAG):
            yield key.removeprefix(_OF_TAG)
        elif not key.startswith(("mlflow.", "hpcml.")):
            tag = key if value in ("", "true", "True") else f"{key}={value}"
            if len(tag) <= _LONGEST_TAG and tag.isprintable():
                yield tag
            else:
                remarks.append(f"tag {key} is too long for a tag: kept in the journal only")


def _records(run: MlflowRun, t0: float, artifacts: Sequence[Event], remarks: list[str]) -> Iterator[Metrics | Event]:
    number = 0

    def event(name: str, at_ms: float | None, /, **details: Any) -> Event:  # noqa: ANN401 - JSON
        nonlocal number
        number += 1
        t_s = 0.0 if at_ms is None else at_ms / 1000 - t0
        return Event(seq=number - 1, t_s=t_s, name=name, details={k: v for k, v in details.items() if v is not None})

    yield event("attempt_started", None)
    yield event(
        "imported",
        None,
        source="mlflow",
        run_id=run.run_id,
        experiment=run.experiment,
        experiment_id=run.experiment_id,
        artifact_uri=run.artifact_uri,
        params=dict(run.params),
        tags=dict(run.tags),
    )
    yield event("facts", None, imported_from="mlflow", mlflow_run_id=run.run_id)
    if note := run.tags.get("mlflow.note.content"):
        yield event("noted", None, text=note, author=run.user)
    for artifact in artifacts:
        yield event(artifact.name, None, **artifact.details)
    if run.bad_lines:
        remarks.append("lines of metrics that cannot be read were left out")
    points = _points(run, remarks)
    for (step, at_ms), values in sorted(points.items(), key=lambda point: (point[0][1], point[0][0])):
        yield Metrics(seq=number, t_s=at_ms / 1000 - t0, step=step, values=values)
        number += 1
    last_ms = run.ended_ms or max((at_ms for _, at_ms in points), default=None)
    if run.status in _STATES:
        has_times = run.ended_ms is not None and run.started_ms is not None
        wall_s = (run.ended_ms - run.started_ms) / 1000 if has_times else None  # type: ignore[operator] # checked
        reason = None if run.status == "FINISHED" else f"MLflow says {run.status}"
        yield event("attempt_ended", last_ms, state=_STATES[run.status], wall_s=wall_s, reason=reason)
    else:
        yield event("lost", last_ms, reason=f"MLflow knows no end of it and says {run.status}")


def _points(run: MlflowRun, remarks: list[str]) -> dict[tuple[int, int], dict[str, float]]:
    """Return the values by step and time. A metric that was logged without steps is numbered in order of time."""
    points: dict[tuple[int, int], dict[str, float]] = {}
    for name, logged in run.metrics.items():
        steps = Counter(at.step for at in logged)
        if set(steps) == {0} and len(logged) > 1:
            remarks.append(f"metric {name} was logged without steps: they are numbered by time")
            in_order = sorted(logged, key=lambda at: at.at_ms)
            logged = [Logged(at_ms=at.at_ms, value=at.value, step=step) for step, at in enumerate(in_order)]  # noqa: PLW2901
        elif any(count > 1 for count in steps.values()):
            remarks.append(f"metric {name} has steps more than once: the latest value of each counts")
        for at in logged:
            if -(2**63) <= at.step < 2**63:
                points.setdefault((at.step, at.at_ms), {})[name] = at.value
    return points


def _spec_hash(asked: Mapping[str, Any]) -> str:
    relevant = {key: value for key, value in flatten(dict(asked)).items() if identifies(key)}
    canonical = json.dumps(relevant, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
