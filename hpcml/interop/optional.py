"""What to say where the library of a format is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcml.errors import ConfigError


@contextmanager
def needing(package: str, *, extra: str) -> Iterator[None]:
    """Turn a failed import of *package* into one line that names the extra it comes with."""
    try:
        yield
    except ImportError as error:
        missing = error.name or package
        raise ConfigError(f"{missing} is not installed: pip install 'hpcml[{extra}]'") from error
