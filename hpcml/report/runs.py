"""`hpcml runs`: runs as a table, and flat for programs; also short texts about one run that other answers use."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcml.codec import Json, encode
from hpcml.model.choices import Numerics
from hpcml.model.divergence import divergence_words
from hpcml.model.metric_goal import shown_metric
from hpcml.model.precision import contradicts
from hpcml.model.record_keys import MEASURED, begun_at, value_of
from hpcml.model.records import RunRecord, spell_job
from hpcml.model.state import State
from hpcml.report.document import Column, Document, Listing, Section, Tone
from hpcml.report.render.data import json_ready
from hpcml.report.text import duration, number, safe


def short_uid(uid: str) -> str:
    """Return the part of *uid* that people type: what follows its date and time.

    >>> short_uid("20261122-181500-a1b2c3")
    'a1b2c3'
    """
    return uid.rpartition("-")[2]


def title(run: RunRecord) -> str:
    """Return the run's name, else its model's, else ""."""
    return run.name or str(run.params.get("model.name") or "")


def name_heading(runs: Iterable[RunRecord]) -> str:
    """Return what the names of a table of *runs* are, as ``--where`` calls it: models where none has a name."""
    return "name" if any(run.name for run in runs) else "model"


def name_words(run: RunRecord, heading: str) -> str:
    """Return the run's name, or its model, as the *heading* of `name_heading` says."""
    return str((run.name if heading == "name" else run.params.get("model.name")) or "")


def tags_line(run: RunRecord) -> str:
    """Return one line with the uid and the tags of the run."""
    return safe(f"{run.uid}  {', '.join(run.tags) or 'no tags'}")


def notes_line(run: RunRecord) -> str:
    """Return one line with the uid and the number of notes of the run."""
    return f"{run.uid}  {len(run.notes)} note{'s' if len(run.notes) != 1 else ''}"


def precision_words(run: RunRecord) -> str:
    """Return the precision asked for; also the measured one and the numerics, where they differ from that.

    For example ``tf32``, ``tf32 -> fp32``, ``bf16 (emulated)``, or ``own: fp32`` where nothing was asked for.
    """
    sign = " -> " if contradicts(run.precision, run.precision_effective) else ": "
    differs = run.precision_effective not in (None, run.precision)
    measured = f"{sign}{run.precision_effective}" if differs else ""
    return f"{run.precision}{measured}{'' if is_native(run) else f' ({run.numerics})'}"


def objective_of(run: RunRecord) -> str:
    """Return the metric by which the run is judged, "" where it has none."""
    return str(run.params.get("objective.metric") or "")


def key_metric(run: RunRecord, metric: str | None) -> tuple[str, float | None]:
    """Return name and last value of *metric*, by default the run's objective; nan where the value is not finite.

    The value is None where the run has no such metric, the name "" where it has no objective either.
    """
    name = metric or objective_of(run)
    summary = run.metrics.get(name)
    return name, None if summary is None else summary.last_or_nan


def metric_beside_objectives(runs: Sequence[RunRecord]) -> str | None:
    """Return a metric to show of *runs* none of which reported its objective; None where one did, and without any."""
    if any(objective_of(run) in run.metrics for run in runs):
        return None
    return shown_metric(None, {name for run in runs for name in run.metrics})


def metric_words(value: float | None) -> str:
    """Return the last value of a metric as text, "not finite" for nan, which may stand for an infinity; "" for None."""
    return "not finite" if value is not None and math.isnan(value) else number(value)


def submitted_at(run: RunRecord) -> float | None:
    """Return when the run was submitted, else when it started, in unix seconds; None where neither is known."""
    return begun_at(run.submitted_at, run.t_start)


def is_native(run: RunRecord) -> bool:
    """Whether all arithmetic of the run was native, so that its times say something about its precision."""
    return run.numerics == Numerics.native.name


def job_words(run: RunRecord) -> str:
    """Return the id of the run's job as its scheduler writes it, and whether several runs share the job.

    For example ``slurm 4711_3``, ``pbs 4711[3].server (shared)``, ``slurm 4711 on big`` where the site has several
    clusters; "-" stands for a job that is not known yet.
    """
    job = "-" if run.job_id is None else spell_job(run.job_id, run.array_index)
    where = f" on {run.job_cluster}" if run.job_cluster else ""
    return f"{run.scheduler} {job}{where}{' (shared)' * run.is_shared}"


def keys_in(columns: str | None) -> list[str]:
    """Return the keys of a list like ``uid,state,val_accuracy``; [] for None.

    >>> keys_in("uid, state,")
    ['uid', 'state']
    """
    return [key.strip() for key in (columns or "").split(",") if key.strip()]


def rows_of(runs: Sequence[RunRecord], keys: Sequence[str], *, now: float) -> list[list[Any]]:
    """Return the values of each run under *keys*; *now* is in unix seconds, for the age. None where a run has none."""
    return [[value_of(run, key, now=now) for key in keys] for run in runs]


SHOWN_SETTINGS = ("model.name", "objective.metric")  # those that a table of runs has a use for
_NONE: Mapping[str, str] = {}
STATE_TONES: Mapping[State, Tone] = {State.COMPLETED: "good", State.RUNNING: "plain", State.PENDING: "faint"}


def state_tone(run: RunRecord) -> Tone:
    """Return the tone of a run's state: that it failed is to be seen."""
    return STATE_TONES.get(run.state, "bad")


