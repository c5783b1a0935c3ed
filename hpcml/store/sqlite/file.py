"""A store in one SQLite file, used by several processes of one host: opening, transactions, upgrade and backups.

`SqliteFile` is the base of all stores in a file, `SqliteStore` the one that works in the file directly. Before an
upgrade the file is checked and copied beside itself; a backup appears under its name only when it is whole.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, inspect
from sqlalchemy.exc import DatabaseError

from hpcml.errors import StoreError
from hpcml.runs.atomic import appear, sync
from hpcml.store.database import Database
from hpcml.store.schema import APPLICATION_ID, REVISION
from hpcml.store.sqlite.location import Placement, another_programs, check_file

log = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 60  # an ingest of a very long run may hold the file for seconds
_MODE_SWITCH_S = 5.0  # SQLite's busy handler does not cover a change of journal mode
_WRITE = {"hpcml_write": True}
_PLAIN = {"hpcml_plain": True}
_SCANT = 1 << 20  # bytes: less than SQLite may ask for while a few runs are read in
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqliteFile(Database):
    """The base of all stores in an SQLite file.

    The placement says where the file is and how it is used; kinds of stores add how connections and locks are got.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    @property
    def path(self) -> Path:
        """The path of the file, as the user gave it."""
        return self.placement.path

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def used(self) -> str:
        """The file system and how the file is used there."""
        return str(self.placement)

    def explained(self, error: DatabaseError) -> str:
        """Return one line on *error*, with what to do about it where that is known.

        SQLite's result codes are read without their upper bits (sqlite.org/rescode.html): a full disk and a damaged
        file have advice of their own.
        """
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and is_full(self.path.parent)):
            return f"no room is left for the store {self.name}: what was just being read in was undone; free some space"
        if code in _DAMAGED:
            return damaged(self.name, str(error.orig))
        return super().explained(error)


def is_full(folder: Path) -> bool:
    """Tell whether the disk with *folder* has no room for more of a store; False where that cannot be seen."""
    # of its log and its shared memory SQLite says only that they could not be written
    with suppress(OSError):
        return shutil.disk_usage(folder).free < _SCANT
    return False


def damaged(name: str, how: str) -> str:
    """Return one line on a file that SQLite cannot read, with what to do; *how* is SQLite's message.

    A store can always be made anew, since all that it holds is in the run directories.
    """
    anew = f"rm -f {name} {name}-* and hpcml sync make it anew"
    return f"the store {name} is damaged ({how}): hpcml store check says more; {anew}"


