"""Makes runs of MLflow ours: of each a run.json and a journal, for `hpcml import`.

`as_ours` makes them, `journal_text` gives the journal's text. Settings keep their names (``learning_rate``); *names*
maps those that hpcml knows under another name. What has no place in hpcml is kept in the journal's event ``imported``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hpcml.codec import Json, flatten
from hpcml.errors import ConfigError
from hpcml.interop.mlflow_export import STATUS as _STATUS_OF
from hpcml.interop.mlflow_export import UID
from hpcml.interop.mlflow_run import Logged, MlflowRun, moment
from hpcml.model.identity import identifies
from hpcml.model.precision import ALIASES
from hpcml.model.records import is_tag
from hpcml.model.state import State
from hpcml.runs.journal import FORMAT, Event, Metrics
from hpcml.runs.run_json import IMPORTED
from hpcml.runs.state import EventName

_GROUPS = ("model", "data", "precision", "strategy", "layout", "container", "cluster")
_NESTED = ("model", "precision", "cluster")  # what every run.json has as objects
_RESERVED = ("experiment", "name", "tags", "cluster.scheduler")  # say something else in a run.json
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")
_SAFE_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})", re.ASCII)
# Has a point or an exponent: a text of more digits than `_INTEGER`, or of zeros and digits, is a code, not a number
_REAL = re.compile(r"-?((0|[1-9]\d*)(\.\d*|(?=e))|\.\d+)(e[-+]?\d{1,3})?", re.IGNORECASE | re.ASCII)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The contents of the run directory of an imported run; `hpcml import` writes them."""

    uid: str
    experiment: str
    manifest: Json
    t0: float  # unix seconds
    records: Sequence[Metrics | Event]  # of one journal, whose times count from t0
    remarks: Sequence[str]  # what is not here as it was there


def as_ours(run: MlflowRun, names: Mapping[str, str], *, artifacts: Sequence[Event] = ()) -> Imported:
    """Return *run* as hpcml would have recorded it; *names* maps MLflow's parameter names to settings of hpcml.

    *artifacts* are events that name the copied artifacts; they are in the journal, too. A run that hpcml exported
    keeps its uid; any other gets one of its start and MLflow's run id, so that it is found again at the next import.
    What cannot be taken over as it was is told in the remarks.
    """
    remarks: list[str] = []
    own_uid = run.tags.get(UID, "")
    logged_ms = [at.at_ms for of in run.metrics.values() for at in of if moment(at.at_ms) is not None]
    started_ms = run.started_ms or min(logged_ms, default=0)
    started = datetime.fromtimestamp(started_ms / 1000, UTC)
    uid = own_uid if _SAFE_UID.fullmatch(own_uid) else f"{started:%Y%m%d-%H%M%S}-{run.run_id}"
    experiment = safe_experiment(run.experiment)
    if experiment != run.experiment:
        remarks.append(f"experiment {run.experiment!r} is called {experiment} here")
    settings = _settings(run, names, remarks)
    name = None if is_ours(run) and run.name == own_uid else run.name  # what a run without one is called there
    asked = {**settings, "experiment": experiment, "name": name, "tags": list(_tags(run, remarks))}
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
    """Tell whether *run* was exported to MLflow by hpcml."""
    return UID in run.tags


def safe_experiment(name: str) -> str:
    """Return *name* as a folder name; different names stay different.

    A name that must be changed gets six hex digits of its hash: ``my experiment`` becomes ``my_experiment-`` and these.
    """
    safe = _UNSAFE.sub("_", name).lstrip("._+-")[:64]
    if safe == name:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:6]
    return f"{safe[:57].rstrip('_') or 'experiment'}-{digest}"


def parse_names(words: Sequence[str]) -> dict[str, str]:
    """Return ``{"lr": "training.learning_rate"}`` for ``lr=training.learning_rate``.

    Raises `ConfigError` for another form, and for a name of hpcml that is no setting (``experiment``, ``tags``).
    """
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
    """Return the settings for run.json; a parameter whose name means something else here is kept as ``params.NAME``.

    Seed 0 and precision "unknown" stand for what was not logged, with a remark.
    """
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
    """Return the value that Python or JSON wrote as *text*; what is no number, boolean or None stays text.

    >>> typed("0.001"), typed("True"), typed("resnet50"), typed("007")
    (0.001, True, 'resnet50', '007')
    """
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
            if is_tag(tag):
                yield tag
            else:
                remarks.append(f"tag {key} is too long for a tag, or not printable: kept in the journal only")


