"""`hpcml doctor`: its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcml.report.document import Column, Document, Listing, Tone

_TONES: Mapping[str, Tone] = {"ok": "good", "warn": "doubt", "fail": "bad"}


CheckWords = tuple[str, str, str]  # what was checked; ok, warn or fail; what was found, and what to do about it


def checks_document(checks: Sequence[CheckWords]) -> Document:
    """Return *checks* in their order; keys of JSON do not change between versions."""
    columns: list[Column[CheckWords]] = [
        Column("check", "check", lambda check: check[0]),
        Column("verdict", "verdict", lambda check: check[1], tone=lambda check: _TONES[check[1]]),
        Column("found", "found", lambda check: check[2]),
    ]
    return Document.of(Listing(columns=columns, rows=checks))
