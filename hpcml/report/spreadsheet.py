"""One value as a field of a CSV file."""

from __future__ import annotations

from hpcml.report.plain_text import safe


def csv_cell(value: object) -> object:
    """Return *value* as csv should write it: None empty, booleans as in JSON, text without control characters."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    text = safe(value)
    # A spreadsheet would run what begins so (OWASP, CSV injection); a leading quote makes it text.
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
