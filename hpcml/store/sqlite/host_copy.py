"""A store on a file system that several machines share: each works in a copy of its own, and leaves a snapshot there.

The snapshot is only ever replaced as a whole, by one rename, so that no lock of that file system is ever needed. Since
a store is an index of run directories, nothing is lost where two machines replace it at the same time: what the loser
had read, it reads again. A copy that equals no snapshot any more gives way to the newest one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import sqlite3
import stat
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcml.errors import StoreError
from hpcml.mounts import file_system_of, is_local
from hpcml.runs.atomic import replacing, sync, write_text
from hpcml.runs.liveness import boot_id
from hpcml.store.database import Database
from hpcml.store.sqlite.file import open_direct
from hpcml.store.sqlite.location import Mode, Placement, check_file

_ROOM = 64 << 20  # bytes that are free beside the copies
_SIDES = ("-wal", "-shm", "-journal")


def open_published(placement: Placement, environ: Mapping[str, str]) -> Database:
    """Return the store whose snapshot lies in *placement*, by way of this host's copy; raises `StoreError`."""
    check_file(placement.path)
    try:
        copy = HostCopy.of(placement.path, environ)
        copy.refresh()
    except OSError as error:
        raise StoreError(f"the store {placement.path} cannot be opened: {error.strerror}") from error
    here = replace(placement, path=copy.file, file_system=file_system_of(copy.file), mode=Mode.direct)
    store = open_direct(here, name=str(placement.path))
    return replace(
        store,
        used=str(placement),
        path=placement.path,
        publish=copy.publish,
        is_changed=not placement.path.exists(),
        on_close=copy.let_go,
    )


@dataclass(slots=True, kw_only=True)
class HostCopy:
    """A copy of the snapshot *published* on this machine, in a folder that only this user can enter.

    While it is used, nobody replaces it: all who use it hold a shared lock, which local file systems have.
    """

    published: Path
    folder: Path
    _lock: int | None = field(default=None)

    @classmethod
    def of(cls, published: Path, environ: Mapping[str, str]) -> HostCopy:
        """Return the copy of this user on this host; nothing is copied yet.

        It lies in the first of XDG_RUNTIME_DIR, TMPDIR, /tmp and /var/tmp that is local and has room for it.
        """
        published = published.resolve()  # a link to it stays one
        size = published.stat().st_size if published.exists() else 0
        place = hashlib.sha256(os.fsencode(f"{socket.gethostname()}:{published}")).hexdigest()[:16]
        bases = [environ.get("XDG_RUNTIME_DIR"), environ.get("TMPDIR"), "/tmp", "/var/tmp"]  # noqa: S108 - private
        for base in filter(None, bases):
            if (folder := _private_folder(Path(base), place, 2 * size + _ROOM)) is not None:
                return cls(published=published, folder=folder)
        room = f"no folder of this machine has room for a copy of {2 * size + _ROOM >> 20} MiB that is yours alone"
        raise StoreError(f"the store {published} cannot be opened: {room}: name one by TMPDIR")

    @property
    def file(self) -> Path:
        """The copy."""
        return self.folder / "copy.db"

    def refresh(self) -> None:
        """Make the copy equal to the snapshot where that is another than it was made of; raises `OSError`."""
        self._lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        if self._is_current():
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            return
        with suppress(BlockingIOError):  # others use it, and go on with what they have
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_current():
                self._copy()
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def let_go(self) -> None:
        """Let others replace the copy."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def publish(self) -> None:
        """Put what is in the copy in the place of the snapshot, unless another machine was faster.

        Raises `StoreError` where there is no room for it.
        """
        if not self._is_current():
            return
        try:
            with tempfile.TemporaryDirectory(dir=self.folder, prefix="publication-") as private:
                whole = Path(private) / "store.db"
                os.close(os.open(whole, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
                with closing(sqlite3.connect(self.file)) as source, closing(sqlite3.connect(whole)) as target:
                    source.backup(target)
                    target.execute("PRAGMA journal_mode = DELETE")
                    target.execute("PRAGMA user_version = 1")  # a snapshot
                    target.commit()
                rights = self.published.stat().st_mode & 0o777 if self.published.exists() else 0o600
                with replacing(self.published, durable=True) as draft:
                    shutil.copyfile(whole, draft)
                    draft.chmod(rights)
                    identity = _identity_of(draft)  # and not of what lies there later, which may be another machine's
            sync(self.published.parent)
            write_text(self.folder / "note", identity)
        except OSError as error:
            raise StoreError(f"the store {self.published} cannot be written: {error.strerror}") from error

    def _copy(self) -> None:
        for side in ("", *_SIDES):
            Path(f"{self.file}{side}").unlink(missing_ok=True)
        (self.folder / "note").unlink(missing_ok=True)
        identity = _identity_of(self.published)
        if self.published.exists():
            for side in ("", "-wal"):  # that of a store that was used directly until now
                with suppress(FileNotFoundError):
                    shutil.copyfile(f"{self.published}{side}", f"{self.file}{side}")
            self.file.chmod(0o600)
        write_text(self.folder / "note", identity)

    def _is_current(self) -> bool:
        try:
            return (self.folder / "note").read_text(encoding="utf-8") == _identity_of(self.published)
        except FileNotFoundError:
            return False


def _identity_of(snapshot: Path) -> str:
    """Return what tells *snapshot* from others, until the next start of the machine; it keeps that when renamed."""
    try:
        seen = snapshot.stat()
    except FileNotFoundError:
        return f"nothing {boot_id()}"
    return f"{seen.st_ino} {seen.st_size} {seen.st_mtime_ns} {boot_id()}"


def _private_folder(base: Path, place: str, room: int) -> Path | None:
    """Return a folder below *base* that only this user can enter, with *room* bytes free; else None."""
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
