"""All that is known of one run, for somebody who wants to know what happened."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, tzinfo

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpcml.answers import Timeline
from hpcml.codec import encode
from hpcml.precision import Numerics
from hpcml.records import Known, Note, RunRecord, StoredEvent
from hpcml.report.attempts import Attempt, attempts_of
from hpcml.report.plain_text import duration, json_ready, number, safe
from hpcml.report.run_words import is_native, job_words, last_value, metric_words, title
from hpcml.report.runs_table import record_json
from hpcml.report.usage_words import timelines_table, usage_words, work_words


def run_details(
    run: RunRecord,
    events: Sequence[StoredEvent],
    *,
    console: Console,
    zone: tzinfo | None = None,
    word: tuple[Known, float] | None = None,
    code: str | None = None,
    timelines: Sequence[Timeline] = (),
) -> RenderableType:
    """Return everything about *run*; times are shown in *zone*, by default this machine's.

    *word* is what its scheduler said last, and when (unix seconds); *code* the folder with the code that it runs;
    *timelines* what its GPUs did.
    """
    parts: list[RenderableType] = [Text(safe(f"{run.uid}  {title(run)}".rstrip()), style="bold")]
    parts += [_pairs({**dict(_outcome(run)), "code": code, "scheduler said": _said(word, zone)})]
    if run.notes:
        parts += [_title("notes"), _indent(_notes(run.notes, zone))]
    parts += _section("missing", dict(_missing(run)))
    parts += _section("precision", dict(_precision(run)))
    parts += _section("times", dict(_times(run, zone)))
    attempts = attempts_of(events)
    if any(attempt.number for attempt in attempts) or any(attempt.checkpoints for attempt in attempts):
        parts += [_title("attempts"), _indent(_attempts(attempts, console))]
    if run.metrics:
        parts += [_title("metrics"), _indent(_metrics(run, console))]
    parts += _used(run, timelines)
    parts += _section("facts", dict(sorted(run.facts.items())))
    parts += _section("settings", dict(sorted(run.params.items())))
    if events:
        parts += [_title("events"), _indent(_events(events))]
    return Group(*parts)


def run_details_json(
    run: RunRecord,
    events: Sequence[StoredEvent],
    *,
    word: tuple[Known, float] | None = None,
    code: str | None = None,
    timelines: Sequence[Timeline] = (),
) -> str:
    """Return the run, its attempts, its timelines and its events as one JSON object."""
    listed = [json_ready({**encode(event), "details": encode(dict(event.details))}) for event in events]
    attempts = [
        json_ready({**encode(one), "hosts": list(one.hosts), "checkpoints": list(one.checkpoints)})
        for one in attempts_of(events)
    ]
    said = None if word is None else {**encode(word[0]), "said_at": word[1]}
    sampled = [encode(timeline) for timeline in timelines]
    more = {"code": code, "scheduler_said": said, "attempts": attempts, "timelines": sampled, "events": listed}
    return json.dumps({**record_json(run), **more}, indent=2, allow_nan=False) + "\n"


def _used(run: RunRecord, timelines: Sequence[Timeline]) -> Iterator[RenderableType]:
    drawn = timelines_table(timelines)
    if run.usage is not None or drawn is not None:
        yield from _section("usage", dict(usage_words(run.usage)) if run.usage is not None else {}) or [_title("usage")]
    if drawn is not None:
        yield _indent(drawn)
    if run.work is not None:
        yield from _section("work", dict(work_words(run.work)))


def _outcome(run: RunRecord) -> Iterator[tuple[str, object]]:
    yield "state", run.state.value + ("" if run.is_settled else "  (its scheduler has not said why)")
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


def _missing(run: RunRecord) -> Iterator[tuple[str, object]]:
    yield "lost records", run.lost_records or None
    yield "unreadable lines", run.bad_lines or None


def _precision(run: RunRecord) -> Iterator[tuple[str, object]]:
    yield "requested", run.precision
    differs = run.precision_effective is not None and run.precision_effective != run.precision
    yield "effective", f"{run.precision_effective or 'not proven'}{'  (not what was requested)' * differs}"
    is_told = run.numerics in Numerics.__members__
    doubts = [
        "" if is_told else "the program did not report how it computed: ",
        "its times say nothing about this precision",
    ]
    yield "numerics", run.numerics if is_native(run) else f"{run.numerics}  ({''.join(doubts)})"


def _times(run: RunRecord, zone: tzinfo | None) -> Iterator[tuple[str, object]]:
    yield "submitted", run.submitted_at
    for name, moment in (("started", run.t_start), ("ended", run.t_end)):
        yield name, None if moment is None else _moment(moment, zone)
    yield "wall time", duration(run.wall_s) or None


def _said(word: tuple[Known, float] | None, zone: tzinfo | None) -> str | None:
    if word is None:
        return None
    known, at = word
    reason = f" ({known.reason})" if known.reason else ""
    start = f", expected to start {known.expected_start}" if known.expected_start else ""
    return f"{known.raw}{reason}{start}, at {_moment(at, zone)}"


def _moment(at: float, zone: tzinfo | None) -> str:
    return datetime.fromtimestamp(at, tz=zone).astimezone(zone).isoformat(sep=" ", timespec="seconds")


def _attempts(attempts: Sequence[Attempt], console: Console) -> Table:
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, show_edge=False)
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
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, show_edge=False)
    table.add_column("metric", overflow="fold")
    for heading in ("last", "at step", "min", "at step", "max", "at step", "n", "not finite"):
        table.add_column(heading, justify="right", overflow="fold")
    for name, summary in sorted(run.metrics.items()):
        words = [safe(name), metric_words(last_value(summary)), summary.last_step, number(summary.min)]
        words += [summary.min_step, number(summary.max), summary.max_step, summary.n, summary.n_nonfinite or None]
        table.add_row(*(Text("" if word is None else str(word)) for word in words))
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
    return Padding(renderable, (0, 0, 0, 2))
