"""Where hpcml keeps things for this user: run directories, the store, and what only this machine knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import ConfigError

_SERVER = re.compile(r"(--store=)?postgres\S*://")
_BEFORE_HOST = re.compile(r"(?<=://)([^:/@?]*):[^?]*@")  # to the last @: one in a password should be written %40
_IN_OPTIONS = re.compile(r"([?&](?:ssl)?password=)[^&]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Absolute places; nothing here has been created."""

    home: Path
    store_url: str

    @property
    def runs(self) -> Path:
        """Run directories, as ``runs/<experiment>/<uid>``."""
        return self.home / "runs"

    @property
    def elsewhere(self) -> Path:
        """Links to folders of run directories that lie elsewhere and were given to ``hpcml ingest``."""
        return self.home / "elsewhere"

    def tends(self, run_dir: str | Path) -> bool:
        """Tell whether the run in *run_dir* is this user's to watch, retry and end, and not one only read in here."""
        return Path(run_dir).is_relative_to(self.runs)

    @property
    def submissions(self) -> Path:
        """What local submissions leave: batches and the queue's own log."""
        return self.home / "submissions"

    @property
    def open_submissions(self) -> Path:
        """One file for each submission that goes on, or that was interrupted and waits to be finished."""
        return self.submissions / "open"

    @property
    def checksums(self) -> Path:
        """The SHA-256 of images that were read, and what tells that they are still the same."""
        return self.home / "checksums"

    @property
    def code(self) -> Path:
        """Snapshots of the code that runs, as ``code/<digest>``."""
        return self.home / "code"


def locate(environ: Mapping[str, str], *, home: str | None = None, store: str | None = None) -> Places:
    """Return the places: command line, then HPCML_HOME and HPCML_STORE, then XDG_DATA_HOME, then ~/.local/share.

    Never a temporary folder: what is there is the user's results.
    """
    chosen = home or environ.get("HPCML_HOME")
    if not chosen:
        base = environ.get("XDG_DATA_HOME") or (f"{environ['HOME']}/.local/share" if environ.get("HOME") else None)
        if base is None:
            raise ConfigError("HPCML_HOME is not set and neither is HOME: set HPCML_HOME to where runs shall be kept")
        chosen = f"{base}/hpcml"
    root = Path(chosen).expanduser().absolute()
    return Places(home=root, store_url=store or environ.get("HPCML_STORE") or str(root / "store.db"))


def without_password(word: str) -> str:
    """Return *word* as it may be shown and written down: where it is a server's URL, its password replaced."""
    if not _SERVER.match(word):
        return word
    return _IN_OPTIONS.sub(r"\1***", _BEFORE_HOST.sub(r"\1:***@", word))
