"""Two runs side by side, in every form."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from hpcml.answers import Differences
from hpcml.codec import encode
from hpcml.report.plain_text import safe
from hpcml.report.run_words import title
from hpcml.report.value_table import as_json, value_csv, value_markdown, value_table, value_words

_SECTIONS = ("settings", "environment", "outcome")


def differences_table(differences: Differences, *, console: Console) -> RenderableType:
    """Return a table for each section in which something is to be shown."""
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


def remark(differences: Differences) -> str:
    """Return how much is alike."""
    return f"{differences.alike} more are alike" if differences.contrasts else "the two do not differ"


def differences_markdown(differences: Differences) -> str:
    """Return one Markdown table."""
    headings = ("", "", differences.first.uid, differences.second.uid)
    return value_markdown(headings, [_words(row) for row in _rows(differences)])


def differences_csv(differences: Differences) -> str:
    """Return one line for each thing."""
    return value_csv(("section", "key", "first", "second"), _rows(differences))


def differences_json(differences: Differences) -> str:
    """Return one JSON object: for each section, the two values by key."""
    sections = {
        section: {
            each.key: [encode(each.first), encode(each.second)]
            for each in differences.contrasts
            if each.section == section
        }
        for section in _SECTIONS
    }
    whose = {"first": differences.first.uid, "second": differences.second.uid, "alike": differences.alike}
    return as_json({**whose, **sections})


def _rows(differences: Differences) -> list[tuple[str, str, object, object]]:
    return [(each.section, each.key, each.first, each.second) for each in differences.contrasts]


def _words(row: tuple[str, str, object, object]) -> tuple[str, str, str, str]:
    section, key, first, second = row
    return section, key, value_words(first, key), value_words(second, key)
