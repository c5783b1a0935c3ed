"""The doctor's checks: for the terminal and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcml.report.plain_text import safe

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


class Check(Protocol):
    """One thing that was looked at."""

    @property
    def what(self) -> str:
        """Its name."""

    @property
    def verdict(self) -> str:
        """Whether it is ok: ok, warn or fail."""

    @property
    def found(self) -> str:
        """What there is, and what to do about it."""


def checks_table(checks: Sequence[Check], *, console: Console) -> Table:
    """Return a table of *checks* in their order."""
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, show_edge=False)
    for heading in ("check", "verdict", "found"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        table.add_row(Text(safe(check.what)), Text(check.verdict, _STYLES[check.verdict]), Text(safe(check.found)))
    return table


def checks_json(checks: Sequence[Check]) -> str:
    """Return a JSON list; the keys are stable."""
    entries = [{"check": check.what, "verdict": check.verdict, "found": check.found} for check in checks]
    return json.dumps(entries, indent=2) + "\n"
