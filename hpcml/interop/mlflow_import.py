"""Reads runs by MLflow's own client and makes them ours: of each a run.json and a journal, for `hpcml import`.

`runs_in` reads them, `as_ours` makes them, `journal_text` gives the journal's text. Settings keep their names
(``learning_rate``); *names* maps those that hpcml knows under another name. What has no place in hpcml is kept in the
journal's event ``imported``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hpcml.codec import Json, flatten
from hpcml.errors import ConfigError, HpcmlError
from hpcml.interop.mlflow_client import all_pages, client_of, folder_of, one_line
from hpcml.interop.mlflow_export import STATUS as _STATUS_OF
from hpcml.interop.mlflow_export import UID
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

    try:
        with one_line(source):
            runs = list(all_pages(page))
    except _BAD as error:
        yield Unreadable(why=f"{source}: experiment {experiment.name}: {' '.join(str(error).split())}")
        return
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
