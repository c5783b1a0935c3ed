"""The copy of a published store that its writer works in: on this machine, private, thrown away when in doubt.

A note beside the copy says which publication it equals. It is removed before the copy is changed and written again
after that was published: whatever kills the writer in between, the next one copies anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import socket
import sqlite3
import stat
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from hpcml.store.mounts import file_system_of, is_local
from hpcml.store.sqlite_file import BUSY_TIMEOUT_S
from hpcml.store.sqlite_path import Header

_ROOM = 8 << 20  # for what is read in, besides twice the size of the store
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SIDES = ("-journal", "-wal")  # what a direct user may have left to be finished beside a file


@dataclass(frozen=True, slots=True)
class WorkingCopy:
    """A file that can be brought to what is published, changed and published in turn."""

    file: Path
    is_local: bool  # else it lies beside the store, where no lock can be relied on, and is used once

    @classmethod
    def of(cls, file: Path, environ: Mapping[str, str]) -> WorkingCopy:
        """Return the copy for the store *file* of this user on this host."""
        size = file.stat().st_size if file.exists() else 0
        place = hashlib.sha256(os.fsencode(f"{socket.gethostname()}:{file}")).hexdigest()[:16]
        for base in (environ.get("XDG_RUNTIME_DIR"), environ.get("TMPDIR"), "/tmp", "/var/tmp"):  # noqa: S108 - private
            folder = None if not base else _private_folder(Path(base), place, 2 * size + _ROOM)
            if folder is not None:
                return cls(folder / "copy.db", is_local=True)
        return cls(beside(file, "copy"), is_local=False)

    def connect(self) -> sqlite3.Connection:
        """Open it; its holder is the only one who does."""
        unlocked = "" if self.is_local else "?nolock=1"
        return sqlite3.connect(f"file:{quote(str(self.file))}{unlocked}", uri=True, timeout=BUSY_TIMEOUT_S)

    @property
    def changes(self) -> int:
        """How often it was changed, ever."""
        return Header.of(self.file).changes

    def refresh(self, published: Path) -> None:
        """Make it equal to *published*, which nobody replaces meanwhile; raises `OSError`."""
        if not published.exists():
            self.discard()
        elif not self._equals(published):
            self.discard()
            shutil.copyfile(published, self.file)
            self.file.chmod(0o600)
            for side in _SIDES:  # of a store that was used directly
                with suppress(FileNotFoundError):
                    shutil.copyfile(f"{published}{side}", f"{self.file}{side}")
        self._note.unlink(missing_ok=True)

    def note(self, published: Path) -> None:
        """Write down that it equals *published*."""
        if self.is_local:
            unfinished = self._note.with_suffix(".new")
            unfinished.write_text(json.dumps(_identity(published)), encoding="utf-8")
            unfinished.replace(self._note)

    def number(self, publication: int) -> None:
        """Write the number of the next publication into it."""
        with closing(self.connect()) as connection:
            prepare_copy(connection)
            connection.execute(f"PRAGMA user_version = {publication}")
            connection.commit()

    def discard(self) -> None:
        """Remove it, and whatever SQLite wrote beside it."""
        self._note.unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)
        remove_sides(self.file)

    @property
    def _note(self) -> Path:
        return Path(f"{self.file}.equals")

    def _equals(self, published: Path) -> bool:
        try:
            noted = json.loads(self._note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return bool(noted == _identity(published)) and self.file.exists()


def prepare_copy(connection: sqlite3.Connection) -> None:
    """Let SQLite be fast: after a crash or a power cut the copy is not used again."""
    connection.execute("PRAGMA journal_mode = MEMORY")
    connection.execute("PRAGMA synchronous = OFF")


def remove_sides(file: Path) -> None:
    """Remove what SQLite wrote beside *file*, which needs none of it."""
    for side in (*_SIDES, "-shm"):
        Path(f"{file}{side}").unlink(missing_ok=True)


def beside(file: Path, what: str) -> Path:
    """Return a new name beside *file*, of what is removed by the next writer if this one cannot."""
    return file.parent / f"{_prefix(file)}{what}-{secrets.token_hex(8)}"


def leftovers(file: Path) -> list[Path]:
    """Return what writers left beside *file*; whoever holds the lease may remove it."""
    return [path for path in file.parent.iterdir() if path.name.startswith(_prefix(file))]


def _prefix(file: Path) -> str:
    return f".{file.name}.new-"


def _identity(published: Path) -> dict[str, object]:
    seen = published.stat()
    return {
        "file": [seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns],
        "publication": Header.of(published).publication,
        "boot": _BOOT.read_text(encoding="utf-8").strip() if _BOOT.exists() else "",  # a power cut may have torn it
    }


def _private_folder(base: Path, place: str, room: int) -> Path | None:
    """Return a folder below *base* that only we can enter; None if there is none with so much room."""
    ours = base / f"hpcml-{os.getuid()}"
    try:
        if not is_local(file_system_of(base)) or shutil.disk_usage(base).free < room:
            return None
        for folder in (ours, ours / place):
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            seen = folder.lstat()
            if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or stat.S_IMODE(seen.st_mode) & 0o077:
                return None  # somebody else's, or open to others
        with tempfile.TemporaryFile(dir=ours / place):
            return ours / place
    except OSError:
        return None
