"""The file that a store is in, before SQLite as much as opens it: where it is, whose it is, how it is used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from hpcml.errors import StoreError
from hpcml.store.tables import APPLICATION_ID

_MAGIC = b"SQLite format 3\0"
_WITH_WAL = 2  # the format that a file in write-ahead mode has


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the first 100 bytes of a file say (sqlite.org/fileformat2.html)."""

    is_empty: bool
    is_sqlite: bool
    is_ours: bool
    has_wal: bool
    changes: int  # how often it was changed by a transaction
    publication: int  # a random number that each publication has anew; 0: it is used directly

    @classmethod
    def of(cls, path: Path) -> Header:
        """Read it; an absent file is like an empty one. Raises `OSError`."""
        try:
            with path.open("rb") as file:
                head = file.read(100)
        except FileNotFoundError:
            head = b""
        is_sqlite = head.startswith(_MAGIC)
        return cls(
            is_empty=not head,
            is_sqlite=is_sqlite,
            is_ours=is_sqlite and head[68:72] == APPLICATION_ID.to_bytes(4, "big"),
            has_wal=is_sqlite and _WITH_WAL in head[18:20],
            changes=int.from_bytes(head[24:28], "big") if is_sqlite else 0,
            publication=int.from_bytes(head[60:64], "big") if is_sqlite else 0,
        )


def path_of(url: str) -> Path:
    """Return the absolute path that *url* names; a symbolic link in it stays."""
    if "://" not in url:
        return Path(os.path.abspath(Path(url).expanduser()))  # noqa: PTH100 - keeps the user's symbolic links
    scheme = url.split("://", 1)[0]
    if scheme.split("+")[0] != "sqlite":
        raise StoreError(
            f"the store {scheme}://... is not supported: give the path of an SQLite file, or postgresql://"
        )
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(f"the store {url!r} is no URL: write sqlite:///path") from error
    plain = scheme in ("sqlite", "sqlite+pysqlite") and not parsed.query and not parsed.host
    if not plain or parsed.database in (None, "", ":memory:"):
        raise StoreError(f"the store {url!r} names no file: write sqlite:///path (four slashes for an absolute one)")
    return Path(os.path.abspath(str(parsed.database)))  # noqa: PTH100


def check_place(path: Path) -> None:
    """Refuse a path at which no store can be."""
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
    """Refuse a file that is not ours; an absent or empty one may be filled."""
    try:
        if _looks_like_ours(path) or _looks_like_ours(path):  # twice: the first creator may have committed in between
            return
        header = Header.of(path)
    except OSError as error:
        raise StoreError(f"the store {path} cannot be opened: {error.strerror}") from error
    if not header.is_sqlite:
        raise StoreError(f"the store {path} is no database: it was left as it is; choose another path")
    raise StoreError(another_programs(path))


def another_programs(path: Path) -> str:
    """Return what is said of a database that is not ours."""
    return f"the store {path} is a database of another program: it was left as it is; choose another path"


def only_read(path: Path) -> bool:
    """Whether the store in *path* is there, but cannot be changed by this user."""
    # SQLite writes its journal beside the file, and a publication takes its place: the folder counts too
    return path.exists() and not (os.access(path, os.W_OK) and _may_be_written(path.resolve().parent))


def _may_be_written(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _looks_like_ours(path: Path) -> bool:
    header = Header.of(path)
    # a first creator is committing, or died so: SQLite finishes or undoes that, and then we look again
    return header.is_empty or header.is_ours or Path(f"{path}-journal").exists()
