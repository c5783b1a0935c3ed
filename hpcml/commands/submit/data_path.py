"""Checks of data.path: it is of the kind that the recipe reads, and not empty; and which paths of a run are absent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcml.errors import ConfigError
from hpcml.model.run import Run

_KINDS = {"file": "a file", "folder": "a folder", "any": "a file or a folder"}  # as recipe.toml says it


def absent_paths(run: Run) -> Iterator[str]:
    """Yield a line for each path, of the data and of an image, that *run* names and that this machine has not.

    Raises `ConfigError` for one that cannot be looked at.
    """
    for key, path in (("data.path", run.data.path), ("container.path", run.container.path)):
        if path is not None and not _ask(Path(path), Path.exists, key):
            yield f"{key}={path} does not exist"


def check_kind(path: str | None, kind: str, *, data: str) -> None:
    """Raise `ConfigError` unless *path* is what the recipe reads *data* from: of the right kind, readable, not empty.

    *kind* is file, folder or any, as the recipe's recipe.toml has it. None is an error too; what is absent is none
    here (`absent_paths`).
    """
    if path is None:
        raise ConfigError(f"data={data} needs data.path: {_KINDS[kind]}")
    place = Path(path)
    if not _ask(place, Path.exists):
        return
    is_folder = _ask(place, Path.is_dir)
    if kind != "any" and is_folder is not (kind == "folder"):
        found = "folder" if is_folder else "file"
        raise ConfigError(f"data.path={path} is {_KINDS[found]}: data={data} is read from {_KINDS[kind]}")
    if _ask(place, _is_empty):
        raise ConfigError(f"data.path={path} is empty: data={data} is read from it")
    if not os.access(place, os.R_OK | (os.X_OK if is_folder else 0)):
        raise ConfigError(f"data.path={path} cannot be read by you: change its permissions")


def _is_empty(place: Path) -> bool:
    if place.is_dir():
        with os.scandir(place) as entries:  # not listed: data sets have folders with millions of files
            return next(entries, None) is None
    return place.stat().st_size == 0


def _ask(place: Path, question: Callable[[Path], bool], key: str = "data.path") -> bool:
    try:
        return question(place)
    except OSError as error:
        raise ConfigError(f"{key}={place} cannot be looked at: {error.strerror}") from error
