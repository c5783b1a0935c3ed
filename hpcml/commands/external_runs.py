"""Links to folders of run directories outside of HPCML_HOME; ``sync --add`` makes them, collecting follows them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import ConfigError
from hpcml.paths import Places, check_text
from hpcml.runs.layout import find_run_dirs
from hpcml.runs.private import make_folder, make_home

_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")


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
    found = (Path(target) for link in _links(places) if (target := _target(link)) is not None)
    return list(dict.fromkeys(found))


def look_at(places: Places, path: Path) -> Given:
    """Return what lies in *path*: a run directory, a folder of some, or another HPCML_HOME; nothing is written.

    Raises `ConfigError` where it is no folder, holds no run directory, or has a name that is no text.
    """
    folder = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - keeps the user's symbolic links
    check_text(folder, "PATH")
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
    for candidate in (folder, folder / "runs"):
        links = [link for link in _links(places) if _target(link) == str(candidate)]
        for link in links:
            link.unlink(missing_ok=True)
        if links:
            return candidate, True
    return folder, False


def note_down(places: Places, folder: Path) -> None:
    """Add *folder* to the `roots` from now on, as a numbered symbolic link in ``HPCML_HOME/elsewhere``.

    Raises `ConfigError` where the link cannot be written.
    """
    name = _UNSAFE.sub("_", folder.name)[:100]
    try:
        make_home(places.home)
        make_folder(places.elsewhere)
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
