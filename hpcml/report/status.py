"""`hpcml status` and `hpcml retry`: the states of runs and of their jobs, and which runs are tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from hpcml.model.records import Known, RunRecord
from hpcml.model.state import State
from hpcml.report.document import Column, Document, Listing
from hpcml.report.runs import job_words, name_heading, name_words, short_uid, state_tone, title
from hpcml.report.text import duration, safe

_FRESH_S = 5.0  # an answer so young was given just now
_ONCE = "what its scheduler says counts once it is said again, since it may be of an earlier start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A run, what its scheduler said of it last, and when (unix seconds).

    Both are None where it was never asked, and for a run that has ended.
    """

    record: RunRecord
    known: Known | None
    said_at: float | None


def standing_document(rows: Sequence[Standing], *, now: float) -> Document:
    """Return a table of *rows* in their order; *now* is in unix seconds.

    "?" behind a state means that the run was ended by a signal and its scheduler has not said why. The age of the
    scheduler's answer is told where it is older than five seconds. In JSON a key is null where the scheduler reported
    nothing; `scheduler_said_at` is ISO 8601 in UTC, `scheduler_state` the scheduler's own word.
    """
    return Document.of(Listing(columns=_columns(rows, now), rows=rows), record=lambda: [_entry(row) for row in rows])


def _columns(rows: Sequence[Standing], now: float) -> list[Column[Standing]]:
    named = name_heading(row.record for row in rows)
    return [
        Column("", "run", lambda row: short_uid(row.record.uid)),
        Column("", "experiment", lambda row: row.record.experiment),
        Column("", named, lambda row: name_words(row.record, named)),
        Column("", "precision", lambda row: row.record.precision),
        Column("", "seed", lambda row: row.record.seed, is_number=False),
        Column("", "state", lambda row: _state_words(row.record), tone=lambda row: state_tone(row.record)),
        Column("", "attempt", lambda row: row.record.attempt or None, is_number=False),
        Column("", "job", lambda row: job_words(row.record)),
        Column(
            "",
            "scheduler says",
            lambda row: f"{row.known.raw}{_age(row.said_at, now)}" if row.known else "",
        ),
        Column("", "cause", lambda row: row.record.cause),
        Column("", "why", lambda row: why_words(row.record, row.known)),
    ]


def end_line(record: RunRecord) -> str:
    """Return one line on how one run ended."""
    words = (record.uid, record.state.value, title(record), duration(record.wall_s), record.reason or "")
    return safe("  ".join(filter(None, words)))


def open_line(record: RunRecord) -> str:
    """Return one line that identifies a run, for a question to the user."""
    words = (record.uid, record.experiment, title(record), _state_words(record), job_words(record))
    return safe("  ".join(filter(None, words)))


def _entry(row: Standing) -> dict[str, object]:
    record, word = row.record, row.known
    said_at = None if row.said_at is None else datetime.fromtimestamp(row.said_at, tz=UTC).isoformat(timespec="seconds")
    return {
        "uid": record.uid,
        "state": record.state.value,
        "is_settled": record.is_settled,
        "attempt": record.attempt,
        "cause": record.cause,
        "reason": record.reason,
        "scheduler": record.scheduler,
        "job_id": record.job_id,
        "array_index": record.array_index,
        "scheduler_state": word.raw if word else None,
        "scheduler_reason": word.reason if word else None,
        "scheduler_said_at": said_at,
        "expected_start": word.expected_start if word else None,
    }


def _state_words(record: RunRecord) -> str:
    return record.state.value if record.is_settled else f"{record.state.value}?"  # why, and whether for good, is open


def _age(said_at: float | None, now: float) -> str:
    if said_at is None or now - said_at < _FRESH_S:
        return ""
    return f", {duration(now - said_at)} ago"


def why_words(record: RunRecord, word: Known | None) -> str:
    """Return why the run is in its state: its own reason, or what the scheduler says of a job that has not ended."""
    if not record.is_settled:
        said = "its scheduler has not said why" if word is None or not word.state.is_final else _ONCE
        return f"{record.reason or 'ended by a signal'}: {said}"
    if record.state.is_final and word is not None:
        return "; ".join(filter(None, [record.reason, "its job lives on: hpcml cancel ends it"]))
    if word is None:
        return record.reason or ""
    if word.state.is_final and word.state is not State.LOST:
        return "; ".join(filter(None, [word.reason, "its job has ended: that counts once it is said again"]))
    start = f"expected to start {word.expected_start}" if word.expected_start else None
    silent = None
    if record.state is State.PENDING and word.state is State.RUNNING:
        not_yet = "its turn in it has not come" if record.is_shared else "its agent has not written yet"
        silent = f"its job has begun, {not_yet}"
    return ", ".join(filter(None, [word.reason, start, silent]))


Decided = Sequence[tuple[RunRecord, str, str, bool]]  # a run, its cause, why, and whether it is tried again


def retry_lines(decided: Decided) -> list[str]:
    """Return a line for each run with the cause of its failure, the decision, and whether it is tried again.

    The columns are aligned; "no: " begins the decision on a run that is not tried again.
    """
    cells = [
        (record.uid, title(record), record.state.value, cause, f"{'' if is_tried else 'no: '}{why}")
        for record, cause, why, is_tried in decided
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)] if cells else []
    return [
        safe("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()) for line in cells
    ]


def left_lines(decided: Decided) -> list[str]:
    """Return a line for each cause and reason for which runs are not tried again, with how many these are."""
    left = Counter((cause, why) for _, cause, why, is_tried in decided if not is_tried)
    return [
        safe(f"not worth another try by themselves: {count} {cause}: {why}")
        for (cause, why), count in sorted(left.items())
    ]
