"""The list of folders of run directories outside of HPCML_HOME, which ``sync --add`` writes and collecting reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import ConfigError, require
from hpcml.paths import Places, check_text
from hpcml.runs.atomic import write_text
from hpcml.runs.layout import find_run_dirs
from hpcml.runs.private import make_home


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A folder that is read from now on, and how many runs lie in it."""

    folder: Path
    runs: int
    is_new: bool  # False: it was read before


def roots(places: Places) -> list[Path]:
    """Return every folder whose runs belong into the store, that of HPCML_HOME first.

    Of two copies of a run (equal uids) the one in the earlier folder counts.
    """
    return [places.runs, *folders(places)]


def folders(places: Places) -> list[Path]:
    """Return the folders that were given to ``hpcml sync --add``, in the order in which they were given.

    One that does not exist at the moment (an unmounted disk) is among them, so that its runs are not taken for removed.
    """
    try:
        listed = places.elsewhere.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [Path(folder) for folder in dict.fromkeys(listed) if folder]


def look_at(places: Places, path: Path) -> Given:
    """Return what lies in *path*: a run directory, a folder of some, or another HPCML_HOME; nothing is written.

    Raises `ConfigError` where it is no folder, holds no run directory, or has a name that is no text.
    """
    folder = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - keeps the user's symbolic links
    check_text(folder, "PATH")
    require("\n" not in str(folder), f"{str(folder)!r} has two lines: give it another name")
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
    """Read the folder *path* no more; return it as it was recorded, and whether it was.

    For another HPCML_HOME that is the folder ``runs`` in it. The folder itself and its runs in the store stay.
    """
    folder = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - as in look_at
    listed = folders(places)
    given = next((candidate for candidate in (folder, folder / "runs") if candidate in listed), None)
    if given is None:
        return folder, False
    _write(places, [other for other in listed if other != given])
    return given, True


def note_down(places: Places, folder: Path) -> None:
    """Add *folder* to the `roots` from now on; raise `ConfigError` where that cannot be written."""
    _write(places, [*folders(places), folder])


def _write(places: Places, listed: Sequence[Path]) -> None:
    try:
        make_home(places.home)
        write_text(places.elsewhere, "".join(f"{folder}\n" for folder in listed))
    except OSError as error:
        raise ConfigError(f"{places.elsewhere} cannot be written: {error.strerror}") from error