def runs_document(
    runs: Sequence[RunRecord], *, now: float, metric: str | None = None, apart: Mapping[str, str] = _NONE
) -> Document:
    """Return a table with a line for each of *runs*, in their order; *metric* is by default each run's objective.

    *now* is in unix seconds; an age counts from submission. *apart* is by uid what tells a run from the others. CSV has
    identity, outcome, every setting and fact, last values and usage; JSON everything known, with the keys of
    `record_json`: values that are not known are null, those that are not finite are texts.
    """
    return Document(
        sections=[Section(parts=[Listing(columns=list(_columns(runs, now, metric, apart)), rows=runs)])],
        record=lambda: [record_json(run) for run in runs],
        data=[flat_runs(runs)],
    )


def _columns(
    runs: Sequence[RunRecord], now: float, metric: str | None, apart: Mapping[str, str]
) -> Iterator[Column[RunRecord]]:
    show_uid, named = uid_words(runs), name_heading(runs)
    shown = metric or metric_beside_objectives(runs)
    metrics = {key_metric(run, shown)[0] for run in runs}
    heading = metrics.pop() or "metric" if len(metrics) == 1 else "metric"

    def age(run: RunRecord) -> float | None:
        since = submitted_at(run)
        return None if since is None else max(0.0, now - since)

    def value(run: RunRecord) -> str | None:
        words = metric_words(key_metric(run, shown)[1])
        return words or (None if metric is None else "-")  # that none has what was asked for is to be seen

    yield Column("", "run", lambda run: run.uid, lambda run: show_uid(run.uid))
    yield Column("", "experiment", lambda run: run.experiment)
    yield Column("", named, lambda run: name_words(run, named))
    yield Column("", "settings", lambda run: apart.get(run.uid, ""))
    yield Column("", "precision", precision_words)
    yield Column("", "seed", lambda run: run.seed, is_number=True)
    yield Column("", "state", lambda run: run.state.value, tone=state_tone)
    yield Column("", heading, lambda run: key_metric(run, shown)[1], value, is_number=True)
    yield Column("", "cause", cause_words)
    yield Column("", "wall", lambda run: run.wall_s, lambda run: duration(run.wall_s), is_number=True)
    yield Column("", "age", age, lambda run: duration(age(run)), is_number=True)


def flat_runs(runs: Sequence[RunRecord]) -> Listing[RunRecord]:
    """Return *runs* flat: lists as JSON, None where a run has no value.

    First come the fields of the record, then the settings of all runs under their own names, ``facts.*``, ``metrics.*``
    (last values, nan where they are not finite), ``usage.*`` and ``work.*``; each part but the first is sorted by name
    or in the order of its record. `hpcml.api.store` makes its frames of it.
    """
    plain = ["uid", "experiment", "name", "state", "cause", "reason", "exit_code", "attempt", "scheduler", "job_id"]
    plain += ["submission", "incomplete", "submitted_at", "t_start", "t_end", "wall_s", "precision_effective"]
    plain += ["numerics", "git_commit", "git_dirty"]
    settings = sorted({key for run in runs for key in run.params} - {"experiment", "name"})
    facts = sorted({key for run in runs for key in run.facts})
    metrics = sorted({key for run in runs for key in run.metrics})
    measured = [
        (space, name)
        for space, names in MEASURED.items()
        for name in names
        if any(_measured(run, space, name) is not None for run in runs)
    ]
    columns = [
        *(_field(key, getattr) for key in plain),
        Column("diverged", None, divergence_words),
        *(_field(key, _setting) for key in settings),
        *(_field(f"facts.{key}", lambda run, key: run.facts.get(key.removeprefix("facts."))) for key in facts),
        *(_field(f"metrics.{key}", lambda run, key: key_metric(run, key[8:])[1]) for key in metrics),
        *(_field(f"{space}.{name}", lambda run, key: _measured(run, *key.split("."))) for space, name in measured),
    ]
    return Listing(columns=columns, rows=runs)


def _field(key: str, read: Callable[[RunRecord, str], object]) -> Column[RunRecord]:
    def value(run: RunRecord) -> object:
        found = encode(read(run, key))
        return json.dumps(found, sort_keys=True, default=str) if isinstance(found, list | tuple | dict) else found

    return Column(key, None, value)


def _setting(run: RunRecord, key: str) -> object:
    return list(run.tags) if key == "tags" else run.params.get(key)  # the tags that it has now


def record_json(run: RunRecord) -> Json:
    """Return *run* as JSON values: the fields of `RunRecord`, `incomplete` and `diverged`."""
    return json_ready(
        {
            **encode(run),
            **{key: encode(dict(getattr(run, key))) for key in ("params", "facts", "metrics")},
            "incomplete": run.incomplete,
            "diverged": divergence_words(run),
        }
    )


def _measured(run: RunRecord, space: str, name: str) -> object:
    record = getattr(run, space)
    return None if record is None else getattr(record, name)


def cause_words(run: RunRecord) -> str:
    """Return in a word why the run ended without success, or what is wrong with one that completed; "" for nothing."""
    return run.cause or ("incomplete" if run.incomplete else "diverged" if divergence_words(run) else "")


def uid_words(runs: Iterable[RunRecord]) -> Callable[[str], str]:
    """Return how uids are shown in a table of *runs*: their ends where these differ, else whole."""
    uids = {run.uid for run in runs}
    return short_uid if len({short_uid(uid) for uid in uids}) == len(uids) else str
