"""`hpcml status` and `hpcml retry`: the states of runs and of their jobs, and which runs are tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcml.model.records import Known, RunRecord
from hpcml.model.state import State
from hpcml.report.render.data import json_text
from hpcml.report.runs import STATE_STYLES, job_words, name_heading, name_words, short_uid, title
from hpcml.report.text import duration, safe

_FRESH_S = 5.0  # an answer so young was given just now
_HEADINGS = (
    *("run", "experiment", "name", "precision", "seed", "state", "attempt", "job", "scheduler says", "cause", "why"),
)
_NAME, _STATE = _HEADINGS.index("name"), _HEADINGS.index("state")
_MAY_BE_EMPTY = frozenset({"name", "attempt", "scheduler says", "cause", "why"})  # left out where there is nothing


_ONCE = "what its scheduler says counts once it is said again, since it may be of an earlier start"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingRow:
    """A run, the scheduler's last report of its job, and the time of that in unix seconds; None without a report."""

    record: RunRecord
    word: Known | None
    said_at: float | None


def standing_table(rows: Sequence[StandingRow], *, console: Console, now: float) -> Table:
    """Return a table of *rows* in their order; *now* is in unix seconds.

    "?" behind a state means that the run was ended by a signal and its scheduler has not said why. The age of the
    scheduler's answer is told where it is older than five seconds.
    """
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, show_edge=False)
    headings = [*_HEADINGS[:_NAME], name_heading(row.record for row in rows), *_HEADINGS[_NAME + 1 :]]
    lines = [_cells(row, now, headings[_NAME]) for row in rows]
    columns = _columns(lines)
    for at in columns:
        table.add_column(headings[at], overflow="fold", no_wrap=headings[at] in ("run", "state"))
    for row, line in zip(rows, lines, strict=True):
        style = STATE_STYLES.get(row.record.state, "red")
        table.add_row(*(Text(safe(line[at]), style=style if at == _STATE else "") for at in columns))
    return table


def standing_json(rows: Sequence[StandingRow]) -> str:
    """Return a JSON list; a key is null where the scheduler reported nothing.

    `scheduler_said_at` is ISO 8601 in UTC, `scheduler_state` the scheduler's own word.
    """
    return json_text([_entry(row) for row in rows])


def end_line(record: RunRecord) -> str:
    """Return one line on how one run ended."""
    words = (record.uid, record.state.value, title(record), duration(record.wall_s), record.reason or "")
    return safe("  ".join(filter(None, words)))


def open_line(record: RunRecord) -> str:
    """Return one line that identifies a run, for a question to the user."""
    words = (record.uid, record.experiment, title(record), _state_words(record), job_words(record))
    return safe("  ".join(filter(None, words)))


def _columns(lines: Sequence[Sequence[str]]) -> list[int]:
    """Return the indices of the columns to show: one that may be empty only where some line has a value in it."""
    return [
        at for at, heading in enumerate(_HEADINGS) if heading not in _MAY_BE_EMPTY or any(line[at] for line in lines)
    ]


def _cells(row: StandingRow, now: float, named: str) -> list[str]:
    record, word = row.record, row.word
    return [
        short_uid(record.uid),
        record.experiment,
        name_words(record, named),
        record.precision,
        str(record.seed),
        _state_words(record),
        str(record.attempt) if record.attempt else "",
        job_words(record),
        f"{word.raw}{_age(row.said_at, now)}" if word else "",
        record.cause or "",
        why_words(record, word),
    ]


def _entry(row: StandingRow) -> dict[str, object]:
    record, word = row.record, row.word
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
