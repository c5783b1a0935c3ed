"""`hpcml doctor`: its checks as table and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcml.report.render.data import json_text
from hpcml.report.text import safe

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


class DoctorCheck(Protocol):
    """One check of the doctor; `hpcml.commands.doctor` makes them."""

    @property
    def what(self) -> str:
        """The name of what was checked."""

    @property
    def verdict(self) -> str:
        """The result: ok, warn or fail."""

    @property
    def found(self) -> str:
        """What was found, and what to do about it."""


def checks_table(checks: Sequence[DoctorCheck], *, console: Console) -> Table:
    """Return a table of *checks* in their order; the verdict is coloured."""
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, show_edge=False)
    for heading in ("check", "verdict", "found"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        table.add_row(Text(safe(check.what)), Text(check.verdict, _STYLES[check.verdict]), Text(safe(check.found)))
    return table


def checks_json(checks: Sequence[DoctorCheck]) -> str:
    """Return a JSON list of objects with `check`, `verdict` and `found`; its keys do not change between versions."""
    entries = [{"check": check.what, "verdict": check.verdict, "found": check.found} for check in checks]
    return json_text(entries)
