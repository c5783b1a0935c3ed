"""`hpcml show`: everything known of one run, with its attempts, events and timelines, for people and as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from hpcml.codec import Json, encode
from hpcml.model.divergence import divergence_words
from hpcml.model.metric_goal import shown_metric
from hpcml.model.own_program import CHANGED_OUTSIDE, says_nothing
from hpcml.model.query_results import Timeline
from hpcml.model.record_keys import unix_time
from hpcml.model.records import Known, MetricSummary, Note, RunRecord, StoredEvent, spell_job
from hpcml.model.state import State
from hpcml.report.asked_used import used_line
from hpcml.report.document import Column, Document, Listing, Pairs, Remarks, Section, written
from hpcml.report.files import written_words
from hpcml.report.precision import precision_words
from hpcml.report.render.data import json_ready
from hpcml.report.runs import (
    job_words,
    key_metric,
    metric_words,
    objective_of,
    record_json,
    short_uid,
    title,
)
from hpcml.report.telemetry import cores_busy, timelines_listing, usage_words, work_words
from hpcml.report.text import duration, shortened
from hpcml.runs.event_words import counted, left_words
from hpcml.runs.state import AttemptFold, EventName, RunFold, told_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was submitted: the settings that were typed (None: not recorded), the program, its code and its image."""

    overrides: Sequence[str] | None
    argv: Sequence[str] | None = None  # the command line of a program of the user's own
    code: str | None = None  # the folder with the copy of its code
    image: str | None = None  # that the program was started in

    @property
    def words(self) -> str | None:
        """The settings in one line, without the command, which `command` says; None where that says it all."""
        if self.overrides is None:
            return None
        typed = " ".join(word for word in self.overrides if not word.startswith("workload.command="))
        return typed or (None if self.argv is not None else "the defaults")

    @property
    def command(self) -> str | None:
        """The command line of the user's own program, as a shell takes it."""
        return None if self.argv is None else shlex.join(self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """A run with what is known of it besides its record.

    `word` is the scheduler's last report of the job and its time (unix seconds), `timelines` the telemetry of its GPUs.
    """

    run: RunRecord
    events: Sequence[StoredEvent] = ()
    word: tuple[Known, float] | None = None
    timelines: Sequence[Timeline] = ()
    asked: Asked


def run_document(shown: ShownRun, *, zone: tzinfo | None = None, is_all: bool = False) -> Document:
    """Return what was asked of a run, its result and its end; with *is_all* also its settings, facts and events.

    Times are shown in *zone*, by default this machine's. Sections of which nothing is known are left out. Settings are
    shown also where what was typed is not known, without those that only recipes read where the program is the user's
    own and nobody chose them. JSON has everything.
    """
    run, asked, events = shown.run, shown.asked, shown.events
    head = {
        "asked": asked.words,
        "command": asked.command,
        "image": asked.image,
        **dict(_result(run)),
        **dict(_outcome(run)),
        "code": asked.code,
        **_files(run, events),
        "scheduler said": _said(shown.word, zone),
    }
    sections = [Section(heading=f"{run.uid}  {title(run)}".rstrip(), parts=[Pairs(values=head)])]
    more = f"hpcml show --all {short_uid(run.uid)}: settings with their defaults, facts, events"
    for heading, part in _parts(shown, zone, is_all=is_all):
        is_empty = not (part.known if isinstance(part, Pairs) else part.rows)
        if not is_empty:
            sections.append(Section(heading=heading, parts=[part]))
    if not is_all:
        sections.append(Section(parts=[Remarks(lines=[more], tones=["faint"])]))
    return Document(sections=sections, record=lambda: _record(shown))


def _parts(shown: ShownRun, zone: tzinfo | None, *, is_all: bool) -> Iterator[tuple[str, Pairs | Listing[Any]]]:
    run, events = shown.run, shown.events
    counting = _that_count(events)
    yield "notes", _notes(run.notes, zone)
    yield "missing", Pairs(values={**dict(_missing(run)), **_unread(counting)})
    yield "precision", Pairs(values=dict(precision_words(run, counting)))
    yield "times", Pairs(values={**dict(_times(run, zone)), "stood still": _stood_still(counting)})
    attempts = attempts_of(events)
    if any(attempt.number or attempt.checkpoints for attempt in attempts):
        yield "attempts", _attempts(attempts)
    yield "metrics", _metrics(run)
    if run.usage is not None:
        yield "usage", Pairs(values=dict(usage_words(run.usage, cores_busy(shown.timelines))))
    if (drawn := timelines_listing(shown.timelines)) is not None:
        yield "timelines", drawn
    of_step = {} if run.work is None else dict(work_words(run.work))
    yield "work", Pairs(values={"parameters": _parameters(counting), **of_step})
    if is_all:
        yield "facts", Pairs(values=dict(sorted(run.facts.items())))
    if is_all or shown.asked.overrides is None:
        chosen = [key for key in sorted(run.params) if is_all or not says_nothing(run.params, key)]
        yield "settings", Pairs(values={key: _as_typed(run.params[key]) for key in chosen})
    if is_all:
        yield "events", _events(events)


def _as_typed(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(encode(value), default=str)


def _record(shown: ShownRun) -> Json:
    """Return the fields of `RunRecord`, and `code`, `scheduler_said`, `attempts`, `timelines` and `events`.

    The time of the scheduler's report, `said_at`, is in unix seconds.
    """
    listed = [json_ready({**encode(event), "details": encode(dict(event.details))}) for event in shown.events]
    attempts = [
        json_ready({**encode(one), "hosts": list(one.hosts), "checkpoints": list(one.checkpoints)})
        for one in attempts_of(shown.events)
    ]
    said = None if shown.word is None else {**encode(shown.word[0]), "said_at": shown.word[1]}
    if said is not None:
        del said["used"]  # which the event of the end tells
    sampled = [encode(timeline) for timeline in shown.timelines]
    more = {"code": shown.asked.code, "scheduler_said": said, "attempts": attempts, "timelines": sampled}
    return {**record_json(shown.run), **more, "events": listed}


def _result(run: RunRecord) -> Iterator[tuple[str, object]]:
    name, value = key_metric(run, shown_metric(objective_of(run), run.metrics))
    if value is not None:
        at = run.metrics[name].last_step
        yield "result", f"{name} {metric_words(value)}{'' if at is None else f' at step {at}'}"


def _outcome(run: RunRecord) -> Iterator[tuple[str, object]]:
    yield "state", run.state.value + ("" if run.is_settled else "  (its scheduler has not said why)")
    yield "diverged", divergence_words(run)
    yield "used", used_line(run)
    yield "cause", run.cause
    yield "reason", run.reason
    yield "exit code", run.exit_code
    yield "experiment", run.experiment
    yield "seed", run.seed
    yield "tags", ", ".join(run.tags) or None
    yield "scheduler", run.scheduler
    yield "job", None if run.job_id is None else job_words(run).partition(" ")[2]
    yield "attempt", run.attempt
    yield "submission", run.submission
    yield "directory", run.path
    yield "git commit", None if run.git_commit is None else f"{run.git_commit}{' + changes' * bool(run.git_dirty)}"


def _files(run: RunRecord, events: Sequence[StoredEvent]) -> dict[str, object]:
    """Return what was written in the working directory, by the last event that tells it, and what changed beside it."""
    told = sorted((event for event in events if event.name == EventName.FILES_WRITTEN), key=lambda event: event.attempt)
    found = counted(told[-1].details) if told else None
    changed = run.facts.get(CHANGED_OUTSIDE)
    left = [left_words(event.details) for event in events if event.name == EventName.LEFT_BEHIND]
    return {
        "left behind": f"{left[-1]}, still at work when its program had ended, and killed then" if left else None,
        "files": f"{written_words(*found)}: hpcml show --files {run.uid}" if found and found[0] else None,
        "changed outside": f"{changed} (shared by runs, and changed while this one ran)" if changed else None,
    }


def _that_count(events: Sequence[StoredEvent]) -> Sequence[StoredEvent]:
    """Return the events of the attempts whose work counts; all where no attempt has begun."""
    counting = RunFold.of(map(told_by, events)).counting()
    return [event for event in events if event.attempt in counting] if counting else events


def _parameters(events: Sequence[StoredEvent]) -> str | None:
    """Return how many parameters the model has, as a recipe said or an observer of a program saw; None: not known."""
    told = {event.name: event.details.get("parameters") for event in events}
    found = told.get("training") or told.get("precision_observed")
    number = sum(found.values()) if isinstance(found, dict) else found
    return f"{number:,}" if isinstance(number, int) else None


def _unread(events: Sequence[StoredEvent]) -> dict[str, object]:
    """Return what was not read of the files of metrics that the program wrote, by file."""
    told: dict[str, list[str]] = {}
    for event in events:
        if event.name == EventName.METRICS_TROUBLE:
            place = f"metrics in {event.details.get('file')}"
            told.setdefault(place, []).append(str(event.details.get("problem")))
    return {place: "; ".join(dict.fromkeys(problems)) for place, problems in told.items()}


def _missing(run: RunRecord) -> Iterator[tuple[str, object]]:
    yield "incomplete", run.incomplete
    yield "lost records", run.lost_records or None
    yield "unreadable lines", run.bad_lines or None


def _times(run: RunRecord, zone: tzinfo | None) -> Iterator[tuple[str, object]]:
    at = None if run.submitted_at is None else unix_time(run.submitted_at)
    yield "submitted", run.submitted_at if at is None else _moment(at, zone)
    for name, moment in (("started", run.t_start), ("ended", run.t_end)):
        yield name, None if moment is None else _moment(moment, zone)
    yield "wall time", duration(run.wall_s) or None


def _stood_still(events: Sequence[StoredEvent]) -> str | None:
    """Return for how long nothing went on in the attempts that count: of each the longest of its nodes, added up."""
    of_attempt: dict[int, float] = {}
    for event in events:
        seconds = event.details.get("stood_still_s") if event.name == EventName.ATTEMPT_ENDED else None
        if isinstance(seconds, int | float):
            of_attempt[event.attempt] = max(seconds, of_attempt.get(event.attempt, 0.0))
    all_s = sum(of_attempt.values())
    return f"{duration(all_s)} of the wall time: suspended, or held up by its node" if all_s else None


def _said(word: tuple[Known, float] | None, zone: tzinfo | None) -> str | None:
    if word is None:
        return None
    known, at = word
    reason = f" ({known.reason})" if known.reason else ""
    start = f", expected to start {known.expected_start}" if known.expected_start else ""
    return f"{known.raw}{reason}{start}, at {_moment(at, zone)}"


def _moment(at: float, zone: tzinfo | None) -> str:
    moment = datetime.fromtimestamp(at, UTC).astimezone(zone)
    return moment.isoformat(sep=" ", timespec="seconds")


def _attempts(attempts: Sequence[Attempt]) -> Listing[Attempt]:
    def lasted(one: Attempt) -> str:
        return duration(None if one.began_s is None or one.ended_s is None else one.ended_s - one.began_s)

    def checkpoints(one: Attempt) -> str:
        steps = list(map(str, one.checkpoints))
        return " ".join([*steps[:1], "...", *steps[-1:]] if len(steps) > 3 else steps)

    columns: list[Column[Attempt]] = [
        Column("", "attempt", lambda one: str(one.number)),
        Column("", "began", lambda one: "" if one.began_s is None else f"{one.began_s:.1f}s"),
        Column("", "lasted", lasted),
        Column("", "host", lambda one: ", ".join(one.hosts)),
        Column("", "job", lambda one: one.job),
        Column("", "state", lambda one: one.state.value),
        Column("", "checkpoints", checkpoints),
        Column("", "why", lambda one: "; ".join(filter(None, [one.queued, one.why]))),
    ]
    return Listing(columns=columns, rows=attempts)


def _metrics(run: RunRecord) -> Listing[tuple[str, MetricSummary]]:
    columns: list[Column[tuple[str, MetricSummary]]] = [
        Column("", "metric", lambda row: shortened(row[0])),
        Column(
            "", "last", lambda row: row[1].last_or_nan, lambda row: metric_words(row[1].last_or_nan), is_number=True
        ),
        Column("", "at step", lambda row: row[1].last_step),
        Column("", "min", lambda row: row[1].min),
        Column("", "at step", lambda row: row[1].min_step, is_short=False),
        Column("", "max", lambda row: row[1].max),
        Column("", "at step", lambda row: row[1].max_step, is_short=False),
        Column("", "n", lambda row: row[1].n),
        Column("", "not finite", lambda row: row[1].n_nonfinite or None),
    ]
    return Listing(columns=columns, rows=sorted(run.metrics.items()))


def _events(events: Sequence[StoredEvent]) -> Listing[StoredEvent]:
    def details(event: StoredEvent) -> str:
        return ", ".join(f"{key}={written(value)}" for key, value in event.details.items())

    columns: list[Column[StoredEvent]] = [
        Column("", "at", lambda event: event.t_s, lambda event: f"{event.t_s:.1f}s"),
        Column("", "attempt/writer", lambda event: f"{event.attempt}/{event.writer}"),
        Column("", "event", lambda event: event.name),
        Column("", "details", details),
    ]
    return Listing(columns=columns, rows=sorted(events, key=lambda event: event.t_s))


def _notes(notes: Sequence[Note], zone: tzinfo | None) -> Listing[Note]:
    columns: list[Column[Note]] = [
        Column("", "at", lambda note: _moment(note.at, zone)),
        Column("", "by", lambda note: note.author),
        Column("", "note", lambda note: note.text),
    ]
    return Listing(columns=columns, rows=notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt; times are seconds on the run's own clock, None where they were not recorded."""

    number: int
    queued: str | None  # why it was queued: None for the first
    began_s: float | None
    ended_s: float | None
    hosts: Sequence[str]
    job: str | None
    state: State
    why: str | None
    checkpoints: Sequence[int]  # the steps of those it left


def attempts_of(events: Sequence[StoredEvent]) -> list[Attempt]:
    """Return the attempts found in *events*, in their order."""
    fold = RunFold.of(map(told_by, events))
    return [_attempt(one, fold.state_of(one)) for one in fold]


def _attempt(told: AttemptFold, state: State) -> Attempt:
    reasons = (submission.reason for submission in told.submissions)
    return Attempt(
        number=told.number,
        queued=next((reason for reason in reasons if reason), None),
        began_s=_seconds(told.began_ms),
        ended_s=_seconds(told.ended_ms),
        hosts=tuple(told.hosts),
        job=_job(told.jobs[-1].details) if told.jobs else None,
        state=state,
        why=_why(told, state),
        checkpoints=tuple(told.checkpoint_steps),
    )


def _job(details: Mapping[str, object]) -> str:
    index = details.get("array_index")
    return spell_job(str(details["job_id"]), index if isinstance(index, int) else None)


def _why(told: AttemptFold, state: State) -> str | None:
    if state is not told.state:
        return "its end was not recorded"
    if told.decision is None or told.decision.name == EventName.SUBMITTED:
        return None  # it waits, and `queued` says why
    return told.decision.reason


def _seconds(at_ms: int | None) -> float | None:
    return None if at_ms is None else at_ms / 1000
