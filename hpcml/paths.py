"""Where hpcml's files are: the user's data folder with runs and store (`Places`), and the files that ship with hpcml.

Shipped files (`resource_dir`) lie in the wheel's ``_data`` folder, or in the checkout of an editable install.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The absolute paths of the user's data; nothing here has been created yet."""

    home: Path
    store_url: str

    @property
    def runs(self) -> Path:
        """The run directories, as ``runs/<experiment>/<uid>``."""
        return self.home / "runs"

    @property
    def elsewhere(self) -> Path:
        """The list of folders of run directories outside of `runs` that were given to ``hpcml sync --add``."""
        return self.home / "elsewhere.txt"

    def tends(self, run_dir: str | Path) -> bool:
        """Tell whether hpcml manages the run in *run_dir* (may retry or cancel it).

        False for runs that were only ingested from elsewhere.
        """
        return Path(run_dir).is_relative_to(self.runs)

    @property
    def submissions(self) -> Path:
        """Files of submissions: batches, and what waits in the queue of this machine."""
        return self.home / "submissions"

    @property
    def open_submissions(self) -> Path:
        """One file for each submission that is in progress, or was interrupted and can be finished."""
        return self.submissions / "open"

    @property
    def submission_locks(self) -> Path:
        """Locks of processes that decide what is to be submitted."""
        return self.submissions / "locks"

    @property
    def checksums(self) -> Path:
        """Remembered SHA-256 sums of images, with what shows that the files have not changed since."""
        return self.home / "checksums"

    @property
    def code(self) -> Path:
        """Snapshots of the user's code, as ``code/<digest>``."""
        return self.home / "code"

    @property
    def studies(self) -> Path:
        """The definitions of searches, as ``studies/<study>.json``."""
        return self.home / "studies"

    @property
    def exports(self) -> Path:
        """What ``hpcml export`` remembers of what it wrote."""
        return self.home / "exports"

    @property
    def own(self) -> tuple[Path, ...]:
        """All folders in `home` that hpcml makes."""
        return (self.runs, self.submissions, self.checksums, self.code, self.studies, self.exports)


def begin_in_utf8() -> None:
    """Begin this process again in Python's UTF-8 mode where names of files are in another encoding.

    That is ASCII (PYTHONUTF8=0, LC_ALL=C) or a locale's own (LC_ALL=de_DE.ISO-8859-1). Journals and stores hold paths
    as text: one with an é could not be looked up, or would be another one. The process keeps its id, and the programs
    that it starts do not inherit the mode.
    """
    if sys.getfilesystemencoding() != "utf-8" and sys.executable:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606 - ourselves


def locate(environ: Mapping[str, str], *, home: str | None = None, store: str | None = None) -> Places:
    """Return the user's places, from the first that is given.

    That is: the command line (*home*, *store*), HPCML_HOME and HPCML_STORE, XDG_DATA_HOME, ~/.local/share. Never a
    temporary folder, since these are the user's results. Raises `ConfigError` where HOME is not set either, and for a
    path that is no text.
    """
    chosen = home or environ.get("HPCML_HOME")
    if not chosen:
        base = environ.get("XDG_DATA_HOME") or (f"{environ['HOME']}/.local/share" if environ.get("HOME") else None)
        if base is None:
            raise ConfigError("HPCML_HOME is not set and neither is HOME: set HPCML_HOME to where runs shall be kept")
        chosen = f"{base}/hpcml"
    root = Path(chosen).expanduser().absolute()
    check_text(root, "HPCML_HOME")
    store_url = store or environ.get("HPCML_STORE") or str(root / "store.db")
    return Places(home=root, store_url=store_url)


def home_of_user() -> Path:
    """Return this user's home; / where neither HOME nor the machine tells it, as containers have it.

    A container may run under any user id, and a directory of users may be away.
    """
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def check_text(path: Path, field: str) -> None:
    """Raise `ConfigError` where *path*, given as *field*, is no UTF-8 text: no store and no job's script has it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{field}={path} is not in UTF-8, and runs in it could not be found again: choose another, or rename it"
        ) from None


_PACKAGE = Path(__file__).resolve().parent


def resource_dir(name: str) -> Path:
    """Return the directory of the shipped *name* (conf, containers, recipes)."""
    # An editable install's package is the checkout's, so a `_data` beside this file exists in a wheel alone.
    shipped = _PACKAGE / "_data" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name


def is_source_of_hpcml(folder: Path) -> bool:
    """Tell whether *folder* is the root of a checkout of hpcml; its conf/ and recipes/ are no user's own."""
    return (folder / _PACKAGE.name / "model" / "recipe.py").is_file()