class SqliteStore(SqliteFile):
    """A store whose file SQLite's own locks protect, since all its users work on one host.

    While one process writes, others wait for up to `BUSY_TIMEOUT_S`; with write-ahead logging readers never wait. On a
    file system that other machines may see, the file is used with a rollback journal instead (sqlite.org/wal.html).
    """

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self._engine = make_engine(lambda: sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S), prepare=_prepare)

        @event.listens_for(self._engine, "begin")
        def _begin(connection: Connection) -> None:
            begin(connection)
            if connection.exec_driver_sql("PRAGMA user_version").scalar_one():
                raise StoreError(f"another machine began to publish the store {self.name}: run this command again")

    @classmethod
    def open(cls, placement: Placement) -> SqliteStore:
        """Return the store in this file, made or upgraded where needed; raises `StoreError`.

        A new file is readable and writable for its owner only (mode 0600). Before an upgrade a backup is written beside
        it (`keep_before_upgrade`). Raised also for a file of another program, or of a newer hpcml: it is left as it is.
        """
        check_file(placement.path)
        try:
            os.close(os.open(placement.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(f"the store {placement.path} cannot be opened: {error.strerror}") from error
        store = cls(placement)
        with store.translated():
            bring_up_to_date(store._engine, placement.path)
            _set_journal_mode(store._engine, placement)
        return store

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the store from beginning to end."""
        with self.translated(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Return a context manager with a connection; ``begin()`` waits until nobody else writes (BEGIN IMMEDIATE)."""
        with self.translated(), for_writing(self._engine).connect() as connection:
            yield connection

    @contextmanager
    def maintaining(self) -> Iterator[Connection]:
        """Return a context manager with a connection in no transaction."""
        with self.translated(), self._engine.execution_options(**_PLAIN).connect() as connection:
            yield connection

    def close(self) -> None:
        """Let go of the file."""
        self._engine.dispose()


def make_engine(connect: Callable[[], sqlite3.Connection], *, prepare: Callable[[sqlite3.Connection], None]) -> Engine:
    """Return an engine that holds no file open while it is not used, not even after a fork.

    *connect* opens the file anew for each connection, and *prepare* is called with the new connection, for pragmas.
    Foreign keys are checked. The caller makes each transaction begin as it wants by an event (`begin`).
    """
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself: schema changes are transactional too
        connection.execute("PRAGMA foreign_keys = ON")
        prepare(connection)

    return engine


def for_writing(engine: Engine) -> Engine:
    """Return *engine* with connections whose transactions keep others from writing."""
    return engine.execution_options(**_WRITE)


def as_it_is(engine: Engine) -> Engine:
    """Return *engine* with connections that begin no transaction by themselves."""
    return engine.execution_options(**_PLAIN)


def begin(connection: Connection) -> None:
    """Begin the transaction that the options of *connection* name.

    To be called by an engine's event "begin". Plain connections begin nothing (`as_it_is`), those for writing take the
    lock at once (BEGIN IMMEDIATE, sqlite.org/lang_transaction.html), all others begin as readers.
    """
    options = connection.get_execution_options()
    if not options.get("hpcml_plain", False):
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("hpcml_write", False) else "BEGIN")


def revision_of(connection: Connection) -> str | None:
    """Return the schema version of the store; None if the file has no schema of ours.

    It is the number of the last migration, as "0005", in Alembic's own table.
    """
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one_or_none()
    return None if revision is None else str(revision)


def bring_up_to_date(engine: Engine, path: Path) -> None:
    """Make or upgrade the schema behind *engine*, after a check and a backup beside *path*.

    All of it is one transaction: a failed upgrade leaves the file as it was. Of several processes that start at once,
    one upgrades and the others find it done. Raises `StoreError` for tables of another program, a newer schema, and
    where no backup can be made.
    """
    with engine.connect() as connection, connection.begin():
        if revision_of(connection) == REVISION:
            return
    # Imported here, since Alembic would double the start-up time of every command that finds nothing to upgrade.
    from hpcml.store.upgrade import known_revisions, upgrade  # noqa: PLC0415

    with for_writing(engine).connect() as connection, connection.begin():
        revision = revision_of(connection)  # again: somebody else may have been faster
        if revision == REVISION:
            return
        if revision is None:
            if inspect(connection).get_table_names():
                raise StoreError(another_programs(path))
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        elif revision not in known_revisions():
            raise StoreError(newer(path, revision))
        else:
            keep_before_upgrade(engine, path, revision)
        upgrade(connection)
        log.info("upgraded %s from schema %s to %s", path, revision, REVISION)


def newer(path: Path, revision: str) -> str:
    """Return the message about a store that a later version of hpcml has made."""
    return f"the store {path} was written by a newer hpcml (schema {revision}): update hpcml"


def _prepare(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        # a power cut may take the last commits but never tears the file, and ingest does them again
        connection.execute("PRAGMA synchronous = NORMAL")


def _set_journal_mode(engine: Engine, placement: Placement) -> None:
    # Write-ahead logging needs memory shared by all who use the file, hence one machine (sqlite.org/wal.html).
    wanted = "wal" if placement.is_local else "delete"
    give_up_at = time.monotonic() + _MODE_SWITCH_S
    connection = engine.raw_connection()  # outside of any transaction, where alone the mode can change
    try:
        cursor = connection.cursor()
        while cursor.execute("PRAGMA journal_mode").fetchone()[0] != wanted and time.monotonic() < give_up_at:
            try:
                cursor.execute(f"PRAGMA journal_mode = {wanted}")
            except sqlite3.OperationalError:  # in use by others; either mode is right while one host uses the file
                time.sleep(0.02)
        cursor.close()
    finally:
        connection.close()


_KEPT = 3
_WORD = ".backup-"
_UNFINISHED = ".unfinished"


def keep_before_upgrade(engine: Engine, path: Path, revision: str) -> None:
    """Check the store behind *engine* and copy it beside *path*; raises `StoreError` where either fails.

    An empty store needs no copy. The write lock may be held meanwhile, usually by the caller. The newest three backups
    are kept, and older ones deleted.
    """
    with as_it_is(engine).connect() as connection:
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if found != "ok":
            raise StoreError(damaged(str(path), str(found)))
        if not inspect(connection).has_table("run"):
            return
        if connection.exec_driver_sql("SELECT 1 FROM run LIMIT 1").scalar_one_or_none() is None:
            return
        source = connection.connection.driver_connection
        assert isinstance(source, sqlite3.Connection)
        try:
            write_backup(source, backup_name(path, revision))
        except (OSError, DatabaseError, sqlite3.Error) as error:
            raise StoreError(f"the store {path} is not upgraded, since no backup can be made of it: {error}") from error
    thin_out(path, keep=_KEPT)


def backup_name(path: Path, revision: str) -> Path:
    """Return an unused name: ``store.db.backup-<schema>-<time>``.

    The time is local, to the second; a number is added where the name is taken.
    """
    stem = f"{path}{_WORD}{revision}-{time.strftime('%Y%m%d-%H%M%S')}"
    free = Path(stem)
    for count in range(2, 1000):
        if not free.exists():
            break
        free = Path(f"{stem}-{count}")
    return free


def backups_of(path: Path) -> list[Path]:
    """Return the backups beside the store *path*, newest first.

    Unfinished ones are left out. Newest is by the time of the last change of the file.
    """
    found = [file for file in path.parent.iterdir() if file.name.startswith(f"{path.name}{_WORD}")]
    # of one that was killed SQLite's journal may be left, too: ``….unfinished-journal``
    return sorted((file for file in found if not _is_unfinished(file, path)), key=_age)


def write_backup(source: sqlite3.Connection, target: Path) -> None:
    """Copy what *source* sees into the new file *target*, which appears only when it is whole.

    Raises `OSError` or `sqlite3.Error`. The copy is marked as no publication, wherever it came from. Its mode is 0600,
    and it is synced to the disk before it gets its name. What a failed or killed call leaves is removed, at once or by
    the next one.
    """
    unfinished = Path(f"{target}{_UNFINISHED}")
    unfinished.unlink(missing_ok=True)
    try:
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(unfinished)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.execute("PRAGMA user_version = 0")
            copy.commit()
        sync(unfinished)  # its name is SQLite's to work with, and `thin_out`'s to clean up: hence no `creating`
        appear(unfinished, target)
    finally:
        for leftover in (unfinished, Path(f"{unfinished}-journal")):
            leftover.unlink(missing_ok=True)


def thin_out(path: Path, *, keep: int) -> list[Path]:
    """Delete all but the newest *keep* backups beside *path*, and unfinished ones; return what was deleted.

    Unfinished ones go once they are an hour old: a younger one may be another process's at work.
    """
    gone = backups_of(path)[keep:]
    left = [
        file
        for file in path.parent.iterdir()
        if file.name.startswith(f"{path.name}{_WORD}") and _is_unfinished(file, path)
    ]
    gone += [file for file in left if _is_forgotten(file)]
    for file in gone:
        file.unlink(missing_ok=True)
    return gone


def _is_unfinished(file: Path, path: Path) -> bool:
    return _UNFINISHED in file.name.removeprefix(path.name)


def _age(path: Path) -> tuple[float, str]:
    with suppress(OSError):
        return -path.stat().st_mtime, path.name
    return 0.0, path.name


def _is_forgotten(path: Path) -> bool:
    with suppress(OSError):
        return time.time() - path.stat().st_mtime > 3600
    return False
