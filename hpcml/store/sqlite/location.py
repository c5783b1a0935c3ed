"""The file of a store before it is used: its path, its header, its schema, its file system, and the mode of its use.

`placement_of` decides between the modes: `direct` on a local file system, `published` on one that several machines may
share, or as HPCML_STORE_MODE says.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hpcml.errors import StoreError
from hpcml.mounts import MOUNTS, file_system_of, is_local
from hpcml.runs.files import open_regular
from hpcml.store.database import APPLICATION_ID

_MAGIC = b"SQLite format 3\0"
_WITH_WAL = 2  # the format that a file in write-ahead mode has


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteHeader:
    """The first 100 bytes of an SQLite file (sqlite.org/fileformat2.html).

    Read without SQLite, so that looking takes no lock and changes nothing. Used fields: the file format at byte 18, the
    user version at 60, the application id at 68.
    """

    is_empty: bool
    is_sqlite: bool
    is_ours: bool
    has_wal: bool
    is_published: bool  # a snapshot, which nobody changes

    @classmethod
    def of(cls, path: Path) -> SqliteHeader:
        """Return the header of *path*; an absent file is like an empty one. Raises `OSError`."""
        try:
            with open_regular(path) as file:
                head = file.read(100)
        except FileNotFoundError:
            head = b""
        is_sqlite = head.startswith(_MAGIC)
        return cls(
            is_empty=not head,
            is_sqlite=is_sqlite,
            is_ours=is_sqlite and head[68:72] == APPLICATION_ID.to_bytes(4, "big"),
            has_wal=is_sqlite and _WITH_WAL in head[18:20],
            is_published=is_sqlite and any(head[60:64]),
        )


def is_on_server(url: str) -> bool:
    """Tell whether *url* is the address of a server; a file may be called as one.

    >>> is_on_server("postgresql://db.example/hpcml"), is_on_server("postgres-runs.db")
    (True, False)
    """
    return url.startswith("postgres") and "://" in url


def path_of(url: str) -> Path:
    """Return the absolute path that *url* names; symbolic links in it are kept.

    *url* is a path, which may begin with ``~``, or ``sqlite:///path``. Nothing is looked up on the disk. Raises
    `StoreError` for other schemes, for URLs with options, and for stores in memory.
    """
    if "://" not in url:
        return Path(os.path.abspath(Path(url).expanduser()))  # noqa: PTH100 - keeps the user's symbolic links
    scheme = url.split("://", 1)[0]
    if scheme.split("+")[0] != "sqlite":
        raise StoreError(
            f"the store {scheme}://... is not supported: give the path of an SQLite file, or postgresql://"
        )
    from sqlalchemy.engine import make_url  # noqa: PLC0415 - most are paths
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(f"the store {url!r} is no URL: write sqlite:///path") from error
    plain = scheme in ("sqlite", "sqlite+pysqlite") and not parsed.query and not parsed.host
    if not plain or parsed.database in (None, "", ":memory:"):
        raise StoreError(f"the store {url!r} names no file: write sqlite:///path (four slashes for an absolute one)")
    return Path(os.path.abspath(str(parsed.database)))  # noqa: PTH100


def check_place(path: Path) -> None:
    """Raise `StoreError` for a path at which no store can be.

    Refused are a missing folder, a directory or a device in place of a file, and a new file in a folder that this user
    may not write to. Folders are never created.
    """
    folder = path.parent
    if not folder.is_dir():
        raise StoreError(f"the store's folder {folder} does not exist: create it (mkdir -p {folder}) or choose another")
    if path.is_dir():
        raise StoreError(f"the store {path} is a directory: name a file in it")
    if path.exists() and not path.is_file():
        raise StoreError(f"the store {path} is no regular file: choose another path")
    if not path.exists() and not _may_be_written(folder):
        raise StoreError(f"the store's folder {folder} is not writable for you")


def check_file(path: Path) -> None:
    """Raise `StoreError` for a file that is no store of ours; an absent or empty one is accepted.

    Ours is a file whose application id is hpcml's. The file is read and not changed.
    """
    try:
        if _looks_like_ours(path) or _looks_like_ours(path):  # twice: the first creator may have committed in between
            return
        header = SqliteHeader.of(path)
    except OSError as error:
        raise StoreError(f"the store {path} cannot be opened: {error.strerror}") from error
    if not header.is_sqlite:
        raise StoreError(f"the store {path} is no database: it was left as it is; {_way_out(path)}")
    raise StoreError(another_programs(path))


def _way_out(path: Path) -> str:
    """Return what to do about a file that is no database; beside run directories it was the store made of them."""
    if path.name == "store.db" and (path.parent / "runs").is_dir():
        moved = shlex.join(["mv", str(path), f"{path}.damaged"])
        return f"{moved} and hpcml sync make it anew from the run directories"
    return "choose another path"


def another_programs(path: Path) -> str:
    """Return the message about a database that another program has made."""
    return f"the store {path} is a database of another program: it was left as it is; choose another path"


def only_read(path: Path) -> bool:
    """Whether the store in *path* exists and this user cannot change it.

    An absent file is not one: it can be created, or `check_place` refuses
    it.
    """
    # SQLite writes its journal beside the file, and a publication takes its place: the folder counts too
    return path.exists() and not (os.access(path, os.W_OK) and _may_be_written(path.resolve().parent))


def _may_be_written(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _looks_like_ours(path: Path) -> bool:
    header = SqliteHeader.of(path)
    # a first creator is committing, or died so: SQLite finishes or undoes that, and then we look again
    return header.is_empty or header.is_ours or Path(f"{path}-journal").exists()


def damaged(name: str, how: str) -> str:
    """Return one line on a file that SQLite cannot read, with what to do; *how* is SQLite's message.

    A store can always be made anew, since all that it holds is in the run directories.
    """
    return f"the store {name} is damaged ({how}): hpcml sync --check says more; {_anew(name)}"


def _anew(name: str) -> str:
    return f"rm -f {name} {name}-* and hpcml sync make it anew"


VARIABLE = "HPCML_STORE_MODE"


class Mode(Enum):
    """How processes use the file of a store."""

    direct = "direct"  # SQLite works in the file, and its locks keep order: all who use it are on one host
    published = "published"  # the file is a snapshot that is only ever replaced; no lock of a file system is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How a store's file is used, and why.

    `str()` of it is the line for people that `Database.used` is.
    """

    path: Path
    file_system: str | None
    mode: Mode
    why: str

    @property
    def is_local(self) -> bool:
        """Whether the file lies on a file system of this machine alone."""
        return is_local(self.file_system)

    def __str__(self) -> str:
        return f"on {self.file_system or 'an unknown file system'}, {self.mode.value}: {self.why}"

    @property
    def is_doubtful(self) -> bool:
        """Whether the file is used directly on a file system where SQLite's locks may not work."""
        return self.mode is Mode.direct and not self.is_local


def placement_of(path: Path, wanted: str = "auto", *, mounts: Path = MOUNTS) -> Placement:
    """Return how the store in *path* is to be used; *wanted* is auto or the name of a mode.

    Raises `OSError`, and `StoreError` for another *wanted*. Auto is `published` for a file on a network or unknown file
    system, and for one that was published before; else `direct`. The file is read, not opened as a database.
    """
    kind = file_system_of(path, mounts=mounts)
    if wanted in Mode.__members__:
        mode, why = Mode[wanted], f"{VARIABLE} says so"
    elif wanted != "auto":
        raise StoreError(f"{VARIABLE}={wanted!r} is none of auto, {', '.join(Mode.__members__)}")
    elif not is_local(kind):
        mode, why = Mode.published, f"{kind or 'an unknown file system'} may be used by several machines at once"
    elif SqliteHeader.of(path).is_published:
        # another machine sees it over a network, or did: it counts how all who use it do so
        mode, why = Mode.published, f"it was published before; {VARIABLE}=direct ends that"
    else:
        mode, why = Mode.direct, f"{kind} is a file system of this machine"
    return Placement(path=path, file_system=kind, mode=mode, why=why)
