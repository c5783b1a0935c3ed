"""What the loggers of frameworks hand over: rows with numbers among other things. The callbacks here share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcml_client.client import Client


def report_row(run: Client, row: Mapping[str, Any], step: int | None) -> None:
    """Report the numbers of *row* at *step*, and leave out what is none: a logger must not end a training.

    Nested rows give names with a slash.
    """
    numbers = dict(numbers_of(row))
    if numbers:
        run.metrics(numbers, step)


def numbers_of(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """Yield names, with *before* in front, and values of what is a number in *row*."""
    for key, value in row.items():
        name = before + str(key)
        if isinstance(value, Mapping):
            yield from numbers_of(value, name + "/")
        elif name and not isinstance(value, (bool, str, bytes)):
            try:
                yield name, float(value)
            except (TypeError, ValueError, RuntimeError, OverflowError):  # several numbers, a picture, None
                continue
