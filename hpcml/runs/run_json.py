"""run.json as a file: its format, and who may have written what is executed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcml.errors import ConfigError, HpcmlError
from hpcml.runs.files import object_in
from hpcml.runs.layout import home_of
from hpcml.runs.private import read

FORMAT = 1
IMPORTED = "imported"  # in place of the format, and of the scheduler: another tool ran it, and hpcml cannot again


def read_own(path: Path) -> dict[str, Any]:
    """Return the JSON object in *path*, which lies in a home; raise `NotPrivateError` where it may be another user's.

    Raises `HpcmlError` where it cannot be read.
    """
    return object_in(path, lambda: read(path, top=home_of(path)))


def must_be_ours(path: Path, raw: dict[str, Any]) -> None:
    """Raise `HpcmlError` where *raw* has another format than this hpcml reads."""
    if raw.get("format") != FORMAT:
        raise HpcmlError(f"{path} has format {raw.get('format')!r}; this hpcml reads format {FORMAT}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put *path* in front of a value that is not valid."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
