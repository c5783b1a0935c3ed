"""Where runs stand with their schedulers: for the terminal and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcml.records import Known, RunRecord
from hpcml.report.plain_text import duration, safe
from hpcml.report.run_words import job_words, short_uid, title
from hpcml.states import State

_FRESH_S = 5.0  # an answer so young was given just now
_STYLES = {State.COMPLETED: "green", State.RUNNING: "cyan", State.PENDING: "dim"}
_HEADINGS = (
    *("run", "experiment", "name", "precision", "seed", "state", "attempt", "job", "scheduler says", "cause", "why"),
)
_STATE = _HEADINGS.index("state")
_MAY_BE_EMPTY = frozenset({"name", "attempt", "scheduler says", "cause", "why"})  # left out where there is nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run, what its scheduler said of it last, and when in unix seconds; None where it said nothing."""

    record: RunRecord
    word: Known | None
    said_at: float | None


def standing_table(rows: Sequence[Row], *, console: Console, now: float) -> Table:
    """Return a table of *rows* in their order; *now* is in unix seconds."""
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, show_edge=False)
    lines = [_cells(row, now) for row in rows]
    columns = _columns(lines)
    for at in columns:
        table.add_column(_HEADINGS[at], overflow="fold", no_wrap=_HEADINGS[at] in ("run", "state"))
    for row, line in zip(rows, lines, strict=True):
        style = _STYLES.get(row.record.state, "red")
        table.add_row(*(Text(safe(line[at]), style=style if at == _STATE else "") for at in columns))
    return table


def standing_text(rows: Sequence[Row], *, now: float) -> str:
    """Return the same as plain text: for a pipe, and ten times as fast for a thousand runs."""
    lines = [_cells(row, now) for row in rows]
    columns = _columns(lines)
    table = [list(_HEADINGS), *([safe(cell) for cell in line] for line in lines)]
    widths = {at: max(cell_len(line[at]) for line in table) for at in columns}
    padded = ("  ".join(set_cell_size(line[at], widths[at]) for at in columns).rstrip() for line in table)
    return "".join(f"{line}\n" for line in padded)


def standing_json(rows: Sequence[Row]) -> str:
    """Return a JSON list; a key is null where the scheduler said nothing."""
    return json.dumps([_entry(row) for row in rows], indent=2) + "\n"


def standing_line(record: RunRecord, word: Known | None) -> str:
    """Return where one run stands in a line."""
    attempt = f"attempt {record.attempt}" if record.attempt else ""
    words = (record.uid, _state_words(record), attempt, job_words(record), _why(record, word))
    return safe("  ".join(filter(None, words)))


def end_line(record: RunRecord) -> str:
    """Return how one run ended in a line."""
    words = (record.uid, record.state.value, title(record), duration(record.wall_s), record.reason or "")
    return safe("  ".join(filter(None, words)))


def open_line(record: RunRecord) -> str:
    """Return which run this is, for somebody who is asked whether it is meant."""
    words = (record.uid, record.experiment, title(record), _state_words(record), job_words(record))
    return safe("  ".join(filter(None, words)))


def _columns(lines: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns that are worth their room."""
    return [
        at for at, heading in enumerate(_HEADINGS) if heading not in _MAY_BE_EMPTY or any(line[at] for line in lines)
    ]


def _cells(row: Row, now: float) -> list[str]:
    record, word = row.record, row.word
    return [
        short_uid(record.uid),
        record.experiment,
        title(record),
        record.precision,
        str(record.seed),
        _state_words(record),
        str(record.attempt) if record.attempt else "",
        job_words(record),
        f"{word.raw}{_age(row.said_at, now)}" if word else "",
        record.cause or "",
        _why(record, word),
    ]


def _entry(row: Row) -> dict[str, object]:
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


def _why(record: RunRecord, word: Known | None) -> str:
    if not record.is_settled:
        return f"{record.reason or 'ended by a signal'}: its scheduler has not said why"
    if record.state.is_final or word is None:
        return record.reason or ""
    start = f"expected to start {word.expected_start}" if word.expected_start else None
    silent = None
    if record.state is State.PENDING and word.state is State.RUNNING:
        silent = "its job has begun, its agent has not written yet"
    return ", ".join(filter(None, [word.reason, start, silent]))
