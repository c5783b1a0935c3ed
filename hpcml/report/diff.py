"""`hpcml diff`: two runs side by side."""

from __future__ import annotations

import math

from hpcml.analysis.run_diff import RunDiff, RunDiffEntry
from hpcml.codec import encode
from hpcml.model.records import RunRecord
from hpcml.report.document import Column, Document, Listing, Section
from hpcml.report.query import value_words
from hpcml.report.runs import metric_words, title

_SECTIONS = ("settings", "environment", "outcome")


def differences_document(differences: RunDiff) -> Document:
    """Return a table for each section (settings, environment, outcome) that has entries.

    A value that a run does not have is an empty cell. JSON has for each section the two values by key, null for one
    that a run does not have; `first` and `second` are the uids, `alike` counts the entries that do not differ.
    """
    columns: list[Column[RunDiffEntry]] = [
        Column("section", None, lambda each: each.section),
        Column("key", "", lambda each: each.key),
        Column(
            "first", _heading(differences.first), lambda each: each.first, lambda each: _words(each.first, each.key)
        ),
        Column(
            "second", _heading(differences.second), lambda each: each.second, lambda each: _words(each.second, each.key)
        ),
    ]
    by_section = {name: [each for each in differences.contrasts if each.section == name] for name in _SECTIONS}
    record = {
        "first": differences.first.uid,
        "second": differences.second.uid,
        "alike": differences.alike,
        **{
            name: {each.key: [encode(each.first), encode(each.second)] for each in entries}
            for name, entries in by_section.items()
        },
    }
    sections = [
        Section(heading=name, parts=[Listing(columns=columns, rows=entries)])
        for name, entries in by_section.items()
        if entries
    ]
    return Document(sections=sections, record=record, data=[Listing(columns=columns, rows=differences.contrasts)])


def remark(differences: RunDiff) -> str:
    """Return one line on how many entries are alike, or that all are."""
    return f"{differences.alike} more are alike" if differences.contrasts else "the two do not differ"


def _heading(run: RunRecord) -> str:
    return f"{run.uid} {title(run)}".rstrip()


def _words(value: object, key: str) -> str:
    if key.startswith("metrics.") and isinstance(value, float) and math.isnan(value):
        return metric_words(value)
    return value_words(value, key)
