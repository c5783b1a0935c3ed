"""Where runs stand with their schedulers: for the terminal and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcml.records import RunRecord
from hpcml.report.plain_text import safe
from hpcml.report.run_words import short_uid, title


class Word(Protocol):
    """What a scheduler says of a job."""

    @property
    def raw(self) -> str:
        """Its own word."""

    @property
    def reason(self) -> str | None:
        """Why it waits or ended."""

    @property
    def expected_start(self) -> str | None:
        """When it expects to start it."""


Rows = Sequence[tuple[RunRecord, Word | None]]


def standing_table(rows: Rows, *, console: Console) -> Table:
    """Return a table of *rows* in their order."""
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, show_edge=False)
    for heading in ("run", "experiment", "name", "precision", "seed", "state", "job", "scheduler says", "why"):
        table.add_column(heading, overflow="fold")
    for record, word in rows:
        index = "" if record.array_index is None else f"_{record.array_index}"
        cells = (
            short_uid(record.uid),
            record.experiment,
            title(record),
            record.precision,
            record.seed,
            record.state.value,
            f"{record.scheduler} {record.job_id or '-'}{index}",
            word.raw if word else "",
            _why(record, word),
        )
        table.add_row(*(Text(safe(cell)) for cell in cells))
    return table


def standing_json(rows: Rows) -> str:
    """Return a JSON list; a key is null where the scheduler said nothing."""
    return json.dumps([_entry(record, word) for record, word in rows], indent=2) + "\n"


def _entry(record: RunRecord, word: Word | None) -> dict[str, object]:
    return {
        "uid": record.uid,
        "state": record.state.value,
        "reason": record.reason,
        "scheduler": record.scheduler,
        "job_id": record.job_id,
        "array_index": record.array_index,
        "scheduler_state": word.raw if word else None,
        "scheduler_reason": word.reason if word else None,
        "expected_start": word.expected_start if word else None,
    }


def _why(record: RunRecord, word: Word | None) -> str:
    if record.state.is_final or word is None:
        return record.reason or ""
    start = f"expected to start {word.expected_start}" if word.expected_start else None
    return ", ".join(filter(None, [word.reason, start]))
