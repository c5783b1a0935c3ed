"""`hpcml show`: everything known of one run, with its attempts, events and timelines, for people and as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpcml.codec import encode
from hpcml.model.divergence import divergence_words
from hpcml.model.metric_goal import shown_metric
from hpcml.model.own_program import CHANGED_OUTSIDE, says_nothing
from hpcml.model.query_results import Timeline
from hpcml.model.record_keys import unix_time
from hpcml.model.records import Known, Note, RunRecord, StoredEvent, spell_job
from hpcml.model.state import State
from hpcml.report.asked_used import used_line
from hpcml.report.files import written_words
from hpcml.report.precision import precision_words
from hpcml.report.render.data import json_ready, json_text
from hpcml.report.render.terminal import bare_table, that_fit
from hpcml.report.runs import (
    job_words,
    key_metric,
    metric_words,
    objective_of,
    record_json,
    short_uid,
    title,
)
from hpcml.report.telemetry import cores_busy, timelines_table, usage_words, work_words
from hpcml.report.text import duration, number, safe, shortened
from hpcml.runs.event_words import counted, left_words
from hpcml.runs.state import AttemptFold, EventName, RunFold, told_by

_METRIC_COLUMNS = ("metric", "last", "at step", "min", "at step", "max", "at step", "n", "not finite")
_SPARE = ("at step", "at step", "n", "max", "min")  # of them, where a terminal is narrow
_INDENT = 2  # of a section's lines


def run_details(
    run: RunRecord,
    events: Sequence[StoredEvent],
    *,
    console: Console,
    zone: tzinfo | None = None,
    word: tuple[Known, float] | None = None,
    timelines: Sequence[Timeline] = (),
    asked: Asked | None = None,
    is_all: bool = False,
) -> RenderableType:
    """Return what was asked of *run*, its result and its end; with *is_all* also its settings, facts and events.

    Times are shown in *zone*, by default this machine's. *word* is the scheduler's last report of the job and its time
    (unix seconds), *timelines* the telemetry of its GPUs. Attempts are read from *events*. Sections of which nothing is
    known are left out. Settings are shown also where what was typed is not known, without those that only recipes read
    where the program is the user's own and nobody chose them.
    """
    asked = asked or Asked(overrides=None)
    typed = asked.words
    parts: list[RenderableType] = [Text(safe(f"{run.uid}  {title(run)}".rstrip()), style="bold")]
    head = {"asked": typed, "command": asked.command, "image": asked.image, **dict(_result(run))}
    place = {
        "code": asked.code,
        **_files(run, events),
        "scheduler said": _said(word, zone),
    }
    parts += [_pairs({**head, **dict(_outcome(run)), **place})]
    if run.notes:
        parts += [_title("notes"), _indent(_notes(run.notes, zone))]
    counting = _that_count(events)
    parts += _section("missing", {**dict(_missing(run)), **_unread(counting)})
    parts += _section("precision", dict(precision_words(run, counting)))
    parts += _section("times", {**dict(_times(run, zone)), "stood still": _stood_still(counting)})
    attempts = attempts_of(events)
    if any(attempt.number for attempt in attempts) or any(attempt.checkpoints for attempt in attempts):
        parts += [_title("attempts"), _indent(_attempts(attempts, console))]
    if run.metrics:
        parts += [_title("metrics"), _indent(_metrics(run, console))]
    parts += _used(run, timelines)
    if is_all:
        parts += _section("facts", dict(sorted(run.facts.items())))
    if is_all or asked.overrides is None:
        is_told = {key: is_all or not says_nothing(run.params, key) for key in run.params}
        parts += _section("settings", {key: value for key, value in sorted(run.params.items()) if is_told[key]})
    if is_all and events:
        parts += [_title("events"), _indent(_events(events))]
    if not is_all:
        more = f"hpcml show --all {short_uid(run.uid)}: settings with their defaults, facts, events"
        parts += [Text(f"\n{safe(more)}", style="dim")]
    return Group(*parts)


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


def run_details_json(
    run: RunRecord,
    events: Sequence[StoredEvent],
    *,
    word: tuple[Known, float] | None = None,
    code: str | None = None,
    timelines: Sequence[Timeline] = (),
) -> str:
    """Return the run, its attempts, its timelines and its events as one JSON object.

    It has the fields of `RunRecord`, and `code`, `scheduler_said`, `attempts`, `timelines` and `events`. The time of
    the scheduler's report, `said_at`, is in unix seconds.
    """
    listed = [json_ready({**encode(event), "details": encode(dict(event.details))}) for event in events]
    attempts = [
        json_ready({**encode(one), "hosts": list(one.hosts), "checkpoints": list(one.checkpoints)})
        for one in attempts_of(events)
    ]
    said = None if word is None else {**encode(word[0]), "said_at": word[1]}
    if said is not None:
        del said["used"]  # which the event of the end tells
    sampled = [encode(timeline) for timeline in timelines]
    more = {"code": code, "scheduler_said": said, "attempts": attempts, "timelines": sampled, "events": listed}
    return json_text({**record_json(run), **more})


def _used(run: RunRecord, timelines: Sequence[Timeline]) -> Iterator[RenderableType]:
    drawn = timelines_table(timelines)
    if run.usage is not None or drawn is not None:
        told = dict(usage_words(run.usage, cores_busy(timelines))) if run.usage is not None else {}
        yield from _section("usage", told) or [_title("usage")]
    if drawn is not None:
        yield _indent(drawn)
    if run.work is not None:
        yield from _section("work", dict(work_words(run.work)))


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


def _attempts(attempts: Sequence[Attempt], console: Console) -> Table:
    table = bare_table(console)
    for heading in ("attempt", "began", "lasted", "host", "job", "state", "checkpoints", "why"):
        table.add_column(heading, overflow="fold")
    for one in attempts:
        lasted = None if one.began_s is None or one.ended_s is None else one.ended_s - one.began_s
        steps = list(map(str, one.checkpoints))
        shown = [*steps[:1], "...", *steps[-1:]] if len(steps) > 3 else steps
        cells = (
            str(one.number),
            "" if one.began_s is None else f"{one.began_s:.1f}s",
            duration(lasted),
            ", ".join(one.hosts),
            one.job or "",
            one.state.value,
            " ".join(shown),
            "; ".join(filter(None, [one.queued, one.why])),
        )
        table.add_row(*(Text(safe(cell)) for cell in cells))
    return table


def _metrics(run: RunRecord, console: Console) -> Table:
    lines: list[list[str]] = []
    for name, summary in sorted(run.metrics.items()):
        words = [shortened(safe(name)), metric_words(summary.last_or_nan), summary.last_step, number(summary.min)]
        words += [summary.min_step, number(summary.max), summary.max_step, summary.n, summary.n_nonfinite or None]
        lines.append(["" if word is None else str(word) for word in words])
    is_finite = not any(line[-1] for line in lines)
    spare = [*_METRIC_COLUMNS[-1:], *_SPARE] if is_finite else _SPARE
    table = bare_table(console)
    shown = that_fit(_METRIC_COLUMNS, lines, width=console.width - _INDENT, dispensable=spare)
    for at in shown:
        table.add_column(_METRIC_COLUMNS[at], justify="right" if at else "left", overflow="fold")
    for line in lines:
        table.add_row(*(Text(line[at]) for at in shown))
    return table


def _events(events: Sequence[StoredEvent]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for event in sorted(events, key=lambda event: event.t_s):
        details = ", ".join(f"{key}={_value(value)}" for key, value in event.details.items())
        when = f"{event.t_s:.1f}s"
        table.add_row(*(Text(safe(word)) for word in (when, f"{event.attempt}/{event.writer}", event.name, details)))
    return table


def _notes(notes: Sequence[Note], zone: tzinfo | None) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold", style="dim")
    table.add_column(overflow="fold")
    for note in notes:
        table.add_row(*(Text(safe(word)) for word in (_moment(note.at, zone), note.author, note.text)))
    return table


def _section(name: str, pairs: Mapping[str, object]) -> list[RenderableType]:
    return [_title(name), _pairs(pairs)] if any(value is not None for value in pairs.values()) else []


def _pairs(pairs: Mapping[str, object]) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for key, value in pairs.items():
        if value is not None:
            table.add_row(Text(safe(key)), Text(safe(_value(value))))
    return _indent(table)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(encode(value), default=str)


def _title(name: str) -> Text:
    return Text(f"\n{name}", style="bold")


def _indent(renderable: RenderableType) -> Padding:
    return Padding(renderable, (0, 0, 0, _INDENT))


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
