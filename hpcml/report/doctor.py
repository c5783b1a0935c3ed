"""`hpcml doctor`: its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcml.report.document import Column, Document, Listing, Tone

_TONES: Mapping[str, Tone] = {"ok": "good", "warn": "doubt", "fail": "bad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at: `verdict` is ok, warn or fail, and `found` says what there is or how to mend it."""

    what: str
    verdict: str
    found: str


def checks_document(checks: Sequence[Check]) -> Document:
    """Return *checks* in their order; keys of JSON do not change between versions."""
    columns: list[Column[Check]] = [
        Column("check", "check", lambda check: check.what),
        Column("verdict", "verdict", lambda check: check.verdict, tone=lambda check: _TONES[check.verdict]),
        Column("found", "found", lambda check: check.found),
    ]
    return Document.of(Listing(columns=columns, rows=checks))
