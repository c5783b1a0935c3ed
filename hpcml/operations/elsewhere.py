"""Folders of run directories that lie elsewhere than in HPCML_HOME: each is a link in it, and is read like its own."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import ConfigError
from hpcml.places import Places
from hpcml.rundir import find_run_dirs

_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A folder that is read from now on, and how many runs lie in it."""

    folder: Path
    runs: int
    is_new: bool  # False: it was read before


def roots(places: Places) -> list[Path]:
    """Return every folder whose runs belong into the store: of two copies of a run the one in the earlier counts."""
    return [places.runs, *folders(places)]


def folders(places: Places) -> list[Path]:
    """Return the folders that were given, the first one first; one that is not there at the moment is among them."""
    found = (Path(target) for link in _links(places) if (target := _target(link)) is not None)
    return list(dict.fromkeys(found))


def look_at(places: Places, path: Path) -> Given:
    """Return what lies in *path*: a run directory, a folder of some, or another HPCML_HOME; refuse what holds none."""
    folder = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - keeps the user's symbolic links
    if not folder.is_dir():
        raise ConfigError(f"{path} is no folder: name a run directory, or a folder of some")
    if (folder / "runs").is_dir() and not (folder / "run.json").exists():
        folder /= "runs"  # of another HPCML_HOME
    runs = sum(1 for _ in find_run_dirs(folder))
    if not runs:
        raise ConfigError(f"{path} holds no run directory: there is no run.json in it, nor one or two folders below")
    known = (root.resolve() for root in roots(places))
    is_new = not any(folder.resolve().is_relative_to(root) for root in known)
    return Given(folder=folder, runs=runs, is_new=is_new)


def let_go(places: Places, path: Path) -> tuple[Path, bool]:
    """Read the folder *path* no more; return it as it was noted down, and whether it was."""
    folder = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - as in look_at
    for candidate in (folder, folder / "runs"):
        links = [link for link in _links(places) if _target(link) == str(candidate)]
        for link in links:
            link.unlink(missing_ok=True)
        if links:
            return candidate, True
    return folder, False


def note_down(places: Places, folder: Path) -> None:
    """Have *folder* among the `roots` from now on."""
    name = _UNSAFE.sub("_", folder.name)[:100]
    try:
        places.elsewhere.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = len(list(_links(places)))
        while True:
            number += 1  # the numbers are the order
            try:
                (places.elsewhere / f"{number:04d}-{name}").symlink_to(folder)
            except FileExistsError:
                continue
            return
    except OSError as error:
        raise ConfigError(f"{places.elsewhere} cannot be written: {error.strerror}") from error


def _links(places: Places) -> list[Path]:
    try:
        return sorted(path for path in places.elsewhere.iterdir() if not path.name.startswith("."))
    except OSError:
        return []


def _target(link: Path) -> str | None:
    try:
        return os.readlink(link)  # noqa: PTH115 - a name that needs no folder behind it
    except OSError:
        return None  # no link: not ours
