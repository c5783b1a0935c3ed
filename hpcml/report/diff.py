"""`hpcml diff`: two runs side by side as table, Markdown, CSV and JSON."""

from __future__ import annotations

import math

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from hpcml.codec import encode
from hpcml.model.query_results import RunDiff
from hpcml.report.render.data import json_text
from hpcml.report.render.rows import value_csv, value_markdown, value_table, value_words
from hpcml.report.runs import metric_words, title
from hpcml.report.text import safe

_SECTIONS = ("settings", "environment", "outcome")


def differences_table(differences: RunDiff, *, console: Console) -> RenderableType:
    """Return a table for each section (settings, environment, outcome) that has entries.

    A value that a run does not have is an empty cell. The last line is the `remark`.
    """
    first, second = differences.first, differences.second
    headings = ("", safe(f"{first.uid} {title(first)}".rstrip()), safe(f"{second.uid} {title(second)}".rstrip()))
    parts: list[RenderableType] = []
    for section in _SECTIONS:
        rows = [_words(row) for row in _rows(differences) if row[0] == section]
        if rows:
            table = value_table(headings, [row[1:] for row in rows], console=console)
            parts += [Text(f"{section}", style="bold"), Padding(table, (0, 0, 1, 2))]
    parts.append(Text(remark(differences)))
    return Group(*parts)


def remark(differences: RunDiff) -> str:
    """Return one line on how many entries are alike, or that all are."""
    return f"{differences.alike} more are alike" if differences.contrasts else "the two do not differ"


def differences_markdown(differences: RunDiff) -> str:
    """Return the differences as one Markdown table."""
    headings = ("", "", differences.first.uid, differences.second.uid)
    return value_markdown(headings, [_words(row) for row in _rows(differences)])


def differences_csv(differences: RunDiff) -> str:
    """Return the differences as CSV, one line for each: section, key, and the values of both runs."""
    return value_csv(("section", "key", "first", "second"), _rows(differences))


def differences_json(differences: RunDiff) -> str:
    """Return one JSON object: for each section, the two values by key; null is a value that a run does not have.

    `first` and `second` are the uids, `alike` is the number of entries that do not differ.
    """
    sections = {
        section: {
            each.key: [encode(each.first), encode(each.second)]
            for each in differences.contrasts
            if each.section == section
        }
        for section in _SECTIONS
    }
    whose = {"first": differences.first.uid, "second": differences.second.uid, "alike": differences.alike}
    return json_text({**whose, **sections})


def _rows(differences: RunDiff) -> list[tuple[str, str, object, object]]:
    return [(each.section, each.key, each.first, each.second) for each in differences.contrasts]


def _words(row: tuple[str, str, object, object]) -> tuple[str, str, str, str]:
    """Return a row as people read it: the key tells the unit of its values."""
    section, key, first, second = row
    return section, key, _value_words(first, key), _value_words(second, key)


def _value_words(value: object, key: str) -> str:
    if key.startswith("metrics.") and isinstance(value, float) and math.isnan(value):
        return metric_words(value)
    return value_words(value, key)