def _records(run: MlflowRun, t0: float, artifacts: Sequence[Event], remarks: list[str]) -> Iterator[Metrics | Event]:
    """Yield the records of the journal: start, what was imported, facts, metrics in order of time, and the end."""
    number = 0

    def event(name: str, at_ms: float | None, /, **details: Any) -> Event:  # noqa: ANN401 - JSON
        nonlocal number
        number += 1
        t_s = 0.0 if at_ms is None else at_ms / 1000 - t0
        return Event(seq=number - 1, t_s=t_s, name=name, details={k: v for k, v in details.items() if v is not None})

    yield event(EventName.ATTEMPT_STARTED, None)
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
    points = _points(run, round(t0 * 1000), remarks)
    for (step, at_ms), values in sorted(points.items(), key=lambda point: (point[0][1], point[0][0])):
        yield Metrics(seq=number, t_s=at_ms / 1000 - t0, step=step, values=values)
        number += 1
    last_ms = run.ended_ms or max((at_ms for _, at_ms in points), default=None)
    if (end := _own_end(run)) is not None:
        yield event(EventName.LOST if end["state"] == State.LOST else EventName.ATTEMPT_ENDED, last_ms, **end)
    elif run.status in _STATES:
        has_times = run.ended_ms is not None and run.started_ms is not None
        wall_s = (run.ended_ms - run.started_ms) / 1000 if has_times else None  # type: ignore[operator] # checked
        reason = None if run.status == "FINISHED" else f"MLflow says {run.status}"
        yield event(EventName.ATTEMPT_ENDED, last_ms, state=_STATES[run.status], wall_s=wall_s, reason=reason)
    else:
        yield event(EventName.LOST, last_ms, reason=f"MLflow knows no end of it and says {run.status}")


def _own_end(run: MlflowRun) -> dict[str, Any] | None:
    """Return how a run of hpcml ended, as its export says: MLflow has three words for ends, and times of its own.

    None for other runs, and where MLflow's status says something else, which is the later word then.
    """
    state = run.tags.get("hpcml.state")
    if not is_ours(run) or state not in set(State) or not State(state).is_final:
        return None
    if _STATUS_OF.get(State(state), "FAILED") != run.status:
        return None
    wall_s, exit_code = (typed(run.tags.get(f"hpcml.{name}", "")) for name in ("wall_s", "exit_code"))
    return {
        "state": state,
        "wall_s": wall_s if type(wall_s) in (int, float) else None,
        "exit_code": exit_code if type(exit_code) is int else None,
        "cause": run.tags.get("hpcml.cause"),
        "reason": run.tags.get("hpcml.reason"),
    }


def _points(run: MlflowRun, started_ms: int, remarks: list[str]) -> dict[tuple[int, int], dict[str, float]]:
    """Return the values by step and time. A metric that was logged without steps is numbered in order of time.

    A time that can be none, as 0 or nanoseconds, is that of the start.
    """
    points: dict[tuple[int, int], dict[str, float]] = {}
    for name, logged in run.metrics.items():
        steps = Counter(at.step for at in logged)
        if set(steps) == {0} and len(logged) > 1:
            remarks.append(f"metric {name} was logged without steps: they are numbered by time")
            in_order = sorted(logged, key=lambda at: at.at_ms)
            logged = [Logged(at_ms=at.at_ms, value=at.value, step=step) for step, at in enumerate(in_order)]  # noqa: PLW2901
        elif any(count > 1 for count in steps.values()):
            remarks.append(f"metric {name} has steps more than once: the latest value of each counts")
        if any(moment(at.at_ms) is None for at in logged):
            remarks.append(f"metric {name} has times that are none: those of the run's start stand for them")
        for at in logged:
            if -(2**63) <= at.step < 2**63:
                points.setdefault((at.step, moment(at.at_ms) or started_ms), {})[name] = at.value
    return points


def _spec_hash(asked: Mapping[str, Any]) -> str:
    """Return the hash of the settings, made as for hpcml's own runs: equal settings have equal hashes."""
    relevant = {key: value for key, value in flatten(dict(asked)).items() if identifies(key)}
    canonical = json.dumps(relevant, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


_MS = 1000


def journal_text(run: Imported) -> str:
    """Return the journal of *run*: the same for the same records, and under another id for others.

    Values that are not finite are written as texts, times with six decimals.
    """
    lines = []
    for seq, record in enumerate(run.records):
        begun = {"s": seq, "t": round(record.t_s, 6)}
        if isinstance(record, Metrics):
            values = {name: value if math.isfinite(value) else repr(value) for name, value in record.values.items()}
            lines.append(_line({**begun, "k": "m", "i": record.step, "v": values}))
        else:
            lines.append(_line({**begun, "k": "e", "n": record.name, "d": record.details}))
    journal = hashlib.sha256("".join(lines).encode()).hexdigest()[:32]
    first = {"hpcml": FORMAT, "journal": journal, "run": run.uid, "attempt": 0, "writer": "agent"}
    return "".join([_line({**first, "host": "mlflow", "pid": 1, "t0": run.t0}), *lines])


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"
