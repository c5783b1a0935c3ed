"""Where the files that ship with hpcml lie: in the wheel's data folder, or in the checkout of an editable install."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource_dir(name: str) -> Path:
    """Return the directory of the shipped *name* (conf, containers, recipes), and no old copy of it."""
    # An editable install's package is the checkout's, so a `_data` beside this file exists in a wheel alone.
    shipped = _PACKAGE / "_data" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name


def client_dir() -> Path:
    """Return the package `hpcml_client`, which a workload must be able to import wherever it runs."""
    return _PACKAGE.parent / "hpcml_client"
